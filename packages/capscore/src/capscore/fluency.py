"""Fluency (SLOR: Pauls and Klein, 2012; Lau et al., 2017): how expected each word is where it stands, beyond its
frequency.

The mean, over the words of a caption and its end, of log p(word | the three before) - log p(word).  The language model
has seen captions of COCO photos with odd ids, none of a validation or test photo: rewards and decoders that have a
language model take the others, so that this one stays independent of them.

Captioners say what is most expected, and so score above people: the figure compares models, not models with people.

Unidiomatic: captions whose least expected word is less expected than the least expected words of 95 % of people's
captions of the same photos.  So people are near 5 % by construction, and only differences between models count: it is a
guard against captions that are rewarded into bad English.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from itertools import chain

import numpy as np

from capscore.kneser_ney import Floats, KneserNey
from capscore.measures import UNIDIOMATIC
from capscore.statistics import Statistics, mean_of

# That quantile of 15,980 captions by people of COCO training photos with even ids, for photos without references
COCO_LIMIT = -3.83


@cache
def coco() -> KneserNey:
    """Made by scripts/build_language_model.py."""
    with resources.as_file(resources.files("capscore") / "data" / "coco_language_model.npz") as path:
        return KneserNey.load(path)


def fluency(captions: Sequence[Sequence[str]], model: KneserNey) -> Statistics:
    """Of the words of one caption for each photo."""
    terms, owner = model.terms(captions)
    count = np.bincount(owner, minlength=len(captions))  # the end is always one
    return mean_of("Fluency", np.bincount(owner, terms, minlength=len(captions)) / count)


def lowest_terms(captions: Sequence[Sequence[str]], model: KneserNey) -> Floats:
    """(N,) of each caption the term of its least expected word, or of its end."""
    terms, owner = model.terms(captions)
    lowest = np.full(len(captions), np.inf)
    np.minimum.at(lowest, owner, terms)
    return lowest


def by_coco(captions: Sequence[Sequence[str]]) -> Statistics:
    return fluency(captions, coco())


def unidiomatic(
    captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]], model: KneserNey
) -> Statistics:
    """Of the words of one caption for each photo, and of each photo's references.  Where people's own captions are
    scored, they are not among the references.  The quantile is held fixed when photos are resampled."""
    limit = np.quantile(lowest_terms(list(chain.from_iterable(references)), model), UNIDIOMATIC)
    return below(captions, model, float(limit))


def below(captions: Sequence[Sequence[str]], model: KneserNey, limit: float = COCO_LIMIT) -> Statistics:
    """Of the words of one caption for each photo, by a given limit."""
    return mean_of("Unidiomatic", lowest_terms(captions, model) < limit)


def unidiomatic_by_coco(captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> Statistics:
    return unidiomatic(captions, references, coco())
