"""CIDEr-D (Vedantam et al., 2015): how well a caption agrees with what people said of the photo, by rare n-grams.

n = 1..4, clipped counts, a Gaussian penalty on the difference in length (sigma 6), mean over n and references, times
10.  Document frequencies come from the references that are given.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

_ORDERS = 4
_SIGMA = 6.0

Words = Sequence[Hashable]  # strings or token ids
Ngram = tuple[Hashable, ...]


class _Vector(NamedTuple):
    weights: list[dict[Ngram, float]]  # per order: count times inverse document frequency
    norms: list[float]
    length: int


def cider_d(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """One score per photo, on the scale of the COCO evaluation: 1.2 is what papers print as 120."""
    photos = len(references)
    in_photos: Counter[Ngram] = Counter()
    for texts in references:
        in_photos.update({ngram for text in texts for ngram in _count(text)})

    def vector(text: Words) -> _Vector:
        weights: list[dict[Ngram, float]] = [{} for _ in range(_ORDERS)]
        for ngram, count in _count(text).items():
            weights[len(ngram) - 1][ngram] = count * (math.log(photos) - math.log(max(1, in_photos[ngram])))
        return _Vector(weights, [math.sqrt(sum(w * w for w in order.values())) for order in weights], len(text))

    scores = []
    for caption, texts in zip(captions, references, strict=True):
        said = vector(caption)
        scores.append(10 * sum(_agreement(said, vector(text)) for text in texts) / len(texts) if texts else 0.0)
    return scores


def _agreement(said: _Vector, reference: _Vector) -> float:
    total = 0.0
    for order in range(_ORDERS):
        weights = reference.weights[order]
        overlap = sum(min(w, weights[n]) * weights[n] for n, w in said.weights[order].items() if n in weights)
        if overlap:
            total += overlap / (said.norms[order] * reference.norms[order])
    return total / _ORDERS * math.exp(-((said.length - reference.length) ** 2) / (2 * _SIGMA**2))


def _count(text: Words) -> Counter[Ngram]:
    words = tuple(text)
    return Counter(words[i : i + n] for n in range(1, _ORDERS + 1) for i in range(len(words) - n + 1))
