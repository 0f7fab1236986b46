"""Photos in small, for pages: drawn anew, so that nothing else of a photo's file gets there."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

from tellapart.data.media import clips

LONG_SIDE = 320  # pixels of a thumbnail


def thumbnail(file: Path, long_side: int = LONG_SIDE) -> tuple[int, int, str]:
    """Width, height and data URL of a photo; BadPhoto where it cannot be read."""
    width, height, data = webp(file, long_side)
    return width, height, "data:image/webp;base64," + base64.b64encode(data).decode("ascii")


def webp(file: Path, long_side: int = LONG_SIDE) -> tuple[int, int, bytes]:
    """Width, height and bytes of a photo as a file of its own; BadPhoto where it cannot be read."""
    photo = clips.picture(file, at_least=long_side)
    photo.thumbnail((long_side, long_side))
    bare, data = Image.frombytes("RGB", photo.size, photo.tobytes()), io.BytesIO()  # the pixels and nothing else
    bare.save(data, "WEBP", quality=82)
    return photo.width, photo.height, data.getvalue()
