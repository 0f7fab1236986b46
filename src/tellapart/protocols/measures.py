"""What measures promise (`metrics.measures.Measure`), on captions of a handful of photos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capscore.measures import MEASURES
from capscore.scoring import Scores, compare
from capscore.training_captions import TrainingCaptions
from tellapart.protocols import Check

_CAPTIONS = {
    "bus": ["a red bus on a street", "two buses by a house"],
    "dog": ["a dog runs", "a dog runs over the grass"],
    "cat": ["is that a cat?", "a cat sleeps on a red sofa"],
    "nothing": ["", "a photo of a photo of"],
    "cake": ["people eat cake and cake and cake", "five people around a table with a cake on it"],
    "sea": ["a boat", "blue water; a boat"],
}
_REFERENCES = {
    "bus": ["a red double-decker bus drives down a street", "the bus is red"],
    "dog": ["a brown dog runs over grass", "a dog running"],
    "cat": ["a cat asleep on a couch", "the cat lies on the red sofa"],
    "nothing": ["a wooden door", "a closed door of a house"],
    "cake": ["a family eats cake at a table", "people around a birthday cake"],
    "sea": ["a small boat on the sea", "a sailing boat on blue water"],
}


@dataclass(frozen=True)
class Case:
    name: str

    def scores(self, photos: Sequence[str]) -> Scores:
        captions, references = ({photo: by_id[photo] for photo in photos} for by_id in (_CAPTIONS, _REFERENCES))
        known = TrainingCaptions([["a", "dog", "runs"]])
        return compare([captions], references, metrics=MEASURES[self.name].names, training=known)[0]


def case(name: str) -> Case:
    return Case(name)


def photos_have_rows(case: Case) -> None:
    """It gives the scores that it names, from a finite row for each photo."""
    scores = case.scores(list(_CAPTIONS))
    assert all(np.isfinite(value) for value in scores.corpus.values()), scores.corpus
    assert all(np.isfinite(value) for row in scores.per_photo().values() for value in row.values())


def order_does_not_matter(case: Case) -> None:
    """Scores do not depend on the order of the photos."""
    photos = list(_CAPTIONS)
    scores, others = case.scores(photos), case.scores(photos[::-1])
    now, then = others.per_photo() | {"": others.corpus}, scores.per_photo() | {"": scores.corpus}
    for found, expected in ((now[photo], then[photo]) for photo in ["", *photos]):
        assert all(np.isclose(found[name], expected[name]) for name in expected), f"{found} and {expected}"


def same_captions_same_score(case: Case) -> None:
    """The same captions get the same scores again."""
    assert case.scores(list(_CAPTIONS)).corpus == case.scores(list(_CAPTIONS)).corpus


CHECKS: Sequence[Check] = (photos_have_rows, order_does_not_matter, same_captions_same_score)
