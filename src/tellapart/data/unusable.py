"""Photos that could not be used, named on the screen: the first few of a kind as they come, the others counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from tellapart.errors import BadPhoto

_NAMED = 5  # of those with the same reason


class Unusable:
    """say  prints a line"""

    def __init__(self, report: Callable[[str], None]):
        self._report, self._counts, self._reasons = report, Counter[str](), dict[str, str]()

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, file: str, reason: str) -> None:
        kind = re.sub(r"\d+", "#", reason)  # "truncated (17 bytes ...": a number makes no other reason
        self._counts[kind] += 1
        self._reasons[kind] = reason
        if self._counts[kind] <= _NAMED:
            self._report(str(BadPhoto(file, reason)))

    def rest(self, hint: str = "") -> None:
        """Those that were not named; hint: where they are"""
        for kind, count in self._counts.items():
            if count == _NAMED + 1:
                self._report(f"1 more photo: {self._reasons[kind]}{hint}")
            elif count > _NAMED:
                self._report(f"{count - _NAMED:,} more photos: {self._reasons[kind]}{hint}")
