"""What a detector finds in photos, kept between runs: one store in the user's cache for each detector and its settings.

boxes.f32     (rows, M, 4) left, top, right, bottom as fractions of the photo's width and height, most confident first
scores.f32    (rows, M)
classes.i32   (rows, M) by number
count.i32     (rows, 1) how many of the M a photo has; zeros behind them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tellapart.data.store import Array, Store
from tellapart.detectors.detector import MOST, BadDetector, Detector, Ready
from tellapart.features.extracted import PHOTO_KEYS, Made, encode_batches
from tellapart.features.photo_cache import ReadPhotos, in_cache, stored_rows

_ARRAYS = {
    "boxes": Array((MOST, 4), "f32"),
    "scores": Array((MOST,), "f32"),
    "classes": Array((MOST,), "i32"),
    "count": Array((1,), "i32"),
}


@dataclass
class Detected(ReadPhotos):
    """Of P photos, up to M boxes each.  boxes and mask are the form of a `Stream` (`data.streams`)."""

    boxes: Tensor  # (P, M, 4)
    scores: Tensor  # (P, M)
    classes: Tensor  # (P, M)
    mask: Tensor  # (P, M) True where there is a box

    def seen(self, above: float, places: Mapping[int, int] | None = None) -> list[frozenset[int]]:
        """The classes of each photo's boxes with a higher score.

        places  what to call a class in place of its number; those that are not there are left out
        """
        sure = self.mask & (self.scores > above)
        found = (set(own[these].tolist()) for own, these in zip(self.classes, sure, strict=True))
        return [frozenset(own if places is None else {places[one] for one in own & places.keys()}) for own in found]


def detect(detector: Detector, files: Sequence[str]) -> Detected:
    """Photos that were seen before and have not changed are read from the cache."""

    def read(folder: Path) -> Detected:
        store = Store(folder, {"format": 1, "detector": detector.identity}, _ARRAYS, PHOTO_KEYS)
        extraction = partial(encode_batches, detector.read, partial(_rows, detector))
        found = stored_rows(store, files, extraction, f"photos through {detector.name}")
        boxes, scores, classes, count = (store.read(name, found.rows) for name in _ARRAYS)
        mask = torch.arange(MOST) < count
        return Detected(found.files, found.sha256, found.failed, boxes, scores, classes.long(), mask)

    return in_cache("detections", detector.identity, read, but=(BadDetector,))


def _rows(detector: Detector, photos: Sequence[Ready]) -> Made:
    """A row for each photo in each of the arrays."""
    arrays = [torch.zeros(len(photos), *array.shape) for array in _ARRAYS.values()]
    boxes, scores, classes, count = arrays
    for row, photo in enumerate(photos):
        found = detector(photo)
        count[row] = number = len(found.scores)
        boxes[row, :number] = torch.from_numpy(found.boxes)
        scores[row, :number] = torch.from_numpy(found.scores)
        classes[row, :number] = torch.from_numpy(found.classes)
    return Made(arrays)
