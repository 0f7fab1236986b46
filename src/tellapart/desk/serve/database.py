"""The captions of a folder and what people decided about them, in a database.

A photo has one row, as in a captions file, with its review (`desk.captions_file`).  Every decision is noted beside it,
so that it can be undone.  A row changes only if it is still what was seen (`version`): two people, or a person and the
captioner, never overwrite each other unseen.  What a person wrote or approved is never replaced by the captioner.

Names of files need not be UTF-8, and are stored with JSON's escapes.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ColumnElement,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from capscore.errors import UserError
from tellapart.databases import Database
from tellapart.desk.captions_file import Review, Row, is_approved, is_by_hand, key_of, reviewed
from tellapart.desk.lint import caption_words, faults

NAME = "tellapart.db"  # in the folder of the photos
_TRIES = 5  # to add rows, while another captioner adds the same
_OF_FILES = ("look_alikes", "near_duplicates")  # fields of a row that list names

_meta = MetaData()
_photos = Table(
    "photos",
    _meta,
    Column("id", Integer, primary_key=True),
    Column("folder", Text, nullable=False),
    Column("file", Text, nullable=False),
    Column("row", JSON, nullable=False),
    Column("version", String(32), nullable=False),
    # what follows from the row, for filters
    Column("review", String(16), nullable=False),
    Column("picture", Text, nullable=False),  # equal for copies
    Column("words", String(64), nullable=False),  # equal for captions that are read aloud alike
    Column("folded", Text, nullable=False),
    Column("faults", Text, nullable=False),
    UniqueConstraint("folder", "file"),
    Index("by_words", "folder", "words"),
)
_decisions = Table(
    "decisions",
    _meta,
    Column("id", Integer, primary_key=True),
    Column("photo", Integer, nullable=False, index=True),
    Column("folder", Text, nullable=False),
    Column("before", JSON, nullable=False),  # the row
    Column("version_before", String(32), nullable=False),
    Column("version_after", String(32), nullable=False),
    Column("at", Float, nullable=False),  # seconds since 1970
    Column("undone", Boolean, nullable=False),
)


class Changed(UserError):
    """Somebody else, or the captioner, was quicker."""


@dataclass(frozen=True)
class Photo:
    id: int
    row: Row  # with names as they are below the folder
    version: str
    shared: bool = False  # its caption is that of another picture too

    @property
    def file(self) -> str:
        return str(self.row["file"])

    @property
    def caption(self) -> str:
        return str(self.row.get("caption", ""))

    @property
    def review(self) -> str:
        return str(self.row.get("review", ""))

    @property
    def findings(self) -> list[str]:
        """Rules of `lint`."""
        rules = faults(self.caption, self.file) if "caption" in self.row else ["missing"]
        return rules + (["shared"] if self.shared else [])


def decided(row: Row, review: Review | None, caption: str | None = None) -> Row:
    """A row after a decision.  caption: what a person wrote instead, if it is another; review None: as it was made"""
    if caption is not None and caption != row.get("caption"):
        row = reviewed({name: value for name, value in row.items() if name != "error"}, "edited", caption)
        return row if review == "edited" else reviewed(row, review)
    if review == "edited":  # but nothing was changed
        return row | {"review": "edited" if row.get("edited") else "approved"}
    return reviewed(row, review)


class Photos:
    def __init__(self, folder: Path, url: str | None = None):
        """url  of a database that may hold several folders; none: SQLite in the folder, which may be moved with it"""
        self.folder = folder
        self._database = Database(_meta, folder / NAME, "captions", url)
        self._engine, self._asking = self._database.engine, self._database.asking
        self._key = "." if url is None else _escaped(str(folder))
        self._here = _photos.c.folder == self._key

    @property
    def name(self) -> str:
        return self._database.name

    # What there is

    def all(self) -> list[Photo]:
        return self.find()[0]

    def find(
        self, filter: str = "all", search: str = "", offset: int = 0, limit: int | None = None
    ) -> tuple[list[Photo], int]:
        """Photos in the order in which they were captioned, and how many there are in all.

        filter  one of FILTERS
        search  words that the caption or the file's name must have
        """
        with_words = [_photos.c.folded.contains(word, autoescape=True) for word in _folded(search).split()]
        wanted = and_(self._here, self._condition(filter), *with_words)
        with self._asking(), self._engine.connect() as connection:
            total = connection.execute(select(func.count()).select_from(_photos).where(wanted)).scalar_one()
            page = self._select().where(wanted).order_by(_photos.c.id).offset(offset).limit(limit)
            return list(map(_photo, connection.execute(page))), total

    def counts(self) -> dict[str, int]:
        """Number of photos of each filter."""
        columns = [func.count().filter(self._condition(name)).label(name) for name in FILTERS]
        with self._asking(), self._engine.connect() as connection:
            return dict(connection.execute(select(*columns).select_from(_photos).where(self._here)).one()._mapping)

    def get(self, id: int) -> Photo | None:
        return next(iter(self._where(_photos.c.id == id)), None)

    def by_file(self, names: Sequence[str]) -> list[Photo]:
        """In the order of the names; those that are not known are left out."""
        photos = {photo.file: photo for photo in self._where(_photos.c.file.in_(list(map(_escaped, names))))}
        return [photos[name] for name in names if name in photos]

    def _where(self, condition: ColumnElement[bool]) -> list[Photo]:
        with self._asking(), self._engine.connect() as connection:
            return list(map(_photo, connection.execute(self._select().where(self._here, condition))))

    def _select(self) -> Any:
        columns = (_photos.c.id, _photos.c.row, _photos.c.version, _photos.c.file, _photos.c.review)
        return select(*columns, self._is_shared().label("shared"))

    def _is_shared(self) -> ColumnElement[bool]:
        several = select(_photos.c.words).where(self._here, _photos.c.words != "").group_by(_photos.c.words)
        return _photos.c.words.in_(several.having(func.count(func.distinct(_photos.c.picture)) > 1))

    def _condition(self, filter: str) -> ColumnElement[bool]:
        if filter == "shared":
            return self._is_shared()
        if filter == "lint":
            return or_(_photos.c.faults != "", self._is_shared())
        if filter == "all":
            return true()
        return _photos.c.review == ("" if filter == "unreviewed" else filter)

    # What people decide

    def decide(self, id: int, version: str, review: Review | None, caption: str | None = None) -> tuple[Photo, int]:
        """The photo after the decision, which is on the disk then, and the decision's number (0: nothing changed)."""
        photo = self._existing(id)
        row = decided(photo.row, review, caption)
        if row == photo.row:  # such as a request that is sent again because its answer got lost
            return photo, 0
        if photo.version != version:
            raise Changed(f"{photo.file}: the caption has been changed meanwhile; look at it again.")
        after = secrets.token_hex(8)
        note = {"photo": id, "folder": self._key, "before": photo.row, "at": time.time(), "undone": False}
        with self._asking(), self._engine.begin() as connection:
            self._update(connection, replace(photo, row=row), after)
            noted = insert(_decisions).values(**note, version_before=version, version_after=after)
            (number,) = connection.execute(noted).inserted_primary_key or (0,)
        return self._existing(id), int(number)

    def undo(self, number: int | None = None) -> Photo | None:
        """Take back a decision, or the last one after which its photo was not changed; None: there is none."""
        unchanged = select(_photos.c.id).where(
            _photos.c.id == _decisions.c.photo, _photos.c.version == _decisions.c.version_after
        )
        wanted = _decisions.c.id == number if number is not None else unchanged.exists()
        standing = and_(_decisions.c.folder == self._key, _decisions.c.undone.is_(False), wanted)
        last_first = select(_decisions).where(standing).order_by(_decisions.c.id.desc())
        with self._asking(), self._engine.connect() as connection, connection.execute(last_first) as decisions:
            last = next((row for row in decisions if number is not None or _is_whole(row.before)), None)
        if last is None:
            return None
        if not _is_whole(last.before):
            raise Changed("what was there before this decision is damaged in the database.")
        with self._asking(), self._engine.begin() as connection:
            self._update(connection, Photo(last.photo, last.before, last.version_after), last.version_before)
            connection.execute(update(_decisions).where(_decisions.c.id == last.id).values(undone=True))
        return self._existing(last.photo)

    def _existing(self, id: int) -> Photo:
        photo = self.get(id)
        if photo is None:
            raise Changed("there is no such photo any more.")
        return photo

    def _update(self, connection: Connection, photo: Photo, version: str) -> None:
        """Put the photo's row in the place of that which has its version.  First in a transaction: it locks the row."""
        values = {"row": photo.row, "version": version, "file": _escaped(photo.file), **_derived(photo.row)}
        unchanged = (self._here, _photos.c.id == photo.id, _photos.c.version == photo.version)
        if not connection.execute(update(_photos).where(*unchanged).values(**values)).rowcount:
            raise Changed(f"{photo.file}: the caption has been changed meanwhile; look at it again.")

    # What the captioner makes

    def add(self, rows: Iterable[Row]) -> None:
        """Captions that were made, or reasons why there is none; they take no decision's place."""
        new = {row["file"]: row for row in rows}
        for left in reversed(range(_TRIES)):
            with self._asking():
                try:
                    return self._add(new)
                except IntegrityError:  # another captioner added one of them meanwhile: now it is there
                    if not left:
                        raise

    def _add(self, new: dict[str, Row]) -> None:
        stored = {photo.file: photo for photo in self.by_file(list(new))}
        with self._engine.begin() as connection:
            for name, row in new.items():
                old = stored.get(name)
                row = {field: value for field, value in row.items() if field not in ("review", "original")}
                if old is None:
                    values = {"folder": self._key, "file": _escaped(name), "row": row, **_derived(row)}
                    connection.execute(insert(_photos).values(**values, version=secrets.token_hex(8)))
                elif not _stands(old.row, row):
                    with suppress(Changed):  # a person was quicker
                        self._update(connection, replace(old, row=row), secrets.token_hex(8))

    def rename(self, photo: Photo, name: str) -> None:
        """The file of a photo was moved; decisions about it can be undone still.

        If there is another row by a person, both stay as they are.
        """
        others = self.by_file([name])
        if others and (others[0].review or is_by_hand(others[0].row)):
            return
        with self._asking(), self._engine.begin() as connection:
            for other in others:
                connection.execute(delete(_photos).where(_photos.c.id == other.id))
            version = secrets.token_hex(8)
            self._update(connection, replace(photo, row=photo.row | {"file": name}), version)
            of_photo = _decisions.c.photo == photo.id
            for row in connection.execute(select(_decisions).where(of_photo, _decisions.c.undone.is_(False))).all():
                values = {"before": row.before | {"file": name}} if _is_whole(row.before) else {}
                values |= {"version_after": version} if row.version_after == photo.version else {}
                if values:
                    connection.execute(update(_decisions).where(_decisions.c.id == row.id).values(**values))


