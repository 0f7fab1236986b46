"""Object words in captions, of COCO's 80 classes: `data/object_words.txt` has the words, and what was decided."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_LISTS = ConfigParser(delimiters=(":",), interpolation=None)
_LISTS.read(Path(__file__).parent / "data" / "object_words.txt", encoding="utf-8")


def _names(text: str) -> list[str]:
    return [" ".join(term.split()) for term in text.split(",")]


CLASSES = tuple(_names(_LISTS["classes"]["names"]))

_SIBILANT = re.compile(r"(?:s|x|z|ch|sh)$")
_Y = re.compile(r"(?<=[^aeiou])y$")


@dataclass(frozen=True)
class Mention:
    """An object word in a caption.

    classes  those that it may mean, by number; usually one
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
    lexicon, result, place = _lexicon(), [], 0
    while place < len(words):
        terms = lexicon.get(words[place], ())
        term = next((term for term in terms if tuple(words[place : place + len(term.words)]) == term.words), None)
        if term is not None and term.mention is not None:
            result.append(term.mention)
        place += term.read if term is not None else 1
    return result


@cache
def _lexicon() -> Mapping[str, tuple[_Term, ...]]:
    """The terms that begin with a word, longest first."""
    terms: dict[tuple[str, ...], _Term] = {}
    for term in _terms():
        if terms.setdefault(term.words, term) != term:
            raise ValueError(f"{' '.join(term.words)!r} is in the lists of object words twice")
    by_first: dict[str, list[_Term]] = {}
    for term in sorted(terms.values(), key=lambda term: -len(term.words)):
        by_first.setdefault(term.words[0], []).append(term)
    return {first: tuple(terms) for first, terms in by_first.items()}


def _terms() -> Iterator[_Term]:
    number = {name: place for place, name in enumerate(CLASSES)}
    for section in ("sure", "maybe"):
        for names, text in _LISTS[section].items():
            mention = Mention(tuple(number[name] for name in names.split("|")), section == "sure")
            yield from (_Term(words, mention, len(words)) for words in _forms(_names(text)))
    yield from (_Term(words, None, len(words)) for words in _forms(_names(_LISTS["nothing"]["phrases"])))
    for modifier, heads in _LISTS["modifiers"].items():
        words = tuple(modifier.split())
        yield from (_Term((*words, *head), None, len(words)) for head in _forms(heads.split()))


def _forms(terms: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The words of each term of a list, and of its plural."""
    for term in terms:
        singular, _, irregular = term.partition("/")
        yield tuple(singular.split())
        yield tuple((irregular or _plural(singular)).split())


def _plural(noun: str) -> str:
    """The plural of a regular noun."""
    if _Y.search(noun):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if _SIBILANT.search(noun) else f"{noun}s"
