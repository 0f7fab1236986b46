"""What is known of a photo beside its picture: a note in its folder, names, when and where it was taken.

It goes into the prompt of models that can be asked.  And candidates that have words of it get a bonus, at most `BONUS`,
when a caption is chosen: enough to decide between captions that are about as good, not to make a bad one win.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore import csv_table, files
from capscore.errors import UserError
from capscore.stop_words import content
from tellapart.data.examples import file_of
from tellapart.data.media.identity import taken
from tellapart.data.tokenizers import split_words
from tellapart.desk.chatter import one_line

NOTES = ("context.txt", "note.txt")  # in a photo's folder; the first that is there
BONUS = 0.5
NEARBY = 30.0  # km to a place whose name is used
_LONGEST_NOTE = 500  # characters
_MOST_NOTE, _MOST_PLACES = 1 << 16, 1 << 27  # bytes
_EARTH = 6371.0  # km
_NAMES = frozenset(  # that programs and cameras give
    """
    img image images dsc dscn dscf pxl mvi gopr photo photos picture pictures pic pics dcim camera scan screenshot sam
    imag vid mov whatsapp copy edited edit final untitled export exported download downloads desktop unsorted new old
    test train val tmp temp folder album albums upload uploads jpg jpeg png webp raw
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class PhotoContext:
    note: str = ""
    album: str = ""
    name: str = ""
    time: datetime | None = None
    place: str = ""

    @property
    def sentence(self) -> str:
        """For a prompt; empty if nothing is known."""
        known = [
            self.album and f'album "{self.album}"',
            self.name and f'file name "{self.name}"',
            f"taken on {self.time.day} {self.time:%B %Y} at {self.time:%H:%M}" if self.time else "",
            self.place and f"taken near {self.place}",
            self.note and f'note "{self.note}"',
        ]
        if not any(known):
            return ""
        return (
            f"Known beside the photo, and perhaps wrong or about other photos: {'; '.join(filter(None, known))}. Use "
            "names from it where they fit what can be seen; leave out the rest."
        )

    @property
    def words(self) -> frozenset[str]:
        """By which captions agree with it; dates are in no caption."""
        text = " ".join((self.note, self.album, self.name, self.place))
        return frozenset(_stem(word) for word in content(split_words(text)) if len(word) > 2 and word.isalpha())


class Context:
    """
    >>> Context().of("Lisbon 2019/IMG_0042 tram.jpg").name
    'tram'
    """

    def __init__(self, places: Path | None = None):
        """places  a CSV file with the columns name, latitude and longitude"""
        self._places = None if places is None else Places(places)
        self.identity = "known" if self._places is None else f"known {self._places.sha256[:16]}"
        self.of = lru_cache(maxsize=4096)(self._of)

    def _of(self, file: str) -> PhotoContext:
        path = file_of(file)
        when = taken(file)
        place = ""
        if self._places and when.latitude is not None and when.longitude is not None:
            place = self._places.nearest(when.latitude, when.longitude)
        folder = path.absolute().parent
        return PhotoContext(_note(folder), _given_name(folder.name), _given_name(path.stem), when.time, place)

    def prompt(self, prompt: str, file: str) -> str:
        return f"{prompt} {self.of(file).sentence}".strip()

    def bonus(self, file: str, captions: Sequence[str]) -> NDArray[np.float64]:
        """(K,) half of `BONUS` for one word of the context, three quarters for two, and so on."""
        known = self.of(file).words
        agreeing = [len(known & {_stem(word) for word in split_words(caption)}) for caption in captions]
        return BONUS * (1 - 0.5 ** np.array(agreeing, np.float64))


class Places:
    """Names of places and where they are."""

    def __init__(self, path: Path):
        text = files.read_text(path, most=_MOST_PLACES)
        self.sha256 = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        try:
            table = csv_table.parse(text)
            rows = [(row["name"], float(row["latitude"]), float(row["longitude"])) for row in table.rows]
        except (ValueError, KeyError):
            rows = []
        self._names = [_quotable(csv_table.text_of(name)) for name, _, _ in rows]
        degrees = np.array([(north, east) for _, north, east in rows]).reshape(-1, 2)
        if not rows or not all(self._names) or not (np.abs(degrees) <= (90, 180)).all():
            raise UserError(f"--places {path}: must be a CSV file with the columns name, latitude and longitude.")
        self._where = np.radians(degrees)  # (n, 2)

    def nearest(self, latitude: float, longitude: float) -> str:
        """The name of the nearest place; nothing if none is nearby."""
        here = np.radians([latitude, longitude])
        half = (self._where - here) / 2
        chord = np.sin(half[:, 0]) ** 2 + np.cos(here[0]) * np.cos(self._where[:, 0]) * np.sin(half[:, 1]) ** 2
        best = int(chord.argmin())
        return self._names[best] if 2 * _EARTH * float(np.arcsin(np.sqrt(min(chord[best], 1)))) <= NEARBY else ""


def _note(folder: Path) -> str:
    name = next((name for name in NOTES if files.is_file(folder / name)), None)
    try:
        return _quotable(files.read_text(files.inside(folder, name), errors="replace", most=_MOST_NOTE)) if name else ""
    except UserError:  # too long, or a link to another folder's file, which must not reach a server
        return ""


def _given_name(name: str) -> str:
    """What of a name a person gave: without numbers, dates and what cameras and programs put there."""
    words = re.findall(r"[^\W\d_]+(?:['-][^\W\d_]+)*|\d+", name)
    spelt = [word for word in words if not word.isdigit() and len(word) > 1 and word.lower() not in _NAMES]
    if not spelt or re.fullmatch(r"[0-9a-fA-F-]{8,}", name):  # a hash
        return ""
    return _quotable(" ".join(spelt))


def _quotable(text: str) -> str:
    """One line that stays within its quotes."""
    return one_line(text.replace('"', "'"))[:_LONGEST_NOTE]


def _stem(word: str) -> str:
    """Without a plural's ending."""
    if word.endswith("es") and len(word) > 4 and word[-3] in "sxzh":
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word
