"""YOLOX (Ge et al., 2021) as its authors export it: an ONNX file, run by onnxruntime.

All of yolox_{nano,tiny,s,m,l,x}.onnx, and all that are trained and exported in their form: the canvas's size and the
number of classes are read from the graph.  Not read: exports that decode boxes themselves (`--decode_in_inference`), a
fourth level of cells (P6), and networks from before version 0.2, whose photos were normalised (nothing in the graph
tells them apart).

A photo is as large as fits into the top left of a canvas, the rest grey.  As its authors' `preproc` does: blue, green
and red from 0 to 255; bilinear between the four nearest pixels, whatever the scale (OpenCV's INTER_LINEAR, which does
not average when it makes a photo smaller).

As in their `yolox/utils/boxes.py` the canvas is cut into cells of 8, 16 and 32 pixels a side, and each cell has one
row: where the middle of a box lies from the cell's corner, in cells; the logarithms of its width and height, in cells;
whether something is there; and which class it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capscore import files
from tellapart import onnx
from tellapart.data.media import clips
from tellapart.detectors.detector import BadDetector, Detections, Failed, Floats, Numbers, settings, sure_ones
from tellapart.features.extracted import safe_name
from tellapart.hub import reason

GREY = 114
Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Letterboxed:
    """canvas       (H, W, 3) BGR
    photo_size   height and width of the photo, upright
    ratio        canvas pixels for a pixel of the photo
    sha256       of the file's bytes
    """

    canvas: NDArray[np.uint8]
    photo_size: Size
    ratio: float
    sha256: str


def letterboxed(source: clips.Source, size: Size) -> Letterboxed:
    """A photo on a canvas of this size."""
    image, sha256 = clips.upright(source)
    canvas, ratio = letterbox(np.asarray(image), size)
    return Letterboxed(canvas, (image.height, image.width), ratio, sha256)


def letterbox(pixels: NDArray[np.uint8], size: Size) -> tuple[NDArray[np.uint8], float]:
    """pixels (h, w, 3) RGB -> the canvas (H, W, 3) BGR, and how many of its pixels are one of the photo's"""
    height, width = pixels.shape[:2]
    ratio = min(size[0] / height, size[1] / width)
    canvas = np.full((*size, 3), GREY, np.uint8)
    resized = resize(pixels, (max(1, int(height * ratio)), max(1, int(width * ratio))))
    canvas[: resized.shape[0], : resized.shape[1]] = resized[..., ::-1]
    return canvas, ratio


