"""Captions of runs for the same photos: which got better or worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capscore.cider import cider_d
from capscore.errors import UserError
from capscore.scoring_inputs import ScoringInputs
from tellapart.data.examples import Example
from tellapart.evaluation.models import Split

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Changes:
    """Captions of the photos that all runs captioned.

    photos  P of them, each with references
    said    run -> P captions
    scores  run -> (P,) CIDEr-D; document frequencies are those of the whole split
    """

    photos: list[Example]
    captions: dict[str, list[str]]
    scores: dict[str, Floats]

    @property
    def gains(self) -> Floats:
        """(P,) what the last run's captions score more than the first one's; of a single run, what they score."""
        first, last = (list(self.scores.values())[place] for place in (0, -1))
        return last - first if len(self.scores) > 1 else last

    def improved(self, most: int) -> list[int]:
        """Photos whose captions gained most, the largest gain first."""
        order = np.argsort(-self.gains, kind="stable")
        return [int(photo) for photo in order[:most] if len(self.scores) > 1 and self.gains[photo] > 0]

    def failed(self, most: int) -> list[int]:
        """Photos whose captions lost most, the largest loss first; of a single run, those that score least."""
        order = np.argsort(self.gains, kind="stable")
        return [int(photo) for photo in order[:most] if len(self.scores) == 1 or self.gains[photo] < 0]


def drawn(split: Split, count: int) -> Split:
    """So many photos with references, drawn by a seed, in the order of the data."""
    with_references = [photo for photo in split.photos if photo.captions]
    if not with_references:
        raise UserError(f"{split.source}: no photo of the split has captions to compare with.")
    return Split(split.name, split.source, with_references, split.problems).some(count)


def compare(split: Split, photos: Sequence[Example], captions: Mapping[str, Mapping[str, str]]) -> Changes:
    """split: all photos, whose references say how frequent words are.  said: run -> file of a photo -> caption."""
    shared = [photo for photo in photos if all(str(photo.file) in own for own in captions.values())]
    if not shared:
        raise UserError(f"{split.source}: there is no photo that all runs have a caption of.")
    with_references = [photo for photo in split.photos if photo.captions]
    row_of = {str(photo.file): row for row, photo in enumerate(with_references)}
    at = np.array([row_of[str(photo.file)] for photo in shared])
    inputs = ScoringInputs([[""] for _ in with_references], [photo.captions for photo in with_references])
    scores = {}
    for run, own in captions.items():
        texts = [""] * len(with_references)
        for row, photo in zip(at.tolist(), shared, strict=True):
            texts[row] = own[str(photo.file)]
        captioned = inputs.with_captions([[text] for text in texts])
        scores[run] = cider_d(captioned.captions_split, captioned.photos, captioned.references)[at]
    return Changes(shared, {run: [own[str(photo.file)] for photo in shared] for run, own in captions.items()}, scores)
