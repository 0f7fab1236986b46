"""Thumbnails for pages: redrawn, so that nothing else of a photo's file gets there."""

from __future__ import annotations

import base64
import io
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from tellapart.data.media import clips

LONG_SIDE = 320  # pixels of a thumbnail


def thumbnail(file: Path, long_side: int = LONG_SIDE) -> tuple[int, int, str]:
    """Width, height and data URL of a photo; BadPhoto where it cannot be read."""
    width, height, data = webp(file, long_side)
    return width, height, _url(data)


def webp(file: Path, long_side: int = LONG_SIDE) -> tuple[int, int, bytes]:
    """Width, height and bytes of a photo as a file of its own; BadPhoto where it cannot be read."""
    return _encoded(clips.picture(file, at_least=long_side), long_side)


def strip(file: Path, frames: int = 6, long_side: int = 160) -> tuple[int, int, str, float]:
    """Frames of a clip evenly in time, side by side, as `thumbnail` gives a photo; and how much of the colours changes
    between two of them at most, from 0 to 1.  BadPhoto where it cannot be read."""
    with clips.open_clip(file) as clip:
        shown = [Image.fromarray(frame) for frame in clip.frames(clip.evenly(frames))]
    change = max(clips.colour_change(*map(np.asarray, pair)) for pair in pairwise(shown))
    for frame in shown:
        frame.thumbnail((long_side, long_side))
    width, height = shown[0].size
    joined = Image.new("RGB", (width * frames, height))
    for number, frame in enumerate(shown):
        joined.paste(frame, (number * width, 0))
    width, height, data = _encoded(joined, joined.width)
    return width, height, _url(data), change


def _url(data: bytes) -> str:
    return "data:image/webp;base64," + base64.b64encode(data).decode("ascii")


def _encoded(photo: Image.Image, long_side: int) -> tuple[int, int, bytes]:
    photo.thumbnail((long_side, long_side))
    bare, data = Image.frombytes("RGB", photo.size, photo.tobytes()), io.BytesIO()  # the pixels and nothing else
    bare.save(data, "WEBP", quality=82)
    return photo.width, photo.height, data.getvalue()
