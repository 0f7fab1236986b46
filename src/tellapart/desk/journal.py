"""What `write` changed, so that `--undo` can take it back: a line for each change, on the disk before the change is."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from capscore import files
from capscore.errors import UserError
from tellapart.data.media.clips import named_as_clip
from tellapart.data.media.identity import picture_sha256
from tellapart.data.media.photos import PHOTO_SUFFIXES
from tellapart.desk import edits, in_file, xmp
from tellapart.desk.edits import Edit
from tellapart.desk.packet import BadPacket
from tellapart.desk.xmp import Merged
from tellapart.errors import unexpected

_WRITTEN = (".xmp", ".txt", *PHOTO_SUFFIXES)


@dataclass(frozen=True)
class Change:
    file: Path  # absolute
    before: str | None  # SHA-256; none: there was no such file
    after: str
    back: list[Edit]  # makes what was there of what was written
    time: int | None  # when what was there had been modified, in nanoseconds
    replaced: bool  # a person's text


class Undone(NamedTuple):
    restored: list[Path]  # as they were
    withdrawn: list[Path]  # changed by others since: only our texts were taken out
    problems: list[str]  # sentences


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

    def change(self, file: Path, before: bytes | None, made: Merged) -> None:
        """Note it, then make it."""
        back, after = [] if before is None else edits.inverse(before, made.edits), made.data
        time = None if before is None else file.stat().st_mtime_ns
        change = Change(file, None if before is None else _sha256(before), _sha256(after), back, time, made.replaced)
        files.append(self.path, _line(change))
        self.changes.append(change)
        self._written.add((str(file), change.after))
        files.replace(file, after)

    def undo(self, captioned: Callable[[Path], bool], *, dry_run: bool = False) -> Undone:
        """Take back all changes, the last first.

        captioned  whether a file is a photo whose caption these are: outside of our roots, only such are believed in
        """
        undone, stay, media = Undone([], [], []), list[Change](), _Media(captioned)
        files_done, withdrawn = dict[Path, None](), dict[Path, None]()
        for change in reversed(self.changes):
            try:
                self._check(change, media)
                if change.file in withdrawn or (dry_run and change.file in files_done):
                    continue
                if _take_back(change, dry_run=dry_run):
                    files_done[change.file] = None
                else:
                    withdrawn[change.file] = None
            except UserError as error:
                stay.insert(0, change)
                undone.problems.append(str(error))
            except Exception as error:
                stay.insert(0, change)
                undone.problems.append(str(unexpected(change.file, error)))
        if not dry_run and stay:
            files.replace(self.path, b"".join(map(_line, stay)))
        elif not dry_run:
            self.path.unlink()
        left = {change.file for change in stay}
        undone.restored.extend(file for file in files_done if file not in left and file not in withdrawn)
        undone.withdrawn.extend(withdrawn)
        return undone

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
            change = Change(Path(row["file"]), row["before"], row["after"], back, row["time"], row["replaced"])
            if not all(isinstance(place, int) for edit in back for place in edit[:2]):
                raise ValueError
            if not isinstance(change.after, str) or not isinstance(change.before, str | None):
                raise ValueError
            if not isinstance(change.replaced, bool):
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


def _take_back(change: Change, *, dry_run: bool) -> bool:
    """Whether the file is as it was.  Of one that was changed since, our texts are taken out, and the rest stays."""
    file = change.file
    files.refuse_link(file)
    files.refuse_shared(file)
    now = files.read_bytes(file) if os.path.lexists(file) else None
    found = None if now is None else _sha256(now)
    if found == change.before:  # it was never made, or has been taken back
        return True
    if now is None or found != change.after:
        after = None if now is None or change.replaced else _without_ours(file, now)
        if after is None:
            raise UserError(f"{file}: the file has changed since it was written, so it is left as it is.")
        if not dry_run:
            files.replace(file, after)
        return False
    before = edits.apply(now, change.back)
    if change.before is not None and _sha256(before) != change.before:
        raise UserError(f"{file}: what it was like before is not in the journal, so it is left as it is.")
    if _is_media(file) and (change.before is None or picture_sha256(before) != picture_sha256(now)):
        raise UserError(f"{file}: `tellapart write` never changed this picture, so it is left as it is.")
    if not dry_run:
        _restore(change, before)
    return True


def _restore(change: Change, before: bytes) -> None:
    try:
        if change.before is None:
            change.file.unlink()
            return
        files.replace(change.file, before)
        if change.time is not None:
            os.utime(change.file, ns=(change.file.stat().st_atime_ns, change.time))
    except OSError as error:
        raise UserError(f"{change.file}: the file cannot be restored ({error.strerror}).") from None


def _without_ours(file: Path, now: bytes) -> bytes | None:
    """Without the texts that we wrote and our mark; None where there are none to be seen."""
    nothing, how = xmp.Text({xmp.DEFAULT: ""}, False, ""), xmp.How(withdraw=True)
    try:
        if file.suffix.lower() == ".xmp":
            merged = xmp.merge(now, nothing, how)
        elif _is_media(file):
            merged = in_file.merge(now, str(file), nothing, how)
        else:
            return None
    except BadPacket as error:
        raise UserError(f"{file}: has changed since it was written ({error}), so it is left as it is.") from None
    return merged.data if merged.edits else None


def _line(change: Change) -> bytes:
    back = [(start, end, base64.b64encode(data).decode("ascii")) for start, end, data in change.back]
    row = {"file": str(change.file), "before": change.before, "after": change.after, "back": back, "time": change.time}
    row["replaced"] = change.replaced
    return (json.dumps(row) + "\n").encode("ascii")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
