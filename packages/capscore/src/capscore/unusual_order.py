"""UnusualOrder: captions with an order of function words that people hardly ever use ("a toilet in it on it").

Captions that are rewarded for being unlike others are soon unlike them in grammar alone.  Measures of the field compare
content, and do not see it.  Here all content words are one, so that what is left is how a caption is built.  A word is
*unusual* where people hardly ever go on so after the three words before it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore import files
from capscore.measures import RARE_ORDER
from capscore.statistics import Statistics, mean_of
from capscore.words import STOP_WORDS

_BEFORE, END, CONTENT = range(3)  # what stands before a caption's first word, after its last, and for content words
_NAMES = ["<", ">", "*", *sorted(STOP_WORDS)]
_NUMBER = {name: number for number, name in enumerate(_NAMES)}
_CONTEXT = 3  # words


def roles(words: Iterable[str]) -> list[int]:
    """What each word of a caption is: a stop word with a number of its own, or CONTENT."""
    return [_NUMBER[word] if word in STOP_WORDS else CONTENT for word in words]


class WordOrder:
    """What people go on with after three words.

    usual  (n,) sorted: runs of four roles as numbers, those that are no rarer than one in five hundred
    """

    def __init__(self, usual: NDArray[np.int64]):
        self._usual = usual

    @classmethod
    def of(cls, captions: Iterable[Sequence[int]]) -> WordOrder:
        """captions  the roles of each one's words; END after the last, but not if it was cut"""
        runs, times = np.unique(_runs(_flat(captions)), return_counts=True)
        context = runs // len(_NAMES)
        _, of_context = np.unique(context, return_inverse=True)
        return cls(runs[times >= RARE_ORDER * np.bincount(of_context, times)[of_context]])

    def unusual(self, captions: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """(N,) how many words of each are unusual.  A word right after an unusual one is so for that alone: no count.

        captions  as in `of`
        """
        flat = _flat(captions)
        words = flat != _BEFORE
        unusual = np.zeros(len(flat), bool)
        unusual[words] = ~np.isin(_runs(flat), self._usual)
        unusual[1:] &= ~unusual[:-1]  # captions do not touch: each begins with what is never unusual
        of_caption = np.repeat(np.arange(len(captions)), [_CONTEXT + len(caption) for caption in captions])
        return np.bincount(of_caption[unusual], minlength=len(captions)).astype(np.int64)

    def save(self, path: Path) -> None:
        """A line for each run, gzipped, so that it does not depend on how roles are numbered."""
        lines = [" ".join(_NAMES[role] for role in _unpacked(run)) for run in self._usual.tolist()]
        files.replace(path, gzip.compress("\n".join(lines).encode(), mtime=0))

    @classmethod
    def load(cls, path: Path) -> WordOrder:
        lines = gzip.decompress(path.read_bytes()).decode().split("\n")
        roles_of = np.array([[_NUMBER[name] for name in line.split()] for line in lines], np.int64)
        return cls(np.sort(_packed(*roles_of.T)))


@cache
def coco() -> WordOrder:
    """As in the captions of 17,721 COCO photos."""
    return WordOrder.load(Path(__file__).parent / "data" / "coco_unusual_order.txt.gz")


def _flat(captions: Iterable[Sequence[int]]) -> NDArray[np.int64]:
    before = [_BEFORE] * _CONTEXT
    return np.fromiter(chain.from_iterable(chain(before, caption) for caption in captions), np.int64)


def _runs(flat: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each word with the three before it as a number."""
    if len(flat) <= _CONTEXT:
        return np.zeros(0, np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(flat, _CONTEXT + 1)
    return _packed(*windows[windows[:, -1] != _BEFORE].T)


def _packed(*roles: NDArray[np.int64]) -> NDArray[np.int64]:
    runs = np.zeros_like(roles[0])
    for role in roles:
        runs = runs * len(_NAMES) + role
    return runs


def _unpacked(run: int) -> list[int]:
    return [run // len(_NAMES) ** place % len(_NAMES) for place in range(_CONTEXT, -1, -1)]


def unusual_order(captions: Sequence[Sequence[str]], people: WordOrder) -> Statistics:
    """Of the words of one caption for each photo."""
    return mean_of("UnusualOrder", people.unusual([[*roles(words), END] for words in captions]) > 0)


def by_coco(captions: Sequence[Sequence[str]]) -> Statistics:
    return unusual_order(captions, coco())
