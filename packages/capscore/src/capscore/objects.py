"""Does a caption name what a detector sees in the photo, and does the detector see what it names?

    ObjPrec[detector]  of the object words in the captions, the share that is seen; a weak detection is no invention
    ObjRec[detector]   of the objects that are clearly seen, each class once, the share that is named

Objects are COCO's 80 classes; `object_words` has the words for them.  A photo with several captions counts once, by
their mean: each is read by itself.  No reference takes part, and no network that captions could be trained to please.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from capscore.measures import Score
from capscore.object_words import CLASSES, MAYBE, MODIFIERS, NOTHING, SURE
from capscore.statistics import Floats, Statistics, quotients

WEAK = 0.10  # a score above which something may be there
CLEAR = 0.35  # and above which it is

Kind = Literal["ObjPrec", "ObjRec"]
SCORES: dict[Kind, Score] = {  # what each figure says, for people; {by} is the detector
    "ObjPrec": Score(
        "ObjPrec",
        "Accuracy: object words of the captions (80 kinds) that {by}, a detector, sees in the photo, as a share.",
    ),
    "ObjRec": Score(
        "ObjRec", "Things that {by}, a detector, clearly sees in the photo and the caption names, as a share."
    ),
}
_NAME = re.compile(r"(?P<kind>ObjPrec|ObjRec)\[(?P<detector>.+)\]")
_SIBILANT = re.compile(r"(?:s|x|z|ch|sh)$")
_Y = re.compile(r"(?<=[^aeiou])y$")


def parse(name: str) -> tuple[Kind, str] | None:
    """The measure and the detector that a score's name stands for; none if it is no measure of objects."""
    found = _NAME.fullmatch(name)
    return (found["kind"], found["detector"]) if found else None  # type: ignore[return-value]


@dataclass(frozen=True)
class Mention:
    """An object word in a caption.

    classes  what it may mean, by number; usually one
    sure     it means an object, so that it is wrong where none of them is
    """

    classes: tuple[int, ...]
    sure: bool


@dataclass(frozen=True)
class _Term:
    words: tuple[str, ...]
    mention: Mention | None  # none where it names nothing
    read: int  # how many of the words are done with then


def mentions(words: Iterable[str]) -> list[Mention]:
    """The object words of a caption, in its order: at each place the longest term that fits."""
    words = [part for word in words for part in word.split("-") if part]
    lexicon, found, place = _lexicon(), [], 0
    while place < len(words):
        terms = lexicon.get(words[place], ())
        term = next((one for one in terms if tuple(words[place : place + len(one.words)]) == one.words), None)
        if term is not None and term.mention is not None:
            found.append(term.mention)
        place += term.read if term is not None else 1
    return found


def objects(
    captions: Sequence[Sequence[Sequence[str]]],
    weak: Sequence[Collection[int]],
    clear: Sequence[Collection[int]],
    detector: str,
) -> Statistics:
    """ObjPrec and ObjRec.

    captions  the words of each caption of each photo; a photo without one has no part
    weak      the classes that are perhaps in each photo, by number
    clear     those that surely are
    """
    rows = [_row(*photo) for photo in zip(captions, weak, clear, strict=True)]
    names = tuple(f"{kind}[{detector}]" for kind in ("ObjPrec", "ObjRec"))
    return Statistics(names, np.array(rows, np.float64).reshape(-1, 4), quotients)


def _row(captions: Sequence[Sequence[str]], weak: Collection[int], clear: Collection[int]) -> Floats:
    """Object words that are right, and all; objects that are named, and all.  Means over the captions."""
    if not captions:
        return np.zeros(4)
    totals: Floats = np.zeros(4)
    for words in captions:
        found = mentions(words)
        sure = [one for one in found if one.sure]
        named = {label for one in found for label in one.classes}
        right = sum(any(label in weak for label in one.classes) for one in sure)
        totals += right, len(sure), len(named.intersection(clear)), len(set(clear))
    return totals / len(captions)


@cache
def _lexicon() -> Mapping[str, tuple[_Term, ...]]:
    """The terms that begin with a word, longest first."""
    terms: dict[tuple[str, ...], _Term] = {}
    for term in _terms():
        if terms.setdefault(term.words, term) != term:
            raise ValueError(f"{' '.join(term.words)!r} is in the lists of object words twice")
    by_first: dict[str, list[_Term]] = {}
    for term in sorted(terms.values(), key=lambda one: -len(one.words)):
        by_first.setdefault(term.words[0], []).append(term)
    return {first: tuple(own) for first, own in by_first.items()}


def _terms() -> Iterator[_Term]:
    number = {name: place for place, name in enumerate(CLASSES)}
    for table, sure in ((SURE, True), (MAYBE, False)):
        for names, text in table.items():
            mention = Mention(tuple(number[name] for name in names.split("|")), sure)
            yield from (_Term(words, mention, len(words)) for words in _forms(text))
    yield from (_Term(words, None, len(words)) for words in _forms(NOTHING))
    for modifier, heads in MODIFIERS.items():
        before = tuple(modifier.split())
        yield from (_Term((*before, *head), None, len(before)) for head in _forms(",".join(heads.split())))


def _forms(text: str) -> Iterator[tuple[str, ...]]:
    """The words of each term of a list, and of its plural."""
    for term in text.split(","):
        singular, _, irregular = term.strip().partition("/")
        yield tuple(singular.split())
        yield tuple((irregular or plural(singular)).split())


def plural(noun: str) -> str:
    """Of a regular noun."""
    if _Y.search(noun):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if _SIBILANT.search(noun) else f"{noun}s"
