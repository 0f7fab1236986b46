"""The interface of every detector, YOLOX as an ONNX file or a DETR of transformers, and what is common to all: which of
a network's boxes count, detections kept between runs, and the part of an encoder's map that is in a box.

Boxes are left, top, right, bottom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore.errors import UserError
from tellapart.data.media import photos
from tellapart.data.store import Array, Store
from tellapart.errors import BadPhoto
from tellapart.features.extracted import PHOTO_KEYS, EncodedRows, ReadPhotos, encode_batches, in_cache, stored_rows
from tellapart.recipe import Pooling

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


# Detections in photos, kept between runs: one store in the user's cache for each detector and its settings.
#
# boxes.f32     (rows, M, 4) left, top, right, bottom as fractions of the photo's width and height, most confident first
# scores.f32    (rows, M)
# classes.i32   (rows, M) by number
# count.i32     (rows, 1) how many of the M a photo has; zeros behind them

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

    def classes_above(self, score: float, places: Mapping[int, int] | None = None) -> list[frozenset[int]]:
        """The classes of each photo's boxes with a higher score.

        places  what to call a class in place of its number; those that are not there are left out
        """
        classes = []
        for of_photo, sure in zip(self.classes, self.mask & (self.scores > score), strict=True):
            numbers = set(of_photo[sure].tolist())
            classes.append(frozenset(numbers if places is None else (places[n] for n in numbers & places.keys())))
        return classes


def detect(detector: Detector, files: Sequence[str]) -> Detected:
    """Photos that were seen before and have not changed are read from the cache."""

    def read(folder: Path) -> Detected:
        store = Store(folder, {"format": 1, "detector": detector.identity}, _ARRAYS, PHOTO_KEYS)
        extraction = partial(encode_batches, detector.read, partial(_rows, detector))
        title = f"photos through {detector.name}"
        names, sha256, failed, rows = stored_rows(store, files, extraction, title)
        boxes, scores, classes, count = (store.read(name, rows) for name in _ARRAYS)
        return Detected(names, sha256, failed, boxes, scores, classes.long(), torch.arange(MOST) < count)

    return in_cache("detections", detector.identity, read, but=(BadDetector,))


def _rows(detector: Detector, batch: Sequence[photos.Ready]) -> EncodedRows:
    """A row for each photo in each of the arrays."""
    arrays = [torch.zeros(len(batch), *array.shape) for array in _ARRAYS.values()]
    boxes, scores, classes, count = arrays
    for row, photo in enumerate(batch):
        detections = detector(photo)
        count[row] = number = len(detections.scores)
        boxes[row, :number] = torch.from_numpy(detections.boxes)
        scores[row, :number] = torch.from_numpy(detections.scores)
        classes[row, :number] = torch.from_numpy(detections.classes)
    return EncodedRows(arrays)


# The part of an encoder's map that is in a box, by RoI-align (He et al., 2017, section 3): the box is cut into 7 x 7
# bins, a bin is the mean of 2 x 2 points between the cells of the map, and the region the mean, or the largest, of its
# bins.

BINS, POINTS = 7, 2  # of a box's side, and of a bin's


def region_features(feature_map: Tensor, boxes: Tensor, pooling: Pooling) -> Tensor:
    """feature_map (D, H, W), boxes (N, 4) as fractions of its sides -> (N, D)"""
    bins = roi_align(feature_map, boxes.to(feature_map.device)).flatten(2)
    return bins.amax(2) if pooling == "max" else bins.mean(2)


def roi_align(feature_map: Tensor, boxes: Tensor, bins: int = BINS, points: int = POINTS) -> Tensor:
    """feature_map (D, H, W), boxes (N, 4) as fractions of its sides -> (N, D, bins, bins)

    A value of the map stands in the middle of its cell.  Between two cells points are mixed from both, and beyond the
    middle of the outermost ones they are as these.  Points lie in rows and columns, so that a bin is the product of how
    much of each row and of each column of the map is in it.
    """
    left, top, right, bottom = boxes.unbind(1)
    rows = _shares(top, bottom, feature_map.shape[1], bins, points)
    columns = _shares(left, right, feature_map.shape[2], bins, points)
    return torch.einsum("nyh,dhw,nxw->ndyx", rows, feature_map, columns)


def _shares(start: Tensor, end: Tensor, cells: int, bins: int, points: int) -> Tensor:
    """(N, bins, cells): of a side of a box (N,), how much of each cell of the map is in each bin"""
    along = (torch.arange(bins * points, device=start.device) + 0.5) / (bins * points)
    place = (start[:, None] + (end - start)[:, None] * along) * cells - 0.5  # of the points, in cells
    distance = (place.clamp(0, cells - 1)[..., None] - torch.arange(cells, device=start.device)).abs()
    return (1 - distance).clamp(min=0).view(-1, bins, points, cells).mean(2)
