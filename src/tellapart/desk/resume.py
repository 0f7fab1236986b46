"""Captions into a file, where a run that is started again goes on and what a person wrote stays.

Rows are saved as they are made.  Those that are there need not be made again, or must not: those of a person.

A row's `key` is three fingerprints: of the photo's picture, of the model with its settings, and of the caption as we
wrote it.  So we know again a photo that was moved, or that a program wrote metadata into; what was made otherwise than
is asked for now; and a caption that was changed by hand.  A row is of the photo that its `file` names, however the
path is typed, unless that shows another picture now, and its own is found elsewhere.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from capscore.printable import counted, first_few, print_message
from capscore.progress import Progress
from tellapart.captioning.pipeline import CaptionSource
from tellapart.data.captions import Caption
from tellapart.data.examples import file_of, places, status_of
from tellapart.data.items import Input, Unusable
from tellapart.data.media import clips
from tellapart.data.media.identity import identify
from tellapart.desk.captions_file import (
    COLUMNS,
    REVIEWS,
    Key,
    Row,
    fingerprint,
    is_approved,
    is_by_hand,
    key_of,
    short_hash,
)
from tellapart.errors import BadPhoto
from tellapart.parallel import batched, ordered_map

_NO_SETTINGS = "0" * 8  # in the key of a caption that is to be made anew
_SAVED_TOGETHER = 16  # rows; a kill loses at most so many


@dataclass
class Rows:
    """The rows of a file: of the photos that are asked for, by place, and of others."""

    of_photos: dict[str, list[Row]]
    others: list[Row] = field(default_factory=list)
    done: set[str] = field(default_factory=set)  # places of photos whose rows stay as they are
    why: dict[str, str] = field(default_factory=dict)  # places of the others -> why it is made anew; "": there is none
    changed: list[str] = field(default_factory=list)  # files with a caption by hand, and another picture than it had

    def all(self) -> list[Row]:
        return [*self.others, *(row for rows in self.of_photos.values() for row in rows)]

    def chosen(self) -> list[Row]:
        """As the file should be in the end."""
        return [*self.others, *(row for rows in self.of_photos.values() for row in chosen(rows))]


def chosen(rows: Sequence[Row]) -> list[Row]:
    """Of the rows of one photo: all that a person wrote, or else our last caption, or else the last error.

    A caption that a person approved stays, unless the last one is of another picture.
    """
    captions = [row for row in rows if "caption" in row and "key" in row]
    approved = [row for row in captions if is_approved(row) and _picture_in(row) == _picture_in(captions[-1])]
    return [row for row in rows if is_by_hand(row)] or approved[-1:] or captions[-1:] or list(rows[-1:])


def by_place(rows: Sequence[Row], photos: Mapping[str, Input]) -> Rows:
    """Each row with the photo that its file names.  photos: by `places`"""
    arranged = Rows({place: [] for place in photos})
    for row, place in zip(rows, places([row["file"] for row in rows]), strict=True):
        arranged.of_photos.get(place, arranged.others).append(row)
    return arranged


def arrange(rows: Sequence[Row], photos: Mapping[str, Input], settings: str, *, again: bool = False) -> Rows:
    """Each row with the photo that it is of, named as this request names it, and marked if it is by hand.

    again  no caption stays but those that a person wrote or approved; the others are marked, so that a request without
           this goes on with them
    """
    arranged = by_place(rows, photos)
    with_keys = [at for at, existing in arranged.of_photos.items() if any("key" in row for row in existing)]
    pictures = _pictures(photos, with_keys)
    _settle(arranged, photos, pictures)
    for at, existing in arranged.of_photos.items():
        existing[:] = [_named(row, photos[at]) for row in existing]
        if again:
            existing[:] = map(_outdated, existing)
        picture = pictures.get(at, "")
        stay = [row for row in chosen(existing) if is_by_hand(row) or _is_current(row, picture, settings)]
        if stay:
            arranged.done.add(at)
        else:
            arranged.why[at] = _why(existing, picture)
        if picture and any(is_by_hand(row) and key_of(row) and not _shows(row, picture) for row in stay):
            arranged.changed.append(photos[at].file)
    return arranged


def _settle(arranged: Rows, photos: Mapping[str, Input], pictures: dict[str, str]) -> None:
    """Photos that have no row of their picture get one that shows it, and whose file does not show it any more."""
    free = [row for row in arranged.others if key_of(row) and not _exists(row["file"])]
    lacking = []
    for at, existing in arranged.of_photos.items():
        outdated = [row for row in existing if key_of(row) and not _shows(row, pictures[at])]
        free += outdated
        if not any("caption" in row and (key_of(row) or is_by_hand(row)) and row not in outdated for row in existing):
            lacking.append(at)
    if not free:
        return
    pictures |= _pictures(photos, [at for at in lacking if at not in pictures])
    of_picture: dict[str, list[Row]] = {}
    for row in sorted(free, key=is_by_hand):  # of several, one by hand is taken first, from the end
        of_picture.setdefault(_picture_in(row), []).append(row)
    moved: dict[int, str] = {}
    for at in lacking:
        if fitting := of_picture.get(pictures[at]):
            moved[id(fitting.pop())] = at
    for existing in (arranged.others, *arranged.of_photos.values()):
        leaving = [row for row in existing if id(row) in moved]
        existing[:] = [row for row in existing if id(row) not in moved]
        for row in leaving:
            arranged.of_photos[moved.pop(id(row))].append(row)


# A row


def new_row(row: Row, replaced: Iterable[Row], picture: str, settings: str) -> Row:
    """A row that is made now, with what else people put into those that it takes the place of.

    picture   SHA-256 of what the photo shows
    """
    # What people put there for themselves; some had a column `review` before it was ours.
    items = [item for old in replaced for item in old.items()]
    theirs = {
        name: value for name, value in items if name not in COLUMNS or (name == "review" and value not in REVIEWS)
    }
    if "error" in row:
        return row | theirs
    return row | {"key": str(Key(picture[:16], short_hash(settings), fingerprint(row)))} | theirs


def _named(row: Row, photo: Input) -> Row:
    named = row | {"file": photo.file} | ({} if photo.id is None else {"id": photo.id})
    return named | {"edited": True} if is_by_hand(row) else named


def _is_current(row: Row, picture: str, settings: str) -> bool:
    """True if it was made of the photo as it is now, by the same model with the same settings or approved since."""
    key = key_of(row)
    if "caption" not in row or key is None or not _shows(row, picture):
        return False
    return key.settings == short_hash(settings) or is_approved(row)


def _outdated(row: Row) -> Row:
    """With a key that no settings have."""
    key = key_of(row)
    if key is None or "caption" not in row or is_by_hand(row):
        return row
    return row | {"key": str(key._replace(settings=_NO_SETTINGS))}


def _why(existing: Sequence[Row], picture: str) -> str:
    """Why none of a photo's rows stays."""
    captions = [row for row in existing if "caption" in row and key_of(row)]
    if not captions:
        return ""
    if not any(_shows(row, picture) for row in captions):
        return "another picture"
    is_asked = any(key.settings == _NO_SETTINGS for key in map(key_of, captions) if key)
    return "--again" if is_asked else "another model or other settings"


