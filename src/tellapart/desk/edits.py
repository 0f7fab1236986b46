"""Changes to a file as splices: all other bytes stay as they are, and the change can be taken back exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Edit(NamedTuple):
    start: int
    end: int  # of the bytes that are replaced; `start` where nothing is
    data: bytes


def apply(data: bytes, edits: Sequence[Edit]) -> bytes:
    """The edits must not overlap; of several at one place, the first comes first."""
    parts, place = [], 0
    for edit in sorted(edits, key=lambda edit: edit.start):  # stable
        parts += [data[place : edit.start], edit.data]
        place = edit.end
    return b"".join([*parts, data[place:]])


def inverse(data: bytes, edits: Sequence[Edit]) -> list[Edit]:
    """What makes `data` again of `apply(data, edits)`."""
    back, shift = [], 0
    for edit in sorted(edits, key=lambda edit: edit.start):
        start = edit.start + shift
        back.append(Edit(start, start + len(edit.data), data[edit.start : edit.end]))
        shift += len(edit.data) - (edit.end - edit.start)
    return back