FILTERS = {  # name: what the page calls it
    "all": "All photos",
    "unreviewed": "Not reviewed",
    "shared": "Shared captions",
    "lint": "Problems found by lint",
    "approved": "Approved",
    "edited": "Edited",
    "rejected": "Rejected",
}


class FolderRows:
    """The rows as `desk.resume` takes them: with names as the captioner knows them, and the photo's number."""

    def __init__(self, photos: Photos):
        self._photos, self.path = photos, photos.name
        self.rows: list[Row] = []
        self._stored: dict[int, Photo] = {}

    @contextmanager
    def writing(self) -> Iterator[None]:
        self.rows = self.read_again()
        yield

    def read_again(self) -> list[Row]:
        self._stored = {photo.id: photo for photo in self._photos.all()}
        absolute = partial(os.path.join, self._photos.folder)
        return [with_names(photo.row, absolute) | {"photo": photo.id} for photo in self._stored.values()]

    def keep(self, rows: Iterable[Row]) -> None:
        """Rows of files that were moved get their new names; all others are as they should be already."""
        self.rows = list(rows)
        for row in self.rows:
            photo, name = self._stored.get(row.get("photo", 0)), below(self._photos.folder, row["file"])
            if photo is not None and photo.file != name:
                self._photos.rename(photo, name)

    def append(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        without_numbers = ({name: value for name, value in row.items() if name != "photo"} for row in rows)
        self._photos.add(with_names(row, partial(below, self._photos.folder)) for row in without_numbers)
        self.rows += rows


def with_names(row: Row, change: Any) -> Row:
    """A row with all names of files changed."""
    lists = {field: [change(name) for name in row[field]] for field in _OF_FILES if isinstance(row.get(field), list)}
    return row | {"file": change(row["file"])} | lists


def below(folder: Path, name: str) -> str:
    return name.removeprefix(f"{folder}/")


def _photo(stored: Any) -> Photo:
    row = stored.row
    if not _is_whole(row):
        row = {"file": _unescaped(str(stored.file)), "error": "what is stored of this photo is damaged"}
        row |= {"review": stored.review} if stored.review in FILTERS else {}
    return Photo(stored.id, row, str(stored.version), bool(stored.shared))


def _is_whole(row: Any) -> bool:
    """True for the form in which we store rows."""
    if not isinstance(row, dict) or not isinstance(row.get("file"), str):
        return False
    texts = (row.get(name) for name in ("caption", "error", "review", "original", "key"))
    lists = (row.get(name) for name in _OF_FILES)
    return all(text is None or isinstance(text, str) for text in texts) and all(
        names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names)) for names in lists
    )


