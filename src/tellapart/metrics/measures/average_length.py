"""AvgLen: how long captions are."""

from __future__ import annotations

from collections.abc import Sequence

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, mean_of


def average_length(captions: Sequence[Sequence[str]]) -> Statistics:
    return mean_of("AvgLen", [len(words) for words in captions])


AVERAGE_LENGTH = Measure(
    (Score("AvgLen", "Words in a caption, on average.", None, percent=False),),
    lambda inputs: average_length(inputs.words),
    needs=(),
    signature=("tok",),
)
