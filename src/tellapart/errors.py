"""Errors that a user can fix: one clear sentence that names the file or the field, and never a traceback."""

from __future__ import annotations

import traceback
from pathlib import Path

from capscore.errors import UserError
from capscore.printable import printable


class BadPhoto(UserError):
    """One photo cannot be used.  In a batch the others go on, and the command exits 1.

    Example:
        >>> try:
        ...     caption = tellapart.load().caption("holiday/gone.jpg")
        ... except tellapart.BadPhoto as error:
        ...     print(error.reason)
        there is no such file
    """

    def __init__(self, file: object, reason: str):
        super().__init__(f"{printable(str(file))}: {reason}")
        self.file, self.reason = str(file), reason


def unexpected(file: object, error: Exception) -> BadPhoto:
    """A fault of ours with one photo or file: named with its kind, and the others go on."""
    reason = printable(f"{type(error).__name__}: {error}").splitlines() or [""]
    return BadPhoto(file, f"tellapart has an error here, please report it ({reason[0][:200]})")


def fault(error: Exception) -> str:
    """An error that nobody expected, and where it was raised; not what it says, which may be somebody's secret."""
    places = [f"{Path(place.filename).name}:{place.lineno}" for place in traceback.extract_tb(error.__traceback__)]
    return f"the program has an error: {type(error).__name__} at {' '.join(places[-4:])}"
