"""Captions of a file of captions into sidecars, texts beside the photos, or the photos' own files.

A photo is written for only if it still shows what was captioned.  A row that does not say what its photo showed could
name any file: it must be a photo below the folder of the captions or the current one.

Each change is noted in a journal beside the captions, on the disk before the change is, so that it can be taken back.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from capscore import files
from capscore.errors import UserError
from tellapart import journals
from tellapart.data.examples import places
from tellapart.data.media import clips
from tellapart.data.media.formats import RAW_SUFFIXES
from tellapart.data.media.identity import identify, picture_sha256
from tellapart.data.media.photos import PHOTO_SUFFIXES
from tellapart.data.media.photos import read_bytes as read_photo
from tellapart.desk import in_file, resume, xmp
from tellapart.desk.captions_file import CaptionsFile, Row, is_by_hand, key_of
from tellapart.desk.chatter import one_line
from tellapart.desk.xmp import MOST_BYTES, BadPacket, Edit, Merged, MergeOptions
from tellapart.errors import BadPhoto, unexpected

Kind = Literal["xmp", "txt", "in-file"]
Naming = Literal["auto", "file", "stem"]  # photo.jpg.xmp, photo.xmp, or what there is already
_WRITTEN = (".xmp", ".txt", *PHOTO_SUFFIXES)


@dataclass(frozen=True)
class Planned:
    """A photo and the change to its target."""

    photo: str  # as the captions name it
    target: Path  # absolute
    caption: str
    before: bytes | None
    merged: Merged

    @property
    def action(self) -> str:
        """withdraw: a person has written a text since, so ours is taken away again"""
        if self.merged.kept:
            return "withdraw" if self.merged.edits else "keep"
        return "write" if self.merged.edits else "unchanged"


@dataclass
class Captions:
    """The texts of each photo by language."""

    path: Path
    rows: dict[str, dict[str, Row]] = field(default_factory=dict)  # place -> language -> row
    failed: int = 0  # rows without a caption, or with one that a person rejected
    problems: list[str] = field(default_factory=list)  # a sentence for each line of the file that is no row

    @classmethod
    def read(cls, path: Path) -> Captions:
        file = CaptionsFile(files.regular(path), option="")
        captions = cls.of(path, file.rows)
        captions.problems = file.problems
        return captions

    @classmethod
    def of(cls, path: Path, rows: Iterable[Row]) -> Captions:
        """path  whose folder the photos may lie in, and beside which the journal is"""
        captions = cls(path)
        by_place: dict[tuple[str, str], list[Row]] = {}
        named = [row | {"file": captions._located(row["file"])} for row in rows]
        for row, place in zip(named, places([row["file"] for row in named]), strict=True):
            by_place.setdefault((place, str(row.get("language") or "")), []).append(row)
        for (place, language), of_photo in by_place.items():
            row = resume.chosen(of_photo)[-1]
            if one_line(row.get("caption", "")) and row.get("review") != "rejected":
                captions.rows.setdefault(place, {})[language] = row
            else:
                captions.failed += 1
        if not captions.rows:
            raise UserError(f"{path}: has no caption.")
        return captions

    def shown_by(self, file: Path) -> bool:
        """True for a photo of these, by what it shows and not by its name alone."""
        keys = _keys(self.rows.get(str(file), {}).values())
        return bool(keys) and all(key == identify(file).picture[:16] for key in keys)

    def _located(self, name: str) -> str:
        """As it is named from here, or else from the folder of the captions."""
        beside = self.path.parent / name
        return str(beside) if "\0" not in name and not os.path.lexists(name) and os.path.lexists(beside) else name


class Writer:
    def __init__(self, captions: Captions, kind: Kind, *, naming: Naming = "auto", replace: bool = False):
        self._captions, self._kind, self._naming, self._replace = captions, kind, naming, replace
        self._date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._taken: dict[Path, str] = {}  # target -> photo
        self._media_in = cache(_media_in)
        self.journal = Journal(captions.path)

    def run(self, *, dry_run: bool = False) -> Iterator[Planned | BadPhoto]:
        """In the order of the captions, each photo when it has been written; the journal must be held.

        What is wrong with one photo does not stop the others.
        """
        for place, rows in self._captions.rows.items():
            photo = next(iter(rows.values()))["file"]
            result: Planned | BadPhoto
            try:
                result = self._planned(photo, Path(place), rows)
                if result.merged.edits and not dry_run:
                    self.write(result)
            except BadPhoto as error:
                result = error
            except UserError as error:
                result = BadPhoto(photo, str(error).rstrip("."))
            except Exception as error:
                result = unexpected(photo, error)
            yield result

    def write(self, planned: Planned) -> None:
        """One photo, unless its target has changed meanwhile."""
        now = files.read_bytes(planned.target) if os.path.lexists(planned.target) else None
        if now != planned.before:
            raise UserError(f"{planned.target}: the file was changed meanwhile; run the command again.")
        self.journal.change(planned.target, planned.before, planned.merged)

    def _planned(self, photo: str, place: Path, rows: dict[str, Row]) -> Planned:
        self._check(photo, place, rows.values())
        target = self._target(photo, place)
        if target.is_symlink():
            raise BadPhoto(photo, f"{target} is a link, which is not written to")
        files.refuse_shared(target)
        before: bytes | None = None
        if self._kind != "in-file":
            before = files.read_bytes(target, most=MOST_BYTES) if os.path.lexists(target) else None
        elif target.suffix.lower() in RAW_SUFFIXES:
            raise BadPhoto(photo, "is a RAW photo, which is never written into; use --xmp")
        else:
            before = read_photo(target)
        texts = {language or xmp.DEFAULT: one_line(row["caption"]) for language, row in rows.items()}
        text = xmp.Text(texts, all(map(is_by_hand, rows.values())), self._date)
        options = MergeOptions(replace=True)
        if not self._replace:
            options = self._around(photo, place, target, before, text)
        try:
            merged = self._merged(before, photo, target, text, options)
        except BadPacket as error:
            raise BadPhoto(target, str(error)) from None
        return Planned(photo, target, next(iter(texts.values())), before, merged)

    def _around(self, photo: str, place: Path, target: Path, before: bytes | None, text: xmp.Text) -> MergeOptions:
        """People's texts and ours in the photo's file and its sidecars, beside the packet that is merged into."""
        inside = in_file.FileTexts() if clips.is_clip(place) else in_file.read(read_photo(place), photo)
        named = [place.with_name(f"{place.name}.xmp"), *([place.with_suffix(".xmp")] if self._has_short(place) else [])]
        sidecars = [file for file in named if file != target and file.is_file()]
        packets = [(place, packet) for packet in inside.packets]
        packets += [(file, files.read_bytes(file, most=MOST_BYTES)) for file in sidecars]
        if self._kind == "in-file":
            before = inside.packet
        elif inside.packet is not None:
            packets.append((place, inside.packet))
        noted = partial(xmp.noted, by_hand=text.by_hand)
        ours = frozenset(mark for file, packet in packets for mark in _looked(file, packet, noted))
        with suppress(BadPacket):  # then it is not merged into
            ours |= noted(before or xmp.EMPTY)
        options = MergeOptions(ours=ours)
        kept = [f"{where} in {place.name}" for where, written in inside.texts if not options.is_ours(written)]
        for file, packet in packets:
            kept += [f"{where} in {file.name}" for where in _looked(file, packet, partial(xmp.of_people, ours=ours))]
        return replace(options, kept=tuple(dict.fromkeys(kept)))

    def _check(self, photo: str, place: Path, rows: Iterable[Row]) -> None:
        """That it is a photo, and the one that was captioned."""
        keys = _keys(rows)
        picture = identify(photo).picture
        if any(key != picture[:16] for key in keys):
            raise BadPhoto(photo, "the picture has changed since it was captioned; caption it again")
        if keys:
            return
        if not any(place.is_relative_to(root) for root in self.journal.roots):
            raise BadPhoto(photo, "is outside the current folder and that of the captions, so it is left alone")
        if place.suffix.lower() not in PHOTO_SUFFIXES:
            raise BadPhoto(photo, "its name is not that of a photo")

    def _merged(self, before: bytes | None, photo: str, target: Path, text: xmp.Text, options: MergeOptions) -> Merged:
        if self._kind == "in-file" and before is not None:
            return in_file.merge(before, photo, text, options)
        if self._kind == "txt":
            return self._plain(before, target, next(iter(text.wanted.values())), options)
        merged = xmp.merge(before or xmp.EMPTY, text, options)
        # A file that is not there, or empty, becomes the whole packet.
        return merged if before or merged.kept else replace(merged, edits=[Edit(0, 0, merged.data)])

    def _plain(self, before: bytes | None, target: Path, caption: str, options: MergeOptions) -> Merged:
        existing, data = (before or b"").strip(), (caption + "\n").encode("utf-8")
        is_ours = not existing or existing == data.strip() or self.journal.wrote(target, before or b"")
        kept = [*options.kept, *([] if is_ours or options.replace else ["text"])]
        if kept or existing == data.strip():
            return Merged(before or b"", kept=kept)
        return Merged(data, [Edit(0, len(before or b""), data)])

    # Names

    def _target(self, photo: str, place: Path) -> Path:
        if self._kind == "in-file":
            return place
        suffix = f".{self._kind}"
        long, short = place.with_name(place.name + suffix), place.with_suffix(suffix)
        target = {"file": long, "stem": short}.get(self._naming) or self._by_what_is_there(photo, place, long, short)
        other = self._taken.setdefault(target, photo)
        if other != photo:
            raise BadPhoto(photo, f"{target.name} belongs to {other} too; --name file gives each photo its own")
        return target

    def _has_short(self, place: Path) -> bool:
        """True if photo.xmp would be its own.  Of photo.cr2 and photo.jpg, it is that of the RAW photo."""
        return self._with_stem(place) < 2 or place.suffix.lower() in RAW_SUFFIXES

    def _by_what_is_there(self, photo: str, place: Path, long: Path, short: Path) -> Path:
        has_long, has_short = os.path.lexists(long), os.path.lexists(short)
        alone = self._has_short(place)
        if has_long and has_short and alone:
            raise BadPhoto(photo, f"has two files, {long.name} and {short.name}; --name file or stem says which to use")
        if has_long or has_short:
            return short if has_short and alone else long
        return short if self._kind == "txt" and self._with_stem(place) < 2 else long

    def _with_stem(self, place: Path) -> int:
        return sum(path.suffix.lower() in PHOTO_SUFFIXES for path in self._media_in(place.parent).get(place.stem, ()))


def _is_media(path: Path) -> bool:
    return path.suffix.lower() in PHOTO_SUFFIXES or clips.named_as_clip(path)


def _media_in(folder: Path) -> dict[str, list[Path]]:
    """The photos and clips of a folder by their stems."""
    stems: dict[str, list[Path]] = {}
    try:
        names = os.listdir(folder) if files.is_folder(folder) else []  # noqa: PTH208 - of many thousand photos
    except OSError as error:
        raise UserError(f"{folder}: the folder cannot be read ({error.strerror}).") from None
    for path in filter(_is_media, map(Path, names)):
        stems.setdefault(path.stem, []).append(folder / path)
    return stems


def _looked(file: Path, packet: bytes, look: Callable[[bytes], Iterable[str]]) -> Iterable[str]:
    if not packet.strip(b"\0 \t\r\n"):
        return ()
    try:
        return look(packet)
    except BadPacket as error:
        reason = f"{error}, so nobody knows whether a person's text is in it (--replace does not ask)"
        raise BadPhoto(file, reason) from None


def _keys(rows: Iterable[Row]) -> list[str]:
    """Hashes of what the photo showed when it was captioned, as far as rows have them."""
    return [key.picture for row in rows if (key := key_of(row))]


# What was changed, and back


@dataclass(frozen=True)
class Change:
    file: Path  # absolute
    before: str | None  # SHA-256; none: there was no such file
    after: str
    back: list[Edit]  # makes what was there of what was written
    time: int | None  # when what was there had been modified, in nanoseconds
    replaced: bool  # a person's text

    def line(self) -> bytes:
        back = [(start, end, base64.b64encode(data).decode("ascii")) for start, end, data in self.back]
        row = {"file": str(self.file), "before": self.before, "after": self.after, "back": back, "time": self.time}
        row["replaced"] = self.replaced
        return (json.dumps(row) + "\n").encode("ascii")


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
        with journals.held_file(self.path, "another process writes these captions.") as held:
            whole = b"".join(line + b"\n" for line in self.read())
            if self.path.stat().st_size != len(whole):  # a kill cut off the last line, before its change was made
                held.replace(whole)
            yield

    def read(self) -> list[bytes]:
        lines = journals.read_lines(self.path)
        self.changes = [self._change(line, number) for number, line in enumerate(lines, start=1)]
        self._written = {(str(change.file), change.after) for change in self.changes}
        return lines

    def wrote(self, file: Path, data: bytes) -> bool:
        """True if the file is as we left it."""
        return (str(file), _sha256(data)) in self._written

    def change(self, file: Path, before: bytes | None, merged: Merged) -> None:
        """Note it, then make it."""
        back, after = [] if before is None else xmp.inverse(before, merged.edits), merged.data
        time = None if before is None else file.stat().st_mtime_ns
        change = Change(file, None if before is None else _sha256(before), _sha256(after), back, time, merged.replaced)
        journals.append(self.path, change.line())
        self.changes.append(change)
        self._written.add((str(file), change.after))
        files.replace(file, after)

    def undo(self, captioned: Callable[[Path], bool], *, dry_run: bool = False) -> Undone:
        """Take back all changes, the last first.

        captioned  whether a file is a photo whose caption these are: outside of our roots, only such are believed in
        """
        stay, problems, media_in = list[Change](), list[str](), cache(_media_in)
        files_done, withdrawn = dict[Path, None](), dict[Path, None]()
        for change in reversed(self.changes):
            try:
                self._check(change, captioned, media_in)
                if change.file in withdrawn or (dry_run and change.file in files_done):
                    continue
                if _take_back(change, dry_run=dry_run):
                    files_done[change.file] = None
                else:
                    withdrawn[change.file] = None
            except UserError as error:
                stay.insert(0, change)
                problems.append(str(error))
            except Exception as error:
                stay.insert(0, change)
                problems.append(str(unexpected(change.file, error)))
        if not dry_run and stay:
            files.replace(self.path, b"".join(change.line() for change in stay))
        elif not dry_run:
            self.path.unlink()
        others = {change.file for change in stay} | withdrawn.keys()
        return Undone([file for file in files_done if file not in others], list(withdrawn), problems)

    def _check(
        self, change: Change, captioned: Callable[[Path], bool], media_in: Callable[[Path], dict[str, list[Path]]]
    ) -> None:
        """That it is of a photo that may be written for: the journal may be a stranger's."""
        file, long = change.file, change.file.with_suffix("")
        if file.suffix.lower() in PHOTO_SUFFIXES:
            photos = [file]
        elif files.is_file(long) and (_is_media(long) or captioned(long)):
            photos = [long]
        else:
            photos = media_in(file.parent).get(file.stem, [])
        if not photos:
            raise UserError(f"{file}: there is no photo that it belongs to, so it is left as it is.")
        if files.real(file.parent) != file.parent:
            raise UserError(f"{file}: its folder has become a link, so it is left as it is.")
        if not any(file.is_relative_to(root) for root in self.roots) and not any(map(captioned, photos)):
            raise UserError(
                f"{file}: is outside the current folder and that of the captions, so it is left as it is; run the "
                "command in its folder."
            )

    def _change(self, line: bytes, number: int) -> Change:
        try:
            row: dict[str, Any] = json.loads(line)
            back = [Edit(start, end, base64.b64decode(data, validate=True)) for start, end, data in row["back"]]
            change = Change(Path(row["file"]), row["before"], row["after"], back, row["time"], row["replaced"])
            places, time = [place for edit in back for place in edit[:2]], change.time
            is_whole = all(isinstance(place, int) for place in places) and isinstance(change.before, str | None)
            is_whole = is_whole and isinstance(change.after, str) and isinstance(change.replaced, bool)
            if not is_whole or not isinstance(time, int | None) or not 0 <= (time or 0) < 1 << 63:
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
            raise UserError(f"{self.path}: line {number} is not of a journal of `tellapart write`.") from None
        if not change.file.is_absolute() or change.file.suffix.lower() not in _WRITTEN:
            raise UserError(f"{self.path}: line {number} names a file that `tellapart write` never writes.")
        return change


