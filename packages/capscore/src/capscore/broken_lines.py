"""Lines of a file of captions that cannot be used: each is named by its number with the reason, and the rest is used.

People edit such files by hand.  One slip must not cost the other rows, nor the words in the line itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

Row = TypeVar("Row")
_MOST = 1000  # in a file with more it is no slip


@dataclass(frozen=True)
class BrokenLine:
    number: int  # from 1
    reason: str
    text: bytes

    def __str__(self) -> str:
        return f"line {self.number}: {self.reason}"


def json_rows(lines: Iterable[bytes], row: Callable[[object], Row]) -> tuple[list[Row], list[BrokenLine]]:
    """The rows of JSON lines; `row` makes one of a value, or says in a ValueError why it is none."""
    rows, broken = list[Row](), list[BrokenLine]()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(row(json.loads(line)))
        except (ValueError, RecursionError) as error:
            broken.append(BrokenLine(number, reason_of(error), line))
    return rows, broken


def are_slips(rows: int, broken: int) -> bool:
    """Or else it is a file of something else."""
    return broken <= min(rows, _MOST)


def reason_of(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"this is not JSON (column {error.colno}: {error.msg})"
        case UnicodeDecodeError():
            return "this is not UTF-8 text"
        case RecursionError():
            return "the JSON is nested too deeply"
    return str(error)