def _shows(row: Row, picture: str) -> bool:
    return bool(picture) and _picture_in(row) == picture


def _picture_in(row: Row) -> str:
    key = key_of(row)
    return "" if key is None else key.picture


# A photo


Stamp = tuple[int, ...]


class Witness:
    """Hashes of pictures that have not changed since this was made: a caption is of what was there then."""

    def __init__(self, names: Iterable[str]):
        self._stamps = {name: stamp_of(name) for name in names}

    def picture(self, name: str) -> str:
        """SHA-256, or nothing."""
        with suppress(BadPhoto):
            picture = identify(name).picture
            return picture if stamp_of(name) == self._stamps[name] else ""
        return ""


def stamp_of(name: str) -> Stamp | None:
    """Changes with the file; None: there is none."""
    status = status_of(name)
    return None if status is None else (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _pictures(photos: Mapping[str, Input], wanted: Sequence[str]) -> dict[str, str]:
    """The beginning of each picture's hash, as keys have it; nothing of a photo that cannot be read."""
    return dict(zip(wanted, ordered_map(_picture, (photos[at].file for at in wanted)), strict=True))


def _picture(name: str) -> str:
    with suppress(BadPhoto):
        return identify(name).picture[:16]
    return ""


def _exists(name: str) -> bool:
    return "\0" not in name and os.path.lexists(file_of(name))


def merged(existing: Sequence[Row], added: Iterable[Row]) -> Iterator[Row]:
    """The rows that a file holds, and those that we added while it was open in an editor."""
    yield from existing
    there = {(row["file"], row.get("key"), row.get("error")) for row in existing}
    yield from (row for row in added if (row["file"], row.get("key"), row.get("error")) not in there)


# Captions into a file


class RowStore(Protocol):
    """A place for rows: a `CaptionsFile`, or a database."""

    rows: list[Row]

    @property
    def path(self) -> object:
        """Its name, for messages."""

    def writing(self) -> AbstractContextManager[None]: ...

    def keep(self, rows: Iterable[Row]) -> None: ...

    def append(self, rows: Iterable[Row]) -> None: ...

    def read_again(self) -> list[Row]: ...


def write(source: CaptionSource, inputs: Sequence[Input], out: RowStore, *, again: bool | None = None) -> int:
    """Rows in a file, those that are there already left as they are.  Returns how many photos failed.

    again  those that a person neither wrote nor approved are made anew; None: a caller who cannot ask for that
    """
    with out.writing():
        return _write(source, inputs, out, again)


def _write(source: CaptionSource, inputs: Sequence[Input], out: RowStore, again: bool | None) -> int:
    photos: dict[str, Input] = {}
    for place, photo in zip(places([photo.file for photo in inputs]), inputs, strict=True):
        photos.setdefault(place, photo)  # a photo may be named twice, in two ways
    place_of = {photo.file: place for place, photo in photos.items()}
    existing = arrange(out.rows, photos, source.identity, again=bool(again))
    todo = [photo.file for place, photo in photos.items() if place not in existing.done]
    out.keep(existing.all())
    if source.collection is not None:
        stay = [row for place in existing.done for row in chosen(existing.of_photos[place])]
        stay += existing.others
        source.collection.remember({row["file"]: row["caption"] for row in stay if "caption" in row})
    witness = Witness(todo)
    added: list[Row] = []
    unit = clips.unit(photo.file for photo in photos.values())
    with Progress("captions", len(photos), unit=unit, done=len(existing.done)) as bar:
        failed = Unusable(bar.message)
        for batch in batched(source.caption(todo), _SAVED_TOGETHER):
            rows = []
            pictures = ordered_map(witness.picture, [caption.file for caption in batch])
            for caption, picture in zip(batch, pictures, strict=True):
                place = place_of[caption.file]
                row = _row(photos[place], caption, source.language)
                rows.append(new_row(row, existing.of_photos[place], picture or caption.sha256, source.identity))
                if caption.error:
                    failed.add(caption.file, caption.error)
            out.append(rows)
            source.saved([caption.file for caption in batch if not caption.error])
            added += rows
            bar.advance(len(batch))
        failed.rest()  # all have a row
    # What was made of a photo before, with other settings, stays until there is something better than an error; and
    # what a person wrote stays, even if it was written only just now.
    after = by_place(list(merged(out.read_again(), added)), photos)
    out.keep(after.chosen())
    remade = Counter(existing.why[place_of[row["file"]]] for row in added if "caption" in row)
    print_message(_summary(out, existing, after, remade, len(failed), may_ask=again is False))
    if existing.changed:
        print_message(f"the picture has changed since its caption was edited by hand: {first_few(existing.changed)}")
    return len(failed)


def _row(photo: Input, caption: Caption, language: str) -> Row:
    row = caption.row() | ({} if photo.id is None else {"id": photo.id})
    return row | {"language": language} if language and "caption" in row else row


def _summary(out: RowStore, existing: Rows, after: Rows, remade: Counter[str], failed: int, *, may_ask: bool) -> str:
    """remade  how many captions were made, by `Rows.why`"""
    edited = sum(any(map(is_by_hand, rows)) for rows in after.of_photos.values())
    new = remade.pop("", 0)
    parts = [f"{len(existing.done):,} kept"] if existing.done else []
    parts = [f"{part} (--again makes them anew)" if may_ask and new else part for part in parts]
    parts += [f"{new:,} new"] if new and (existing.done or remade) else []
    parts += [f"{count:,} made anew ({why})" for why, count in remade.items()]
    text = f"{counted(len(after.of_photos) - failed, 'caption')} in {out.path}"
    text += f": {', '.join(parts)}" if parts else ""
    text += f"; {edited:,} edited by hand" if edited else ""
    text += f"; {counted(failed, 'photo')} could not be used" if failed else ""
    return text + (f"; {counted(len(after.others), 'row')} of other photos kept" if after.others else "")
