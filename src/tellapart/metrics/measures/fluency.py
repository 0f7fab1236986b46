"""Fluency (SLOR: Pauls and Klein, 2012; Lau et al., 2017): how expected each word is where it stands, beyond its
frequency.

The mean, over the words of a caption and its end, of log p(word | the three before) - log p(word).  The language model
has seen captions of COCO photos with odd ids, none of a validation or test photo: rewards and decoders that have a
language model take the others, so that this one stays independent of them.

Captioners say what is most expected, and so score above people: the figure compares models, not models with people.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

import numpy as np

from tellapart.metrics.kneser_ney import Floats, KneserNey
from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, mean_of


@cache
def coco() -> KneserNey:
    """Made by scripts/build_language_model.py."""
    with resources.as_file(resources.files("tellapart.metrics") / "data" / "coco_language_model.npz") as path:
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


FLUENCY = Measure(
    (
        Score(
            "Fluency",
            "How expected a word is after the three before it, beyond its frequency, on average (SLOR, in nats).",
            percent=False,
            digits=2,
        ),
    ),
    lambda inputs: fluency(inputs.words, coco()),
    needs=(),
    signature=("lm:coco-odd", "tok"),
)
