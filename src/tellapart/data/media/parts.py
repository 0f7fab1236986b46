"""A part of a clip as an item of its own, by a name such as `trip.mp4#t=12.5,20`: seconds, as in addresses on the web.

All that takes the name of a file takes such a name.  A file that really has such a name is taken for itself.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import NamedTuple

_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_PART = re.compile(rf"(.+)#t=({_NUMBER})(?:,({_NUMBER}))?", re.DOTALL)


class Part(NamedTuple):
    file: str
    start: float
    end: float  # infinity: up to the end of the clip


def part(name: str | os.PathLike[str]) -> Part | None:
    """None where a name is that of a whole file.

    >>> part("trip.mp4#t=12.5,20")
    Part(file='trip.mp4', start=12.5, end=20.0)
    """
    found = _PART.fullmatch(os.fspath(name)) if "#t=" in os.fspath(name) else None
    if found is None or os.path.lexists(name):
        return None
    start, end = float(found[2]), float(found[3]) if found[3] else math.inf
    return Part(found[1], start, max(start, end))


def file_of(name: str | os.PathLike[str]) -> Path:
    """The file that an item is in."""
    found = part(name)
    return Path(name if found is None else found.file)


def named(file: str | os.PathLike[str], start: float, end: float) -> str:
    """
    >>> named("trip.mp4", 12.5, 20)
    'trip.mp4#t=12.5,20'
    """
    return f"{os.fspath(file)}#t={_seconds(start)},{_seconds(end)}"


def _seconds(time: float) -> str:
    return f"{time:.3f}".rstrip("0").rstrip(".")
