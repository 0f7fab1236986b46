"""Stutter: captions in which a word follows itself, such as "a dog is is on on a bed"."""

from __future__ import annotations

from collections.abc import Sequence
from operator import eq

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, mean_of


def stutter(captions: Sequence[Sequence[str]]) -> Statistics:
    return mean_of("Stutter", [any(map(eq, words, words[1:])) for words in captions])


STUTTER = Measure(
    (Score("Stutter", 'Captions in which a word follows itself ("a dog is is"), as a share of all.', False),),
    lambda inputs: stutter(inputs.words),
    needs=(),
    signature=("tok",),
)
