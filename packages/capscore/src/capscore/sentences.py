"""Captions as token ids, end to end in one array: the form in which every word-overlap measure takes them.

`numbered` gets them from texts without making a string of every word.  Cut at blanks, a hundred thousand captions have
a few ten thousand different pieces.  A compiled loop tells them apart, and each is looked at once: most are one word
wherever they stand.  Captions with any other piece, or with characters that are not ASCII, take the way of
`tokenize_file`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capscore.compiled import compiled
from capscore.tokenize import END, ONE_WORD, may_keep_its_stop, tokenize_file

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

_BLANK = ord(" ")
_EMPTY = -1
_SPREADER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio


@dataclass(frozen=True)
class Sentences:
    """Sentence i is `tokens[starts[i] : starts[i] + lengths[i]]`; tokens between sentences are never read."""

    tokens: Ints
    starts: Longs  # (S,)
    lengths: Longs  # (S,)

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

    def __getitem__(self, rows: Longs) -> Sentences:
        """These sentences, in this order, over the same array of tokens."""
        return Sentences(self.tokens, self.starts[rows], self.lengths[rows])


@dataclass(frozen=True)
class Grouped:
    """Sentences of photos: photo p has sentences `first[p]` up to, but not including, `first[p + 1]`."""

    sentences: Sentences
    first: Longs  # (P + 1,)

    @staticmethod
    def join(groups: Sequence[Sequence[Sequence[int]]]) -> Grouped:
        return Grouped(Sentences.join(list(chain.from_iterable(groups))), edges(groups))

    def __len__(self) -> int:
        return len(self.first) - 1


def check_photos(captions: Sentences, photos: Longs, count: int) -> None:
    """Each caption is of one of `count` photos: a kernel would read beyond its arrays."""
    if photos.shape != (len(captions),):
        raise ValueError(f"{len(captions)} captions, but photos for {len(photos)}")
    if len(photos) and not 0 <= photos.min() <= photos.max() < count:
        raise IndexError(f"photos must be between 0 and {count - 1}")


class Words(dict[str, int]):
    """Numbers for words, given out in the order in which words are met."""

    def __init__(self, words: Iterable[str] = ()):
        super().__init__({word: number for number, word in enumerate(words)})

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number

    def join(self, sentences: Sequence[Sequence[str]]) -> Sentences:
        return _joined(sentences, map(self.__getitem__, chain.from_iterable(sentences)))

    def join_groups(self, groups: Sequence[Sequence[Sequence[str]]]) -> Grouped:
        return Grouped(self.join(list(chain.from_iterable(groups))), edges(groups))


def _joined(sentences: Sequence[Sized], tokens: Iterable[int]) -> Sentences:
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return Sentences(np.fromiter(tokens, np.int32, int(lengths.sum())), lengths.cumsum() - lengths, lengths)


def edges(groups: Sequence[Sized]) -> Longs:
    """(P + 1,) where the sentences of each group begin when they follow each other."""
    return np.concatenate([[0], np.cumsum(np.fromiter(map(len, groups), np.int64, len(groups)))])


def numbered(texts: Sequence[str], words: Words) -> Sentences:
    """`words.join(tokenize_file(texts))`, but for the order in which new words get their numbers."""
    joined = "".join(texts)
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    most = int(np.count_nonzero(characters == _BLANK)) + len(texts)
    pieces, first, plain, spans = _cut(characters, lengths, most)
    ids = np.array([_number(joined[begin:end], last, words) for begin, end, last in spans.tolist()], np.int32)
    tokens = ids[pieces]
    plain[np.searchsorted(first, np.flatnonzero(tokens < 0), "right") - 1] = False
    others = words.join(tokenize_file(texts, list(compress(range(len(texts)), (~plain).tolist()))))
    starts, counts = first[:-1].copy(), np.diff(first)
    starts[~plain], counts[~plain] = others.starts + len(tokens), others.lengths
    return Sentences(np.concatenate([tokens, others.tokens]), starts, counts)


def _number(piece: str, last: int, words: Words) -> int:
    """The number of a piece that is one word wherever it stands, or -1.  `last`: it ends a caption."""
    try:
        word = ONE_WORD[piece + END if last else piece]
    except KeyError:
        return -1
    return -1 if last and may_keep_its_stop(piece, word) else words[word]


@compiled
def _cut(characters: NDArray[np.uint32], lengths: Longs, most: int) -> tuple[Ints, Longs, NDArray[np.bool_], Longs]:
    """Number the pieces between blanks, those that end a caption apart from others.

    most  pieces that there can be

    Returns (P,) the number of each piece, (S + 1,) where those of each caption begin, (S,) whether a caption has
    printable ASCII characters only, and (D, 3) of each different piece: begin, end, whether it ends a caption.
    """
    size = 8
    while size < 2 * most:
        size *= 2
    slots = np.full(size, _EMPTY, np.int32)
    pieces, first = np.empty(most, np.int32), np.zeros(len(lengths) + 1, np.int64)
    plain, spans = np.ones(len(lengths), np.bool_), np.empty((most, 3), np.int64)
    written, distinct, begin = 0, 0, 0
    for s in range(len(lengths)):
        stop, place = begin + lengths[s], begin
        begin = stop
        while stop > place and characters[stop - 1] == _BLANK:
            stop -= 1
        last = False
        while not last:
            start, spread = place, _SPREADER
            while place < stop and characters[place] != _BLANK:
                plain[s] &= _BLANK < characters[place] < 127
                spread = (spread ^ np.uint64(characters[place])) * _SPREADER
                place += 1
            last = place == stop
            at = int((spread + np.uint64(last)) >> np.uint64(32)) & (size - 1)
            while slots[at] != _EMPTY and not _same(characters, spans[slots[at]], start, place, last):
                at = (at + 1) & (size - 1)
            if slots[at] == _EMPTY:
                spans[distinct, 0], spans[distinct, 1], spans[distinct, 2] = start, place, last
                slots[at] = distinct
                distinct += 1
            pieces[written] = slots[at]
            written += 1
            place += 1
        first[s + 1] = written
    return pieces[:written], first, plain, spans[:distinct]


@compiled
def _same(characters: NDArray[np.uint32], span: Longs, start: int, end: int, last: bool) -> bool:
    if end - start != span[1] - span[0] or last != span[2]:
        return False
    offset = 0
    while offset < end - start and characters[span[0] + offset] == characters[start + offset]:
        offset += 1
    return offset == end - start
