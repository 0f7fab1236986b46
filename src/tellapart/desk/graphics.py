"""Pictures that captions of photos do not fit: logos, charts, dividers, screenshots, drawings.

Names, sizes and colours only raise a suspicion.  It is enough to leave a picture to a person, who sees what it is.
"""

from __future__ import annotations

import re
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from tellapart.data.media import photos

_TINY = 40  # pixels of the longer side, below which a picture is no photo
_LONGEST = 4.0  # times as long as wide
_FLAT = 6.0  # standard deviation of the brightness
_ONE_COLOUR, _SAME_AS_BESIDE = 0.5, 0.6  # shares of pixels; 3 in 1,000 photos have both
_NAMES = re.compile(
    r"(?<![a-z])(?:logos?|logotype|wordmark|brand|icons?|favicon|sprites?|spacer|divider|separator|rule|bullet|arrows?|"
    r"buttons?|btn|badges?|banner|background|bg|pattern|texture|pixel|blank|transparent|charts?|graphs?|plots?|histogram|"
    r"diagrams?|flowchart|infographic|timeline|schematic|wireframe|mockup|screenshots?|screengrab|screencast|"
    r"screen|qr|qrcode|barcode|captcha|signature|placeholder|loading|spinner|maps?|table|formula|equation|drawing|illustration)"
    r"(?![a-z])"
)


def suspicion(file: str) -> str:
    """Why a caption may not fit a picture; nothing if it seems to be a photo.  BadPhoto: it cannot be read."""
    name = PurePath(file)
    if name.suffix.lower() == ".svg":
        return "is a drawing (SVG)"
    stem = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.stem).lower()
    if named := _NAMES.search(stem):
        return f"seems to be no photo (its name has {named[0]!r})"
    image, _ = photos.upright(file)
    width, height = image.size
    if max(width, height) < _TINY:
        return f"is tiny ({width} x {height})"
    if max(width, height) > _LONGEST * min(width, height):
        return f"has the shape of a divider or banner ({width} x {height})"
    pixels = np.asarray(image.convert("RGB"))[:4096, :4096]
    return _of_colours(pixels)


def _of_colours(pixels: NDArray[np.uint8]) -> str:
    """(H, W, 3)"""
    if float(pixels.mean(2).std()) < _FLAT and float(pixels.reshape(-1, 3).std(0).max()) < _FLAT:
        return "is of one colour"
    some = pixels[::2, ::2].astype(np.int64) >> 4
    counts = np.unique(some[..., 0] << 8 | some[..., 1] << 4 | some[..., 2], return_counts=True)[1]
    same = float((pixels[:, 1:] == pixels[:, :-1]).all(2).mean())
    if counts.max() / counts.sum() > _ONE_COLOUR and same > _SAME_AS_BESIDE:
        return "seems to be a chart, a logo, a drawing or a screenshot (large areas of one colour)"
    return ""
