"""Which rows of a file of captions need not be made again, and which must not be: those that a person wrote.

A row's `key` is three fingerprints: of the photo's picture, of the model with its settings, and of the caption as we
wrote it.  So we know again a photo that was moved, or that a program wrote metadata into; what was made otherwise than
is asked for now; and a caption that was changed by hand.  A row is of the photo that its `file` names, however the
path is typed, unless that shows another picture now, and its own is found elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tellapart.captioning.rerank import places
from tellapart.data.examples import file_of, status_of
from tellapart.data.items import Input
from tellapart.data.media.identity import Identity, identify
from tellapart.desk.rows import COLUMNS, KEY, REVIEWS, Row
from tellapart.errors import BadPhoto
from tellapart.parallel import ordered_map

_NO_SETTINGS = "0" * 8  # in the key of a caption that is to be made anew


@dataclass
class Rows:
    """What a file holds of the photos that are asked for, by place, and of others."""

    of_photos: dict[str, list[Row]]
    others: list[Row] = field(default_factory=list)
    done: set[str] = field(default_factory=set)  # places of photos whose rows stay as they are
    why: dict[str, str] = field(
        default_factory=dict
    )  # places of the others -> why a caption is made anew; "": there is none
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
    found = Rows({place: [] for place in photos})
    for row, place in zip(rows, places([row["file"] for row in rows]), strict=True):
        found.of_photos.get(place, found.others).append(row)
    return found


def arrange(rows: Sequence[Row], photos: Mapping[str, Input], settings: str, *, again: bool = False) -> Rows:
    """Each row with the photo that it is of, named as this request names it, and marked if it is by hand.

    again  no caption stays but those that a person wrote or approved; the others are marked, so that a request without
           this goes on with them
    """
    found = by_place(rows, photos)
    pictures = _pictures(
        photos, [at for at, existing in found.of_photos.items() if any("key" in row for row in existing)]
    )
    _settle(found, photos, pictures, settings)
    for at, existing in found.of_photos.items():
        existing[:] = [_named(row, photos[at]) for row in existing]
        if again:
            existing[:] = map(_outdated, existing)
        picture = pictures.get(at)
        stay = [row for row in chosen(existing) if is_by_hand(row) or _is_current(row, picture, settings)]
        if stay:
            found.done.add(at)
        else:
            found.why[at] = _why(existing, picture, settings)
        if picture and any(is_by_hand(row) and "key" in row and not _shows(row, picture, settings) for row in stay):
            found.changed.append(photos[at].file)
    return found


def _settle(found: Rows, photos: Mapping[str, Input], pictures: dict[str, Identity | None], settings: str) -> None:
    """Photos that have no row of their picture get one that shows it, and whose file does not show it any more."""
    free = [row for row in found.others if _key(row) and not _exists(row["file"])]
    lacking = []
    for at, existing in found.of_photos.items():
        outdated = [row for row in existing if _key(row) and not _shows(row, pictures[at], settings)]
        free += outdated
        if not any("caption" in row and (_key(row) or is_by_hand(row)) and row not in outdated for row in existing):
            lacking.append(at)
    if not free:
        return
    pictures |= _pictures(photos, [at for at in lacking if at not in pictures])
    of_picture: dict[str, list[Row]] = {}
    for row in sorted(free, key=is_by_hand):  # of several, one by hand is taken first, from the end
        of_picture.setdefault(_picture_in(row), []).append(row)
    moved: dict[int, str] = {}
    for at in lacking:
        names = _names_of(pictures[at], settings)
        if fitting := next((of_picture[name] for name in names if of_picture.get(name)), None):
            moved[id(fitting.pop())] = at
    for existing in (found.others, *found.of_photos.values()):
        leaving = [row for row in existing if id(row) in moved]
        existing[:] = [row for row in existing if id(row) not in moved]
        for row in leaving:
            found.of_photos[moved.pop(id(row))].append(row)


# A row


def new_row(row: Row, before: Iterable[Row], picture: str, settings: str) -> Row:
    """A row that is made now, with what else people put into those that it takes the place of.

    picture   SHA-256 of what the photo shows
    """
    theirs = {name: value for old in before for name, value in old.items() if _is_theirs(name, value)}
    if "error" in row:
        return row | theirs
    return row | {"key": f"{picture[:16]}-{_sha256(settings)[:8]}-{_fingerprint(row)}"} | theirs


def _is_theirs(name: str, value: object) -> bool:
    """Whether people put it there for themselves; some had a column `review` before it was ours."""
    return name not in COLUMNS or (name == "review" and value not in REVIEWS)


def is_by_hand(row: Row) -> bool:
    """Whether a person wrote the caption, as far as one can know."""
    if "caption" not in row:
        return False
    if row.get("edited"):
        return True
    key = _key(row)
    if key is None:
        return bool(row["caption"].strip())  # or the row only lists a photo to be captioned
    return key[3] is not None and key[3] != _fingerprint(row)


def is_approved(row: Row) -> bool:
    return "caption" in row and row.get("review") == "approved"


def is_of_unknown_hand(row: Row) -> bool:
    """Rows of earlier versions do not say what the caption was when it was made."""
    key = _key(row)
    return "caption" in row and key is not None and key[3] is None and not row.get("edited")


def _named(row: Row, photo: Input) -> Row:
    named = row | {"file": photo.file} | ({} if photo.id is None else {"id": photo.id})
    return named | {"edited": True} if is_by_hand(row) else named


def _is_current(row: Row, picture: Identity | None, settings: str) -> bool:
    """Whether it was made of the photo as it is now, by the same model with the same settings or approved since."""
    key = _key(row)
    same_settings = key is not None and key[2] in (None, _sha256(settings)[:8])  # in the short form both are one
    return "caption" in row and (same_settings or is_approved(row)) and _shows(row, picture, settings)


def _outdated(row: Row) -> Row:
    """With a key that no settings have."""
    key = _key(row)
    if key is None or "caption" not in row or is_by_hand(row):
        return row
    return row | {"key": f"{key[1]}-{_NO_SETTINGS}-{key[3] or _fingerprint(row)}"}


def _why(existing: Sequence[Row], picture: Identity | None, settings: str) -> str:
    """Why none of a photo's rows stays."""
    captions = [row for row in existing if "caption" in row and _key(row)]
    if not captions:
        return ""
    if not any(_shows(row, picture, settings) for row in captions):
        return "another picture"
    is_asked = any(row["key"].split("-")[1:2] == [_NO_SETTINGS] for row in captions)
    return "--again" if is_asked else "another model or other settings"


