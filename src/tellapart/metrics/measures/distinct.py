"""distinct-n (Li et al., 2016): different n-grams, as a share of all n-grams of all captions."""

from __future__ import annotations

from collections.abc import Sequence

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, ratio_of, shares


def distinct(captions: Sequence[Sequence[str]], n: int) -> Statistics:
    ngrams = [[tuple(words[i : i + n]) for i in range(len(words) - n + 1)] for words in captions]
    return ratio_of(f"distinct-{n}", shares(ngrams), [len(of_one) for of_one in ngrams])


DISTINCT_1 = Measure(
    (Score("distinct-1", "Different words, as a share of all words."),),
    lambda inputs: distinct(inputs.words, 1),
    needs=(),
    signature=("tok",),
)
DISTINCT_2 = Measure(
    (Score("distinct-2", "Different pairs of neighbouring words, as a share of all pairs."),),
    lambda inputs: distinct(inputs.words, 2),
    needs=(),
    signature=("tok",),
)
