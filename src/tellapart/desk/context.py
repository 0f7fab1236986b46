"""Facts of a photo beside its picture: a note in its folder, names, when it was taken.

It goes into the prompt of models that can be asked.  And candidates that have words of it get a bonus, at most `BONUS`,
when a caption is chosen: enough to decide between captions that are about as good, not to make a bad one win.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore import files
from capscore.errors import UserError
from capscore.words import content
from tellapart.data.examples import file_of
from tellapart.data.media.identity import taken
from tellapart.data.tokenizers import split_words
from tellapart.desk.chatter import one_line

NOTES = ("context.txt", "note.txt")  # in a photo's folder; the first that is there
BONUS = 0.5
_LONGEST_NOTE = 500  # characters
_MOST_NOTE = 1 << 16  # bytes
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

    @property
    def sentence(self) -> str:
        """For a prompt; empty if nothing is known."""
        facts = [
            self.album and f'album "{self.album}"',
            self.name and f'file name "{self.name}"',
            f"taken on {self.time.day} {self.time:%B %Y} at {self.time:%H:%M}" if self.time else "",
            self.note and f'note "{self.note}"',
        ]
        if not any(facts):
            return ""
        return (
            f"Known beside the photo, and perhaps wrong or about other photos: {'; '.join(filter(None, facts))}. Use "
            "names from it where they fit what can be seen; leave out the rest."
        )

    @property
    def words(self) -> frozenset[str]:
        """By which captions agree with it; dates are in no caption."""
        text = " ".join((self.note, self.album, self.name))
        return frozenset(_stem(word) for word in content(split_words(text)) if len(word) > 2 and word.isalpha())


class Context:
    """
    >>> Context().of("Lisbon 2019/IMG_0042 tram.jpg").name
    'tram'
    """

    identity = "known"

    def __init__(self) -> None:
        self.of = lru_cache(maxsize=4096)(_facts)

    def prompt(self, prompt: str, file: str) -> str:
        return f"{prompt} {self.of(file).sentence}".strip()

    def bonus(self, file: str, captions: Sequence[str]) -> NDArray[np.float64]:
        """(K,) half of `BONUS` for one word of the context, three quarters for two, and so on."""
        facts = self.of(file).words
        agreeing = [len(facts & {_stem(word) for word in split_words(caption)}) for caption in captions]
        return BONUS * (1 - 0.5 ** np.array(agreeing, np.float64))


def _facts(file: str) -> PhotoContext:
    path = file_of(file)
    folder = path.absolute().parent
    return PhotoContext(_note(folder), _given_name(folder.name), _given_name(path.stem), taken(file).time)


def _note(folder: Path) -> str:
    name = next((name for name in NOTES if files.is_file(folder / name)), None)
    try:
        return _quotable(files.read_text(files.inside(folder, name), errors="replace", most=_MOST_NOTE)) if name else ""
    except UserError:  # too long, or a link to another folder's file, which must not reach a server
        return ""


def _given_name(name: str) -> str:
    """The part of a name that a person gave: without numbers, dates and what cameras and programs put there."""
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
