"""Captions of a file of captions into sidecars, texts beside the photos, or the photos' own files.

A photo is written for only if it still shows what was captioned.  A row that does not say what its photo showed could
name any file: it must be a photo below the folder of the captions or the current one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from capscore import files
from capscore.errors import UserError
from tellapart.data.examples import places
from tellapart.data.media import clips
from tellapart.data.media.formats import RAW_SUFFIXES
from tellapart.data.media.identity import identify
from tellapart.data.media.photos import PHOTO_SUFFIXES
from tellapart.data.media.photos import read_bytes as read_photo
from tellapart.desk import in_file, reading, resume, xmp
from tellapart.desk.captions_file import CaptionsFile, Row, is_by_hand, key_of
from tellapart.desk.chatter import one_line
from tellapart.desk.edits import Edit
from tellapart.desk.journal import Journal
from tellapart.desk.packet import MOST_BYTES, BadPacket
from tellapart.errors import BadPhoto, unexpected

Kind = Literal["xmp", "txt", "in-file"]
Naming = Literal["auto", "file", "stem"]  # photo.jpg.xmp, photo.xmp, or what there is already


@dataclass(frozen=True)
class Planned:
    """What is to become of one photo."""

    photo: str  # as the captions name it
    target: Path  # absolute
    caption: str
    before: bytes | None
    merged: xmp.Merged

    @property
    def action(self) -> str:
        """withdraw: a person has written a text since, so ours is taken away again"""
        if self.merged.kept:
            return "withdraw" if self.merged.edits else "keep"
        return "write" if self.merged.edits else "unchanged"


@dataclass
class Captions:
    """Of each photo, its texts by language."""

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
        for (place, language), found in by_place.items():
            row = resume.chosen(found)[-1]
            if one_line(row.get("caption", "")) and row.get("review") != "rejected":
                captions.rows.setdefault(place, {})[language] = row
            else:
                captions.failed += 1
        if not captions.rows:
            raise UserError(f"{path}: has no caption.")
        return captions

    def shown_by(self, file: Path) -> bool:
        """Whether a photo is one of these, by what it shows and not by its name alone."""
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
        self._photos_in: dict[Path, dict[str, int]] = {}  # folder -> stem -> number of photos with it
        self.journal = Journal(captions.path)

    def plan(self) -> Iterator[Planned | BadPhoto]:
        """In the order of the captions.  UserErrors of one photo do not stop the others."""
        for place, rows in self._captions.rows.items():
            photo = next(iter(rows.values()))["file"]
            try:
                yield self._planned(photo, Path(place), rows)
            except BadPhoto as error:
                yield error
            except UserError as error:
                yield BadPhoto(photo, str(error).rstrip("."))
            except Exception as error:
                yield unexpected(photo, error)

    def run(self, *, dry_run: bool = False) -> Iterator[Planned | BadPhoto]:
        """The same, each when it has been written; the journal must be held."""
        for planned in self.plan():
            if isinstance(planned, Planned) and planned.merged.edits and not dry_run:
                try:
                    self.write(planned)
                except UserError as error:
                    yield BadPhoto(planned.photo, str(error).rstrip("."))
                    continue
                except Exception as error:
                    yield unexpected(planned.photo, error)
                    continue
            yield planned

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
        before = self._read(photo, target)
        texts = {language or xmp.DEFAULT: one_line(row["caption"]) for language, row in rows.items()}
        text = xmp.Text(texts, all(map(is_by_hand, rows.values())), self._date)
        how = xmp.How(replace=True) if self._replace else self._standing(photo, place, target, before, text)
        try:
            merged = self._merged(before, photo, target, text, how)
        except BadPacket as error:
            raise BadPhoto(target, str(error)) from None
        return Planned(photo, target, next(iter(texts.values())), before, merged)

    def _standing(self, photo: str, place: Path, target: Path, before: bytes | None, text: xmp.Text) -> xmp.How:
        """What the photo's file and its sidecars say already, beside the packet that is merged into."""
        inside = reading.Standing() if clips.is_clip(place) else reading.read(read_photo(place), photo)
        sidecars = [one for one in self._sidecars(place) if one != target and one.is_file()]
        packets = [(place, one) for one in inside.packets]
        packets += [(one, files.read_bytes(one, most=MOST_BYTES)) for one in sidecars]
        if self._kind == "in-file":
            before = inside.packet
        elif inside.packet is not None:
            packets.append((place, inside.packet))
        noted = partial(xmp.noted, by_hand=text.by_hand)
        ours = frozenset(one for file, packet in packets for one in _looked(file, packet, noted))
        with suppress(BadPacket):  # then it is not merged into
            ours |= noted(before or xmp.EMPTY)
        how = xmp.How(ours=ours)
        kept = [f"{where} in {place.name}" for where, said in inside.texts if not how.is_ours(said)]
        for file, packet in packets:
            kept += [f"{where} in {file.name}" for where in _looked(file, packet, partial(xmp.of_people, ours=ours))]
        return replace(how, kept=tuple(dict.fromkeys(kept)))

    def _check(self, photo: str, place: Path, rows: Iterable[Row]) -> None:
        """That it is a photo, and the one that was captioned."""
        known = _keys(rows)
        picture = identify(photo).picture
        if any(key != picture[:16] for key in known):
            raise BadPhoto(photo, "the picture has changed since it was captioned; caption it again")
        if known:
            return
        if not any(place.is_relative_to(root) for root in self.journal.roots):
            raise BadPhoto(photo, "is outside the current folder and that of the captions, so it is left alone")
        if place.suffix.lower() not in PHOTO_SUFFIXES:
            raise BadPhoto(photo, "its name is not that of a photo")

    def _read(self, photo: str, target: Path) -> bytes | None:
        if self._kind == "in-file":
            if target.suffix.lower() in RAW_SUFFIXES:
                raise BadPhoto(photo, "is a RAW photo, which is never written into; use --xmp")
            return read_photo(target)
        return files.read_bytes(target, most=MOST_BYTES) if os.path.lexists(target) else None

    def _merged(self, before: bytes | None, photo: str, target: Path, text: xmp.Text, how: xmp.How) -> xmp.Merged:
        if self._kind == "in-file" and before is not None:
            return in_file.merge(before, photo, text, how)
        if self._kind == "txt":
            return self._plain(before, target, next(iter(text.wanted.values())), how)
        merged = xmp.merge(before or xmp.EMPTY, text, how)
        # A file that is not there, or empty, becomes the whole packet.
        return merged if before or merged.kept else replace(merged, edits=[Edit(0, 0, merged.data)])

    def _plain(self, before: bytes | None, target: Path, caption: str, how: xmp.How) -> xmp.Merged:
        there, data = (before or b"").strip(), (caption + "\n").encode("utf-8")
        is_ours = not there or there == data.strip() or self.journal.wrote(target, before or b"")
        kept = [*how.kept, *([] if is_ours or how.replace else ["text"])]
        if kept or there == data.strip():
            return xmp.Merged(before or b"", kept=kept)
        return xmp.Merged(data, [Edit(0, len(before or b""), data)])

    # Names

    def _target(self, photo: str, place: Path) -> Path:
        if self._kind == "in-file":
            return place
        suffix = f".{self._kind}"
        long, short = place.with_name(place.name + suffix), place.with_suffix(suffix)
        target = {"file": long, "stem": short}.get(self._naming) or self._found(photo, place, long, short)
        other = self._taken.setdefault(target, photo)
        if other != photo:
            raise BadPhoto(photo, f"{target.name} belongs to {other} too; --name file gives each photo its own")
        return target

    def _sidecars(self, place: Path) -> list[Path]:
        return [place.with_name(f"{place.name}.xmp"), *([place.with_suffix(".xmp")] if self._has_short(place) else [])]

    def _has_short(self, place: Path) -> bool:
        """Whether photo.xmp would be its own.  Of photo.cr2 and photo.jpg, it is that of the RAW photo."""
        return self._with_stem(place) < 2 or place.suffix.lower() in RAW_SUFFIXES

    def _found(self, photo: str, place: Path, long: Path, short: Path) -> Path:
        """What there is already."""
        has_long, has_short = os.path.lexists(long), os.path.lexists(short)
        alone = self._has_short(place)
        if has_long and has_short and alone:
            raise BadPhoto(photo, f"has two files, {long.name} and {short.name}; --name file or stem says which to use")
        if has_long or has_short:
            return short if has_short and alone else long
        return short if self._kind == "txt" and self._with_stem(place) < 2 else long

    def _with_stem(self, place: Path) -> int:
        if place.parent not in self._photos_in:
            counts = self._photos_in[place.parent] = {}
            for name in _names(place.parent):
                if name.suffix.lower() in PHOTO_SUFFIXES:
                    counts[name.stem] = counts.get(name.stem, 0) + 1
        return self._photos_in[place.parent].get(place.stem, 0)


def _looked(file: Path, packet: bytes, look: Callable[[bytes], Iterable[str]]) -> Iterable[str]:
    if not packet.strip(b"\0 \t\r\n"):
        return ()
    try:
        return look(packet)
    except BadPacket as error:
        reason = f"{error}, so nobody knows whether a person's text is in it (--replace does not ask)"
        raise BadPhoto(file, reason) from None


def _keys(rows: Iterable[Row]) -> list[str]:
    """What the photo showed when it was captioned, as far as rows say so."""
    return [key.picture for row in rows if (key := key_of(row))]


def _names(folder: Path) -> Sequence[Path]:
    try:
        return [Path(name) for name in os.listdir(folder)]  # noqa: PTH208 - names, of many thousand photos
    except OSError as error:
        raise UserError(f"{folder}: the folder cannot be read ({error.strerror}).") from None
