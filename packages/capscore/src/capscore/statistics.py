"""What a measure needs to know of each photo, so that one function can resample any measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Statistics:
    """Sufficient statistics: their sum over any photos, taken as often as one likes, gives the score of these photos.

    names  the M scores that they hold
    rows   (N, S)               one row a photo
    value  (..., S) → (..., M)  the scores of a sum of rows; never NaN
    """

    names: tuple[str, ...]
    rows: Floats
    value: Callable[[Floats], Floats]

    def corpus(self) -> dict[str, float]:
        return dict(zip(self.names, self.value(self.rows.sum(0)).tolist(), strict=True))

    def per_photo(self) -> Floats:
        """(N, M)"""
        return self.value(self.rows)


def mean_of(name: str, scores: ArrayLike) -> Statistics:
    """A measure whose corpus value is the mean of its photos' values (N,)."""
    values = np.asarray(scores, np.float64)
    return ratio_of(name, values, np.ones(len(values)))


def ratio_of(name: str, above: ArrayLike, below: ArrayLike) -> Statistics:
    """A measure that is one total over another, both (N,), such as a share of all words of all captions."""
    return Statistics((name,), np.stack([np.asarray(above, np.float64), np.asarray(below, np.float64)], 1), quotients)


def share_of_words(name: str, captions: Sequence[Sequence[str]], counts: Callable[[int, str], bool]) -> Statistics:
    """Words that count, as a share of all words of all captions.  `counts` is given the photo's number and the word."""
    above = [sum(counts(photo, word) for word in words) for photo, words in enumerate(captions)]
    return ratio_of(name, above, [len(words) for words in captions])


def shares(items: Sequence[Sequence[Hashable]]) -> Floats:
    """(N,) for each photo the sum, over its items, of one part in as many as all photos have of the item.

    So the size of a set, of all different words say, is a sum over photos, and can be resampled like all others.
    """
    times = Counter(item for of_one in items for item in of_one)
    return np.array([sum(1 / times[item] for item in of_one) for of_one in items], np.float64)


def mean_of_runs(runs: Sequence[Statistics]) -> Statistics:
    """The same measure of several runs on the same photos: the mean of their scores, resampled together."""

    def value(sums: Floats) -> Floats:
        parts = np.split(sums, len(runs), axis=-1)
        mean: Floats = np.mean([run.value(part) for run, part in zip(runs, parts, strict=True)], axis=0)
        return mean

    return Statistics(runs[0].names, np.concatenate([run.rows for run in runs], axis=1), value)


def quotients(sums: Floats) -> Floats:
    """(..., 2 M), each score's numerator and denominator side by side → (..., M); 0 where that is 0."""
    pairs = sums.reshape(*sums.shape[:-1], -1, 2)
    return np.divide(pairs[..., 0], pairs[..., 1], out=np.zeros(pairs.shape[:-1]), where=pairs[..., 1] != 0)
