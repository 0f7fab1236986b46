"""Several photos as one picture, each with its number, for models that take one picture at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

SHEET_PROMPT = "The picture shows several photos, each below its number; photo 1 is the first. "
_CELL, _LABEL = 384, 32  # pixels of a photo's longest side, and of the line with its number


def contact_sheet(photos: Sequence[Image.Image]) -> Image.Image:
    """Row by row from the top left; numbers from 1."""
    across = math.ceil(math.sqrt(len(photos)))
    down = math.ceil(len(photos) / across)
    sheet = Image.new("RGB", (across * _CELL, down * (_CELL + _LABEL)), "white")
    pen = ImageDraw.Draw(sheet)
    for number, photo in enumerate(photos):
        left, top = number % across * _CELL, number // across * (_CELL + _LABEL)
        small = photo.copy()
        small.thumbnail((_CELL, _CELL), Image.Resampling.BICUBIC)
        pen.text((left + 4, top + 4), str(number + 1), fill="black", font=ImageFont.load_default(_LABEL - 8))
        sheet.paste(small, (left, top + _LABEL))
    return sheet
