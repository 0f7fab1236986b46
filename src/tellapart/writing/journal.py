"""What `write` changed, so that `--undo` can take it back: a line for each change, on the disk before the change is."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tellapart import files
from tellapart.data.media.clips import named_as_clip
from tellapart.data.media.identity import picture_sha256
from tellapart.data.media.photos import PHOTO_SUFFIXES
from tellapart.errors import UserError, unexpected
from tellapart.writing import edits
from tellapart.writing.edits import Edit

_WRITTEN = (".xmp", ".txt", *PHOTO_SUFFIXES)


@dataclass(frozen=True)
class Change:
    file: Path  # absolute
    before: str | None  # SHA-256; none: there was no such file
    after: str
    back: list[Edit]  # makes what was there of what was written
    time: int | None  # when what was there had been modified, in nanoseconds


class Journal:
    """Beside the captions; only one process uses it at a time."""

    def __init__(self, captions: Path):
        self.path = captions.with_name(f"{captions.name}.journal")
        self.roots = [files.real(Path()), files.real(captions).parent]  # where what nothing else vouches for may lie
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
        time = None if before is None else file.stat().st_mtime_ns
        change = Change(file, None if before is None else _sha256(before), _sha256(after), back, time)
        files.append(self.path, _line(change))
        self.changes.append(change)
        self._written.add((str(file), change.after))
        files.replace(file, after)

    def undo(self, captioned: Callable[[Path], bool], *, dry_run: bool = False) -> tuple[list[Path], list[str]]:
        """Take back all changes, the last first: the files that are as they were, and sentences on the others.

        captioned  whether a file is a photo whose caption these are: outside of our roots, only such are believed in
        """
        stay, problems, done, media = list[Change](), list[str](), dict[Path, None](), _Media(captioned)
        for change in reversed(self.changes):
            try:
                self._check(change, media)
                if not dry_run:
                    _take_back(change)
                done[change.file] = None
            except UserError as error:
                stay.insert(0, change)
                problems.append(str(error))
            except Exception as error:
                stay.insert(0, change)
                problems.append(str(unexpected(change.file, error)))
        if not dry_run and stay:
            files.replace(self.path, b"".join(map(_line, stay)))
        elif not dry_run:
            self.path.unlink()
        return [file for file in done if file not in {change.file for change in stay}], problems

    def _check(self, change: Change, media: _Media) -> None:
        """That it is of a photo that may be written for: the journal may be a stranger's."""
        file, photos = change.file, media.of(change.file)
        if not photos:
            raise UserError(f"{file}: there is no photo that it belongs to, so it is left as it is.")
        if files.real(file.parent) != file.parent:
            raise UserError(f"{file}: its folder has become a link, so it is left as it is.")
        if not any(file.is_relative_to(root) for root in self.roots) and not any(map(media.captioned, photos)):
            raise UserError(
                f"{file}: is outside the current folder and that of the captions, so it is left as it is; run the "
                "command in its folder."
            )

    def _change(self, line: bytes, number: int) -> Change:
        try:
            row: dict[str, Any] = json.loads(line)
            back = [Edit(start, end, base64.b64decode(data, validate=True)) for start, end, data in row["back"]]
            change = Change(Path(row["file"]), row["before"], row["after"], back, row["time"])
            if not all(isinstance(place, int) for edit in back for place in edit[:2]):
                raise ValueError
            if not isinstance(change.after, str) or not isinstance(change.before, str | None):
                raise ValueError
            if not isinstance(change.time, int | None) or not 0 <= (change.time or 0) < 1 << 63:
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
            raise UserError(f"{self.path}: line {number} is not of a journal of `tellapart write`.") from None
        if not change.file.is_absolute() or change.file.suffix.lower() not in _WRITTEN:
            raise UserError(f"{self.path}: line {number} names a file that `tellapart write` never writes.")
        return change


class _Media:
    """The photos and clips that files belong to."""

    def __init__(self, captioned: Callable[[Path], bool]):
        self.captioned = captioned
        self._in: dict[Path, dict[str, list[Path]]] = {}  # folder -> stem -> those with it

    def of(self, file: Path) -> list[Path]:
        if file.suffix.lower() in PHOTO_SUFFIXES:
            return [file]
        long = file.with_suffix("")
        if files.is_file(long) and (_is_media(long) or self.captioned(long)):
            return [long]
        return self._folder(file.parent).get(file.stem, [])

    def _folder(self, folder: Path) -> dict[str, list[Path]]:
        if folder not in self._in:
            stems = self._in[folder] = {}
            for name in os.listdir(folder) if files.is_folder(folder) else ():  # noqa: PTH208 - names
                if _is_media(Path(name)):
                    stems.setdefault(Path(name).stem, []).append(folder / name)
        return self._in[folder]


def _is_media(path: Path) -> bool:
    return path.suffix.lower() in PHOTO_SUFFIXES or named_as_clip(path)


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
    if _is_media(file) and (change.before is None or picture_sha256(before) != picture_sha256(now or b"")):
        raise UserError(f"{file}: `tellapart write` never changed this picture, so it is left as it is.")
    if change.before is not None:
        files.replace(file, before)
        if change.time is not None:
            os.utime(file, ns=(file.stat().st_atime_ns, change.time))
        return
    try:
        file.unlink()
    except OSError as error:
        raise UserError(f"{file}: the file cannot be removed ({error.strerror}).") from None


def _line(change: Change) -> bytes:
    back = [(start, end, base64.b64encode(data).decode("ascii")) for start, end, data in change.back]
    row = {"file": str(change.file), "before": change.before, "after": change.after, "back": back, "time": change.time}
    return (json.dumps(row) + "\n").encode("ascii")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
