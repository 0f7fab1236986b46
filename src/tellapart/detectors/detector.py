"""The interface of every detector: YOLOX as an ONNX file, or a DETR of transformers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from capscore.errors import UserError
from tellapart.detectors import boxes
from tellapart.detectors.boxes import Floats, Numbers
from tellapart.errors import BadPhoto

LEAST = 0.05  # a box's score; what is less sure is noise
IOU = 0.45  # boxes of a class that overlap by more show the same thing
MOST = 100  # boxes of a photo

Source = str | os.PathLike[str] | Image.Image


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
    """What is seen in a photo, most confident first.

    boxes    (N, 4) left, top, right, bottom as fractions of the photo's width and height
    scores   (N,)   from 0 to 1
    classes  (N,)   by number
    """

    boxes: Floats
    scores: Floats
    classes: Numbers


class Ready(Protocol):
    """A photo as a detector takes it."""

    @property
    def sha256(self) -> str:
        """Of the file's bytes."""


class Detector(Protocol):
    """name      of its file or folder, without the suffix
    sha256    of its weights
    identity  what detections must share to be used together
    """

    name: str
    sha256: str

    @property
    def identity(self) -> dict[str, Any]: ...

    def read(self, source: Source) -> Any:
        """A photo made `Ready`.  Raises BadPhoto."""

    def __call__(self, photo: Any) -> Detections:
        """What is in a photo that `read` has made ready.  Raises `Failed`."""

    def numbers_of(self, classes: Sequence[str]) -> dict[int, int]:
        """Its number for a class -> the place of that class in the list; refuses a list of others than it knows."""


def sure_ones(found: Floats, scores: Floats, classes: Numbers) -> Detections:
    """Of a network's boxes, as fractions of the photo, those that are likely, each thing once.

    What reaches outside the photo ends at its edges; what then has no area is left out.
    """
    likely = np.flatnonzero(scores > LEAST)
    kept = likely[boxes.suppress(found[likely], scores[likely], classes[likely], iou=IOU, most=MOST)]
    inside = found[kept].clip(0, 1)
    usable = (inside[:, 2:] > inside[:, :2]).all(1)
    return Detections(inside[usable], scores[kept][usable], classes[kept][usable])