def _stands(old: Row, new: Row) -> bool:
    """True if the old row stays: what a person wrote, or approved of this picture; and no error replaces a caption."""
    if old.get("review") and "caption" not in old:  # a decision about a caption that is damaged
        return True
    approved = is_approved(old) and ("error" in new or _derived(old)["picture"] == _derived(new)["picture"])
    return approved or is_by_hand(old) or ("error" in new and "caption" in old)


def _derived(row: Row) -> dict[str, str]:
    caption = row.get("caption", "")
    words = caption_words(caption)
    key = key_of(row)
    broken = faults(caption, row["file"]) if "caption" in row else ["missing"]
    return {
        "review": str(row.get("review", "")),
        "picture": key.picture if key else _escaped(row["file"]),
        "words": hashlib.sha256(" ".join(words).encode("utf-8", "replace")).hexdigest() if words else "",
        "folded": _folded(f"{caption}\n{row['file']}"),
        "faults": ",".join(broken),
    }


def _folded(text: str) -> str:
    """For searches."""
    return unicodedata.normalize("NFC", text).casefold().replace("\0", " ").encode("utf-8", "replace").decode("utf-8")


def _escaped(name: str) -> str:
    return json.dumps(name)[1:-1]


def _unescaped(name: str) -> str:
    with suppress(ValueError):
        return str(json.loads(f'"{name}"'))
    return name