def resize(pixels: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """Bilinear.  Only the pixels that are looked at are turned into floats: a photo may be large."""
    sides = zip(pixels.shape[:2], size, strict=True)
    (top, bottom, down), (left, right, across) = (_neighbours(*side) for side in sides)
    shares = (1 - across)[:, None], across[:, None]
    upper, lower = (pixels[rows][:, left] * shares[0] + pixels[rows][:, right] * shares[1] for rows in (top, bottom))
    mixed = upper * (1 - down)[:, None, None] + lower * down[:, None, None]
    return mixed.round().astype(np.uint8)


def _neighbours(side: int, resized: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """For each pixel of a resized side the two it lies between, and how far it is on the way to the second."""
    place = ((np.arange(resized) + 0.5) * (side / resized) - 0.5).clip(0, side - 1)
    first = place.astype(np.int64)
    return first, np.minimum(first + 1, side - 1), (place - first).astype(np.float32)


STRIDES = (8, 16, 32)


@lru_cache(maxsize=8)
def cells(size: Size) -> Floats:
    """(A, 3): column, row and side in pixels of each cell of a canvas, in the order of the network's rows"""
    parts = []
    for stride in STRIDES:
        rows, columns = np.indices((size[0] // stride, size[1] // stride))
        parts.append(np.stack([columns.ravel(), rows.ravel(), np.full(rows.size, stride)], 1))
    grid: Floats = np.concatenate(parts).astype(np.float32)
    return grid


def decode(raw: Floats, size: Size) -> tuple[Floats, Floats, Numbers]:
    """raw (A, 5 + C) -> boxes (A, 4) in pixels of the canvas, scores (A,) and the likeliest class of each (A,)"""
    grid = cells(size)
    corner, stride = grid[:, :2], grid[:, 2:]
    middle, half = (raw[:, :2] + corner) * stride, np.exp(raw[:, 2:4]) * stride / 2
    classes: Numbers = raw[:, 5:].argmax(1)
    scores: Floats = raw[:, 4] * raw[np.arange(len(raw)), 5 + classes]
    return np.concatenate([middle - half, middle + half], 1), scores, classes


_MAX_BYTES = 1 << 30  # of a file; yolox_x has 400 MB
_LARGEST = 2048  # pixels of a canvas's side
_FARTHEST = 30  # cells from its cell that a box may be, and the logarithm of its side; networks stay below 5


class Yolox:
    """`load` makes one.

    size      height and width of the canvas that it takes
    classes   how many it knows
    """

    def __init__(self, file: Path, data: bytes):
        self.file, self.name = file, safe_name(file.stem)
        self.sha256 = hashlib.sha256(data).hexdigest()
        self._session = onnx.session(data, str(file))
        self._input, self.size = self._check_input()
        self.classes = self._check_output()
        self._run(np.full((*self.size, 3), GREY, np.uint8))  # another layout shows at once, before photos are read

    @property
    def identity(self) -> dict[str, Any]:
        photos = {"name": "yolox", "weights_sha256": self.sha256, "image_size": list(self.size)}
        return photos | settings(self.classes)

    def read(self, source: clips.Source) -> Letterboxed:
        return letterboxed(source, self.size)

    def __call__(self, photo: Letterboxed) -> Detections:
        try:
            raw = self._run(photo.canvas)
        except BadDetector as error:
            raise Failed(self.name, error.reason) from None
        corners, scores, classes = decode(raw, self.size)
        height, width = photo.photo_size
        sides = np.array([width, height, width, height], np.float32) * np.float32(photo.ratio)
        return sure_ones(corners / sides, scores, classes)  # none in the grey beside the photo

    def numbers_of(self, classes: Sequence[str]) -> dict[int, int]:
        """The file has no names; as many classes are taken for these, in this order."""
        if self.classes != len(classes):
            raise BadDetector(self.file, f"knows {self.classes} classes, and objects are checked by {len(classes)}.")
        return {number: number for number in range(self.classes)}

    def _check_input(self) -> tuple[str, Size]:
        inputs = self._session.get_inputs()
        shape = inputs[0].shape if len(inputs) == 1 else []
        if len(shape) != 4 or shape[1] != 3 or inputs[0].type != "tensor(float)":
            raise BadDetector(self.file, "is no YOLOX export: one input (1, 3, height, width) was expected.")
        if isinstance(shape[0], int) and shape[0] != 1:
            raise BadDetector(self.file, f"takes {shape[0]} photos at once; export it for one.")
        height, width = shape[2:]
        if not isinstance(height, int) or not isinstance(width, int):
            raise BadDetector(self.file, "does not say how large photos are to be; export it with a fixed size.")
        step = max(STRIDES)
        if not all(step <= side <= _LARGEST and side % step == 0 for side in (height, width)):
            why = f"takes photos of {width} x {height} pixels; multiples of {step} up to {_LARGEST} can be read."
            raise BadDetector(self.file, why)
        return inputs[0].name, (height, width)

    def _check_output(self) -> int:
        """The number of classes."""
        rows, outputs = len(cells(self.size)), self._session.get_outputs()
        shape = outputs[0].shape if len(outputs) == 1 else []
        fits = len(shape) == 3 and (shape[1] == rows or not isinstance(shape[1], int))
        if not fits or not isinstance(shape[2], int) or shape[2] < 6:
            shapes = ", ".join(f"({', '.join(map(str, output.shape))})" for output in outputs) or "none"
            why = f"is no YOLOX export: one output (1, {rows}, 5 + classes) was expected, not {shapes}."
            raise BadDetector(self.file, why)
        return int(shape[2]) - 5

    def _run(self, canvas: NDArray[np.uint8]) -> Floats:
        """(A, 5 + C), checked"""
        image = canvas.transpose(2, 0, 1)[None].astype(np.float32)
        try:
            (output,) = self._session.run(None, {self._input: image})
        except Exception as error:  # onnxruntime has a class of its own for each way to fail
            raise BadDetector(self.file, f"cannot be run ({reason(error)[:200]}).") from None
        expected = (1, len(cells(self.size)), 5 + self.classes)
        if output.shape != expected or output.dtype != np.float32:
            raise BadDetector(self.file, f"is no YOLOX export: it gives {output.shape} and not {expected}.")
        raw: Floats = output[0]
        if not np.isfinite(raw).all():
            raise BadDetector(self.file, "gives numbers that are not finite; the file may be damaged.")
        if np.abs(raw[:, :4]).max() > _FARTHEST:
            raise BadDetector(self.file, "gives boxes in another layout; export it without --decode_in_inference.")
        if raw[:, 4:].min() < 0 or raw[:, 4:].max() > 1:
            raise BadDetector(self.file, "is no YOLOX export: its scores are not between 0 and 1.")
        return raw


def load(file: str | Path) -> Yolox:
    """A detector from a file; refuses what is none."""
    file = Path(file)
    data = files.read_bytes(file, most=_MAX_BYTES)
    try:
        if onnx.reads_other_files(data):
            raise BadDetector(file, "keeps weights in another file, which is not read.")
    except ValueError as error:
        raise BadDetector(file, f"is damaged, or is no ONNX file ({error}).") from None
    return Yolox(file, data)
