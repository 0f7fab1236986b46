"""Views of a photo: parts of it, half of them mirrored.  They reduce overfitting.

A captioner that sees the same photos again and again knows them; `scripts/by_heart.py` measures how well.

`caption --views` shows a captioner the whole photo, the whole photo mirrored, and the first of these views.
"""

from __future__ import annotations

from typing import NamedTuple

LEAST = 0.7  # of each side that a view shows: with less, much of what the references name is not in it
MOST = 16  # views of a photo that a captioner may be shown


class View(NamedTuple):
    """Where a view begins and ends, as shares of the photo's sides."""

    left: float
    top: float
    right: float
    bottom: float
    mirrored: bool


def view_of(sha256: str, number: int) -> View:
    """A view of the photo with these bytes: always the same one."""
    import numpy as np  # here, so that the options of commands are listed without it

    draw = np.random.default_rng([int(sha256, 16), number])
    width, height = draw.uniform(LEAST, 1, 2)
    left, top = draw.uniform(0, 1 - width), draw.uniform(0, 1 - height)
    return View(left, top, left + width, top + height, bool(draw.random() < 0.5))
