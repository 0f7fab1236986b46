"""A photo as YOLOX takes it: as large as fits into the top left of a canvas, the rest grey.

As its authors' `preproc` does: blue, green and red from 0 to 255; bilinear between the four nearest pixels, whatever
the scale (OpenCV's INTER_LINEAR, which does not average when it makes a photo smaller).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tellapart.data.media import clips

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


def read(source: str | os.PathLike[str] | Image.Image, size: Size) -> Letterboxed:
    """A photo on a canvas of this size."""
    image, sha256 = clips.upright(source)
    pixels = np.asarray(image)
    canvas, ratio = letterbox(pixels, size)
    return Letterboxed(canvas, (pixels.shape[0], pixels.shape[1]), ratio, sha256)


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
    (top, bottom, down), (left, right, across) = (
        _neighbours(*sides) for sides in zip(pixels.shape[:2], size, strict=True)
    )
    upper, lower = (
        pixels[rows][:, left] * (1 - across)[:, None] + pixels[rows][:, right] * across[:, None]
        for rows in (top, bottom)
    )
    mixed = upper * (1 - down)[:, None, None] + lower * down[:, None, None]
    return mixed.round().astype(np.uint8)


def _neighbours(side: int, resized: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """For each pixel of a resized side the two it lies between, and how far it is on the way to the second."""
    place = ((np.arange(resized) + 0.5) * (side / resized) - 0.5).clip(0, side - 1)
    first = place.astype(np.int64)
    return first, np.minimum(first + 1, side - 1), (place - first).astype(np.float32)
