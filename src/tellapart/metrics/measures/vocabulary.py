"""Vocabulary: how many different words all captions together have."""

from __future__ import annotations

from collections.abc import Sequence

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Floats, Statistics, shares


def vocabulary(captions: Sequence[Sequence[str]]) -> Statistics:
    return Statistics(("Vocabulary",), shares(captions)[:, None], _sums)


def _sums(sums: Floats) -> Floats:
    return sums


VOCABULARY = Measure(
    (Score("Vocabulary", "Different words in all captions together.", percent=False, digits=0),),
    lambda inputs: vocabulary(inputs.words),
    needs=(),
    signature=("tok",),
)