def _shows(row: Row, picture: Identity | None, settings: str) -> bool:
    return _picture_in(row) in _names_of(picture, settings)


def _key(row: Row) -> tuple[str | None, ...] | None:
    found = KEY.fullmatch(row["key"]) if isinstance(row.get("key"), str) else None
    return None if found is None else (found[0], *found.groups())


def _picture_in(row: Row) -> str:
    key = _key(row)
    return "" if key is None else key[1] or ""


def _names_of(picture: Identity | None, settings: str) -> tuple[str, ...]:
    """What a key can begin with for this picture: the second is of earlier versions, with the settings in it."""
    return () if picture is None else (picture.picture[:16], _sha256(f"{picture.file} {settings}")[:16])


def _fingerprint(row: Row) -> str:
    """Of the captions.  How their characters are put together and spaced is no matter: programs change that."""
    listed = row.get("captions") or []
    texts = [row["caption"], *(one.get("caption", "") if isinstance(one, dict) else one for one in listed)]
    return _sha256(json.dumps([" ".join(unicodedata.normalize("NFC", str(text)).split()) for text in texts]))[:8]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# A photo


Stamp = tuple[int, ...]


class Witness:
    """What photos show, if they are still what they were when this was made: a caption is of what was there then."""

    def __init__(self, names: Iterable[str]):
        self._before = {name: stamp_of(name) for name in names}

    def picture(self, name: str) -> str:
        """SHA-256, or nothing."""
        try:
            picture = identify(name).picture
        except BadPhoto:
            return ""
        return picture if stamp_of(name) == self._before[name] else ""


def stamp_of(name: str) -> Stamp | None:
    """Changes with the file; None: there is none."""
    status = status_of(name)
    return None if status is None else (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _pictures(photos: Mapping[str, Input], wanted: Sequence[str]) -> dict[str, Identity | None]:
    return dict(zip(wanted, ordered_map(_identity, (photos[at].file for at in wanted)), strict=True))


def _identity(name: str) -> Identity | None:
    try:
        return identify(name)
    except BadPhoto:
        return None


def _exists(name: str) -> bool:
    return "\0" not in name and os.path.lexists(file_of(name))


def merged(existing: Sequence[Row], made: Iterable[Row]) -> Iterator[Row]:
    """The rows that a file holds, and those that we added while it was open in an editor."""
    yield from existing
    known = {(row["file"], row.get("key"), row.get("error")) for row in existing}
    yield from (row for row in made if (row["file"], row.get("key"), row.get("error")) not in known)
