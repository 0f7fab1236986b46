"""Any picture mode to RGB, block by block: the memory that it takes does not grow with the picture."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

RGB_BYTES = 4  # of a pixel, as Pillow keeps it
_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}  # of a pixel; else 4
_BLOCK = 1 << 20  # pixels that are converted together

Range = tuple[float, float]
Box = tuple[int, int, int, int]


def bytes_per_pixel(mode: str) -> int:
    return _BYTES.get(mode, 4)


def bytes_held(size: tuple[int, int], per_pixel: int) -> int:
    """By a picture in memory: its pixels, and where each row begins, which counts when rows are short."""
    return size[1] * (size[0] * per_pixel + 8)


def is_rgb(image: Image.Image) -> bool:
    return image.mode == "RGB" and "transparency" not in image.info


def shrinking(size: tuple[int, int], most: int) -> int:
    """By which whole number both sides are divided so that about `most` pixels are left; 1 for most photos."""
    factor = math.isqrt(max(size[0] * size[1] - 1, 0) // most) + 1
    while math.prod(shrunk(size, factor)) > most:  # a side of a few pixels hardly gets shorter
        factor += 1
    return factor


def shrunk(size: tuple[int, int], factor: int) -> tuple[int, int]:
    return math.ceil(size[0] / factor), math.ceil(size[1] / factor)


def to_rgb(image: Image.Image, most: int) -> Image.Image:
    """The picture in RGB, on white where it is transparent; one with more than `most` pixels is averaged down."""
    factor = shrinking(image.size, most)
    if is_rgb(image):
        return image if factor == 1 else image.reduce(factor)
    values = _range(image) if image.mode in ("I", "F") else (0.0, 255.0)
    if image.width * image.height <= _BLOCK and factor == 1:
        return _block_to_rgb(image, values)
    photo = Image.new("RGB", shrunk(image.size, factor))
    for box in _blocks(image.size, factor):
        block = _block_to_rgb(image.crop(box), values)
        photo.paste(block if factor == 1 else block.reduce(factor), (box[0] // factor, box[1] // factor))
    return photo


def _blocks(size: tuple[int, int], factor: int) -> Iterator[Box]:
    """Of about _BLOCK pixels each; all but the last of a row and of a column have sides that `factor` divides."""
    width, height = size
    wide = max(min(width, 4096) // factor, 1) * factor
    high = max(_BLOCK // wide // factor, 1) * factor
    for top in range(0, height, high):
        for left in range(0, width, wide):
            yield left, top, min(left + wide, width), min(top + high, height)


def _block_to_rgb(image: Image.Image, values: Range) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _to_eight_bits(image, values)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, "white")  # what a viewer shows behind transparent parts
        return Image.alpha_composite(paper, image).convert("RGB")
    return image.convert("RGB")


def _to_eight_bits(image: Image.Image, values: Range) -> Image.Image:
    """Deep greyscale.  Pillow's own conversion clips at 255 and would make such a photo white."""
    pixels = np.asarray(image).astype(np.float32)
    if image.mode.startswith("I;16"):
        pixels /= 257  # 65535 -> 255
    else:
        low, high = values
        pixels = np.nan_to_num(pixels, nan=low).clip(low, high)
        if not (low >= 0 and 1 < high <= 255):  # no range is written in the file: use the photo's own
            pixels = (pixels - low) * (255 / max(high - low, 1e-12))
    return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8)).convert("RGB")


def _range(image: Image.Image) -> Range:
    """The least and the largest number among the pixels, but for those that are no numbers."""
    low, high = math.inf, -math.inf
    for box in _blocks(image.size, 1):
        pixels: NDArray[np.float32] = np.asarray(image.crop(box)).astype(np.float32)
        finite = pixels[np.isfinite(pixels)].clip(-1e38, 1e38)  # so that the range is finite too
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return (low, high) if low <= high else (0.0, 0.0)
