"""Unidiomatic: captions with a word that people would hardly use there.

Captions whose least expected word (the lowest term of `Fluency`) is less expected than the least expected words of 95 %
of people's captions of the same photos.  So people are near 5 % by construction, and only differences between models
count: it is a guard against captions that are rewarded into bad English.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from tellapart.metrics.kneser_ney import KneserNey
from tellapart.metrics.measures.fluency import coco, lowest_terms
from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, mean_of

QUANTILE = 0.05
# That quantile of 15,980 captions by people of COCO training photos with even ids, for photos without references
COCO_LIMIT = -3.83


def unidiomatic(
    captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]], model: KneserNey
) -> Statistics:
    """Of the words of one caption for each photo, and of each photo's references.  Where people's own captions are
    scored, they are not among the references.  The quantile is held fixed when photos are resampled."""
    limit = np.quantile(lowest_terms(list(chain.from_iterable(references)), model), QUANTILE)
    return below(captions, model, float(limit))


def below(captions: Sequence[Sequence[str]], model: KneserNey, limit: float = COCO_LIMIT) -> Statistics:
    """Of the words of one caption for each photo, by a given limit."""
    return mean_of("Unidiomatic", lowest_terms(captions, model) < limit)


UNIDIOMATIC = Measure(
    (
        Score(
            "Unidiomatic",
            "Captions with a word less expected where it stands than people's captions of these photos have in 95 of "
            "100 cases, as a share of all; people's own are near 5 %.",
            False,
        ),
    ),
    lambda inputs: unidiomatic(inputs.words, inputs.reference_words, coco()),
    signature=(f"below:{QUANTILE:g}", "lm:coco-odd", "tok", "refs"),
)
