"""What `write` changed, so that `--undo` can take it back: a line for each change, on the disk before the change is."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tellapart import files
from tellapart.data.media.photos import PHOTO_SUFFIXES
from tellapart.errors import UserError
from tellapart.writing import edits
from tellapart.writing.edits import Edit

_WRITTEN = (".xmp", ".txt", *PHOTO_SUFFIXES)


@dataclass(frozen=True)
class Change:
    file: Path  # absolute
    before: str | None  # SHA-256; none: there was no such file
    after: str
    back: list[Edit]  # makes what was there of what was written


class Journal:
    """Beside the captions; only one process uses it at a time."""

    def __init__(self, captions: Path):
        self.path = captions.with_name(f"{captions.name}.journal")
        self.changes: list[Change] = []
        self._written: set[tuple[str, str]] = set()

    @contextmanager
    def held(self) -> Iterator[None]:
        with files.held_file(self.path, "another process writes these captions.") as held:
            whole = b"".join(line + b"\n" for line in self.read())
            if self.path.stat().st_size != len(whole):  # a kill cut off the last line, before its change was made
                held.replace(whole)
            yield

    def read(self) -> list[bytes]:
        lines = files.read_lines(self.path)
        self.changes = [self._change(line, number) for number, line in enumerate(lines, start=1)]
        self._written = {(str(change.file), change.after) for change in self.changes}
        return lines

    def wrote(self, file: Path, data: bytes) -> bool:
        """Whether the file is as we left it."""
        return (str(file), _sha256(data)) in self._written

    def change(self, file: Path, before: bytes | None, after: bytes, made: Sequence[Edit]) -> None:
        """Note it, then make it."""
        back = [] if before is None else edits.inverse(before, made)
        change = Change(file, None if before is None else _sha256(before), _sha256(after), back)
        files.append(self.path, _line(change))
        self.changes.append(change)
        self._written.add((str(file), change.after))
        files.replace(file, after)

    def undo(self) -> tuple[int, list[str]]:
        """Take back all changes, the last first: how many files are as they were, and sentences on the others."""
        stay, problems, done = list[Change](), list[str](), set[Path]()
        for change in reversed(self.changes):
            try:
                _take_back(change)
                done.add(change.file)
            except UserError as error:
                stay.insert(0, change)
                problems.append(str(error))
        if stay:
            files.replace(self.path, b"".join(map(_line, stay)))
        else:
            self.path.unlink()
        return len(done - {change.file for change in stay}), problems

    def _change(self, line: bytes, number: int) -> Change:
        try:
            row: dict[str, Any] = json.loads(line)
            back = [Edit(start, end, base64.b64decode(data, validate=True)) for start, end, data in row["back"]]
            change = Change(Path(row["file"]), row["before"], row["after"], back)
            if not all(isinstance(place, int) for edit in back for place in edit[:2]):
                raise ValueError
            if not isinstance(change.after, str) or not isinstance(change.before, str | None):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
            raise UserError(f"{self.path}: line {number} is not of a journal of `tellapart write`.") from None
        if not change.file.is_absolute() or change.file.suffix.lower() not in _WRITTEN:
            raise UserError(f"{self.path}: line {number} names a file that `tellapart write` never writes.")
        return change


def _take_back(change: Change) -> None:
    file = change.file
    files.refuse_shared(file)
    now = files.read_bytes(file) if os.path.lexists(file) else None
    found = None if now is None else _sha256(now)
    if found == change.before:  # it was never made, or has been taken back
        return
    before = b"" if now is None else edits.apply(now, change.back)
    if file.is_symlink() or found != change.after or (change.before is not None and _sha256(before) != change.before):
        raise UserError(f"{file}: the file has changed since it was written, so it is left as it is.")
    if change.before is not None:
        files.replace(file, before)
        return
    try:
        file.unlink()
    except OSError as error:
        raise UserError(f"{file}: the file cannot be removed ({error.strerror}).") from None


def _line(change: Change) -> bytes:
    back = [(start, end, base64.b64encode(data).decode("ascii")) for start, end, data in change.back]
    row = {"file": str(change.file), "before": change.before, "after": change.after, "back": back}
    return (json.dumps(row) + "\n").encode("ascii")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