def _take_back(change: Change, *, dry_run: bool) -> bool:
    """True if the file is as it was.  Of one that was changed since, our texts are taken out, and the rest stays."""
    file = change.file
    files.refuse_link(file)
    files.refuse_shared(file)
    now = files.read_bytes(file) if os.path.lexists(file) else None
    digest = None if now is None else _sha256(now)
    if digest == change.before:  # it was never made, or has been taken back
        return True
    if now is None or digest != change.after:
        after = None if now is None or change.replaced else _without_ours(file, now)
        if after is None:
            raise UserError(f"{file}: the file has changed since it was written, so it is left as it is.")
        if not dry_run:
            files.replace(file, after)
        return False
    before = xmp.apply(now, change.back)
    if change.before is not None and _sha256(before) != change.before:
        raise UserError(f"{file}: what it was like before is not in the journal, so it is left as it is.")
    if _is_media(file) and (change.before is None or picture_sha256(before) != picture_sha256(now)):
        raise UserError(f"{file}: `tellapart write` never changed this picture, so it is left as it is.")
    if dry_run:
        return True
    try:
        if change.before is None:
            file.unlink()
        else:
            files.replace(file, before)
            if change.time is not None:
                os.utime(file, ns=(file.stat().st_atime_ns, change.time))
    except OSError as error:
        raise UserError(f"{file}: the file cannot be restored ({error.strerror}).") from None
    return True


def _without_ours(file: Path, now: bytes) -> bytes | None:
    """Without the texts that we wrote and our mark; None where there are none to be seen."""
    nothing, options = xmp.Text({xmp.DEFAULT: ""}, False, ""), MergeOptions(withdraw=True)
    try:
        if file.suffix.lower() == ".xmp":
            merged = xmp.merge(now, nothing, options)
        elif _is_media(file):
            merged = in_file.merge(now, str(file), nothing, options)
        else:
            return None
    except BadPacket as error:
        raise UserError(f"{file}: has changed since it was written ({error}), so it is left as it is.") from None
    return merged.data if merged.edits else None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
