"""The interface of every detector, YOLOX as an ONNX file or a DETR of transformers, and what is common to all.

Boxes are left, top, right, bottom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from capscore.errors import UserError
from tellapart.data.media import photos
from tellapart.errors import BadPhoto

LEAST = 0.05  # a box's score; what is less sure is noise
IOU = 0.45  # boxes of a class that overlap by more show the same thing
MOST = 100  # boxes of a photo

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


class BadDetector(UserError):
    """A file cannot be used as a detector at all."""

    def __init__(self, file: str | Path, reason: str):
        super().__init__(f"{file}: {reason}")
        self.reason = reason.removesuffix(".")


class Failed(BadPhoto):
    """A detector gives nothing that can be used for this photo; others may go well."""

    def __init__(self, detector: str, reason: str):
        super().__init__("a photo", f"the detector {detector} {reason}")


@dataclass(frozen=True)
class Detections:
    """The things in a photo, most confident first.

    boxes    (N, 4) left, top, right, bottom as fractions of the photo's width and height
    scores   (N,)   from 0 to 1
    classes  (N,)   by number
    """

    boxes: Floats
    scores: Floats
    classes: Numbers


class Detector(Protocol):
    """name      of its file or folder, without the suffix
    sha256    of its weights
    identity  what detections must share to be used together
    """

    name: str
    sha256: str

    @property
    def identity(self) -> dict[str, Any]: ...

    def read(self, source: photos.Source) -> Any:
        """A photo made ready (`photos.Ready`).  Raises BadPhoto."""

    def __call__(self, photo: Any) -> Detections:
        """The things in a photo that `read` has made ready.  Raises `Failed`."""

    def numbers_of(self, classes: Sequence[str]) -> dict[int, int]:
        """Its number for a class -> the place of that class in the list; refuses a list of others than it knows."""


def suppress(boxes: Floats, scores: Floats, classes: Numbers, *, iou: float, most: int) -> Numbers:
    """The boxes to keep, most confident first: of those of a class that overlap by more than `iou`, only the first.

    most  how many at most
    """
    left: Numbers = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while len(left) and len(kept) < most:
        best, left = int(left[0]), left[1:]
        kept.append(best)
        same = (classes[left] == classes[best]) & (overlaps(boxes[best], boxes[left]) > iou)
        left = left[~same]
    return np.array(kept, np.int64)


def overlaps(box: Floats, others: Floats) -> Floats:
    """Intersection over union of a box (4,) with others (N, 4); 0 where both are empty"""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = sides.clip(0).prod(1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(1) - common
    ratio: Floats = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return ratio


def settings(classes: int) -> dict[str, Any]:
    """The part of every detector's identity that says what becomes of its network's boxes."""
    return {"classes": classes, "score": LEAST, "iou": IOU, "boxes": MOST}


def sure_ones(candidates: Floats, scores: Floats, classes: Numbers) -> Detections:
    """Of a network's boxes, as fractions of the photo, those that are likely, each thing once.

    What reaches outside the photo ends at its edges; what then has no area is left out.
    """
    likely = np.flatnonzero(scores > LEAST)
    kept = likely[suppress(candidates[likely], scores[likely], classes[likely], iou=IOU, most=MOST)]
    inside = candidates[kept].clip(0, 1)
    usable = (inside[:, 2:] > inside[:, :2]).all(1)
    return Detections(inside[usable], scores[kept][usable], classes[kept][usable])
