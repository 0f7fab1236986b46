"""Prec: content words that the own photo's references have too, as a share of all content words of all captions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, share_of_words
from tellapart.metrics.stop_words import content


def precision(captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> Statistics:
    known = [set(chain.from_iterable(texts)) for texts in references]
    return share_of_words("Prec", [content(words) for words in captions], lambda photo, word: word in known[photo])


PRECISION = Measure(
    (Score("Prec", "Accuracy: content words that people use of the same photo too, as a share of all of them."),),
    lambda inputs: precision(inputs.words, inputs.reference_words),
)
