"""Captions as token ids, end to end in one array: the form in which every word-overlap measure takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Sentences:
    """Sentence i is `tokens[starts[i] : starts[i] + lengths[i]]`; tokens between sentences are never read."""

    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]  # (S,)
    lengths: NDArray[np.int64]  # (S,)

    @staticmethod
    def join(sentences: Sequence[Sequence[int]]) -> Sentences:
        return _joined(sentences, chain.from_iterable(sentences))

    @staticmethod
    def rows(tokens: NDArray[Any], end: int, *, keep_end: bool) -> Sentences:
        """Each row of (N, T) up to its first `end`, with or without it, or to what is below 0, or whole."""
        if tokens.dtype.kind not in "iu":
            raise TypeError(f"tokens must be whole numbers, not {tokens.dtype}")
        rows, width = tokens.shape
        ended = tokens == end
        over = ended | (tokens < 0)
        place = over.argmax(1) if width else np.zeros(rows, np.int64)
        kept = keep_end & ended[np.arange(rows), place] if width else place
        lengths = np.where(over.any(1), place + kept, width).astype(np.int64)
        return Sentences(np.ascontiguousarray(tokens, np.int32).ravel(), np.arange(rows) * width, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, chosen: NDArray[np.int64]) -> Sentences:
        """These sentences, in this order, over the same array of tokens."""
        return Sentences(self.tokens, self.starts[chosen], self.lengths[chosen])


@dataclass(frozen=True)
class Grouped:
    """Sentences of photos: photo p has sentences `first[p]` up to, but not including, `first[p + 1]`."""

    sentences: Sentences
    first: NDArray[np.int64]  # (P + 1,)

    @staticmethod
    def join(groups: Sequence[Sequence[Sequence[int]]]) -> Grouped:
        return Grouped(Sentences.join(list(chain.from_iterable(groups))), edges(groups))

    def __len__(self) -> int:
        return len(self.first) - 1


def check_photos(captions: Sentences, photos: NDArray[np.int64], count: int) -> None:
    """Each caption is of one of `count` photos: a kernel would read beyond its arrays."""
    if photos.shape != (len(captions),):
        raise ValueError(f"{len(captions)} captions, but photos for {len(photos)}")
    if len(photos) and not 0 <= photos.min() <= photos.max() < count:
        raise IndexError(f"photos must be between 0 and {count - 1}")


class Words:
    """Numbers for words, given out in the order in which words are met."""

    def __init__(self, words: Iterable[str] = ()):
        self._ids = _Ids({word: number for number, word in enumerate(words)})

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __getitem__(self, word: str) -> int:
        return self._ids[word]

    def join(self, sentences: Sequence[Sequence[str]]) -> Sentences:
        return _joined(sentences, map(self._ids.__getitem__, chain.from_iterable(sentences)))

    def join_groups(self, groups: Sequence[Sequence[Sequence[str]]]) -> Grouped:
        return Grouped(self.join(list(chain.from_iterable(groups))), edges(groups))


class _Ids(dict[str, int]):
    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def _joined(sentences: Sequence[Sized], tokens: Iterable[int]) -> Sentences:
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return Sentences(np.fromiter(tokens, np.int32, int(lengths.sum())), lengths.cumsum() - lengths, lengths)


def edges(groups: Sequence[Sized]) -> NDArray[np.int64]:
    """(P + 1,) where the sentences of each group begin when they follow each other."""
    return np.concatenate([[0], np.cumsum(np.fromiter(map(len, groups), np.int64, len(groups)))])
