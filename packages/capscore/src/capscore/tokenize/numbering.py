"""Captions to numbers of words, as the measures of word overlap take them, without making a string of every word.

Cut at blanks, a hundred thousand captions have a few ten thousand different pieces.  A compiled loop tells them apart,
and each is looked at once: most are one word wherever they stand.  Captions with any other piece, or with characters
that are not ASCII, take the way of `tokenize_file`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from capscore.compiled import compiled
from capscore.sentences import Sentences, Words
from capscore.tokenize.tokenizer import END, ONE_WORD, may_keep_its_stop, tokenize_file

BLANK = ord(" ")
EMPTY = -1
_SPREADER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


def numbered(texts: Sequence[str], words: Words) -> Sentences:
    """`words.join(tokenize_file(texts))`, but for the order in which new words get their numbers."""
    joined = "".join(texts)
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    most = int(np.count_nonzero(characters == BLANK)) + len(texts)
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
    slots = np.full(size, EMPTY, np.int32)
    pieces, first = np.empty(most, np.int32), np.zeros(len(lengths) + 1, np.int64)
    plain, spans = np.ones(len(lengths), np.bool_), np.empty((most, 3), np.int64)
    written, known, begin = 0, 0, 0
    for s in range(len(lengths)):
        stop, place = begin + lengths[s], begin
        begin = stop
        while stop > place and characters[stop - 1] == BLANK:
            stop -= 1
        last = False
        while not last:
            start, spread = place, _SPREADER
            while place < stop and characters[place] != BLANK:
                plain[s] &= BLANK < characters[place] < 127
                spread = (spread ^ np.uint64(characters[place])) * _SPREADER
                place += 1
            last = place == stop
            at = int((spread + np.uint64(last)) >> np.uint64(32)) & (size - 1)
            while slots[at] != EMPTY and not _same(characters, spans[slots[at]], start, place, last):
                at = (at + 1) & (size - 1)
            if slots[at] == EMPTY:
                spans[known, 0], spans[known, 1], spans[known, 2] = start, place, last
                slots[at] = known
                known += 1
            pieces[written] = slots[at]
            written += 1
            place += 1
        first[s + 1] = written
    return pieces[:written], first, plain, spans[:known]


@compiled
def _same(characters: NDArray[np.uint32], span: Longs, start: int, end: int, last: bool) -> bool:
    if end - start != span[1] - span[0] or last != span[2]:
        return False
    offset = 0
    while offset < end - start and characters[span[0] + offset] == characters[start + offset]:
        offset += 1
    return offset == end - start
