"""From what YOLOX's network gives to boxes (Ge et al., 2021, and `yolox/utils/boxes.py` of its authors).

The canvas is cut into cells of 8, 16 and 32 pixels a side, and each cell has one row: where the middle of a box lies
from the cell's corner, in cells; the logarithms of its width and height, in cells; whether something is there; and
which class it is.  Boxes are left, top, right, bottom.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tellapart.detectors.letterbox import Size

STRIDES = (8, 16, 32)

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


@lru_cache(maxsize=8)
def cells(size: Size) -> Floats:
    """(A, 3): column, row and side in pixels of each cell of a canvas, in the order of the network's rows"""
    parts = []
    for stride in STRIDES:
        rows, columns = np.indices((size[0] // stride, size[1] // stride))
        parts.append(np.stack([columns.ravel(), rows.ravel(), np.full(rows.size, stride)], 1))
    found: Floats = np.concatenate(parts).astype(np.float32)
    return found


def decode(raw: Floats, size: Size) -> tuple[Floats, Floats, Numbers]:
    """raw (A, 5 + C) -> boxes (A, 4) in pixels of the canvas, scores (A,) and the likeliest class of each (A,)"""
    grid = cells(size)
    corner, stride = grid[:, :2], grid[:, 2:]
    middle, half = (raw[:, :2] + corner) * stride, np.exp(raw[:, 2:4]) * stride / 2
    classes: Numbers = raw[:, 5:].argmax(1)
    scores: Floats = raw[:, 4] * raw[np.arange(len(raw)), 5 + classes]
    return np.concatenate([middle - half, middle + half], 1), scores, classes


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
    found: Floats = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return found
