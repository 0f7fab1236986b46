"""A language model of captions: interpolated Kneser-Ney over four words (Kneser and Ney, 1995; Chen and Goodman, 1999).

    p(w | h) = max(c(h w) - d, 0) / c(h) + d N(h) / c(h) * p(w | h without its first word)

c is how often a sequence of four words occurs and, for a shorter one, how many different words it is preceded by.  N(h)
is how many different words follow h.  The last step goes down to 1 / V.  Words that occur once count as one word,
"unknown", and so does every word that the model has never met.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore import files
from capscore.errors import UserError

ORDER = 4
DISCOUNT = 0.75

START, END, UNKNOWN = range(3)  # what stands before a caption, after it, and for words that are not in the vocabulary
_FIRST_WORD = 3
_MOST_WORDS = 55_000  # the most frequent ones: four of them fit into one number

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class KneserNey:
    """words   the vocabulary, in the order of their numbers
    ngrams  (G, 4) different sequences of four, as numbers, in ascending order
    counts  (G,) how often each was found
    """

    def __init__(self, words: Sequence[str], ngrams: Ints, counts: Ints):
        self.words, self.ngrams, self.counts = list(words), ngrams, counts
        self._number = {word: number for number, word in enumerate(self.words, _FIRST_WORD)}
        self.size = _FIRST_WORD + len(self.words)  # with the start, which follows nothing
        if self.size**ORDER >= 2**63:
            raise ValueError(f"{len(self.words)} words are too many: four of them must fit into one number")
        keys = _packed(ngrams, self.size)
        used, place = np.unique(ngrams[:, -1], return_inverse=True)
        self._raw = _Order(used, np.bincount(place, counts, minlength=len(used)).astype(np.float64), 0)
        self._orders = [_Order(keys, counts.astype(np.float64), self.size)]
        for length in range(ORDER - 1, 0, -1):
            keys, types = np.unique(keys % self.size**length, return_counts=True)
            self._orders.insert(0, _Order(keys, types.astype(np.float64), self.size if length > 1 else 0))

    @classmethod
    def of(cls, captions: Sequence[Sequence[str]]) -> KneserNey:
        """Of the words of captions."""
        times = Counter(chain.from_iterable(captions)).most_common(_MOST_WORDS)
        model = cls(sorted(word for word, count in times if count > 1), np.zeros((0, ORDER), np.int64), _NONE)
        windows, _ = model.windows(captions)
        keys, counts = np.unique(_packed(windows, model.size), return_counts=True)
        ngrams = keys[:, None] // model.size ** np.arange(ORDER - 1, -1, -1) % model.size
        return cls(model.words, ngrams, counts.astype(np.int64))

    def windows(self, captions: Iterable[Sequence[str]]) -> tuple[Ints, Ints]:
        """(M, 4) each word, and each end, with the three before it; and (M,) whose caption it is in."""
        numbers = [[START] * (ORDER - 1) + [*map(self.number_of, words), END] for words in captions]
        flat = np.fromiter(chain.from_iterable(numbers), np.int64)
        owner = np.repeat(np.arange(len(numbers)), [len(one) for one in numbers])
        if not len(flat):
            return np.zeros((0, ORDER), np.int64), owner
        windows = np.lib.stride_tricks.sliding_window_view(flat, ORDER)
        is_word = windows[:, -1] != START
        return windows[is_word], owner[ORDER - 1 :][is_word]

    def probabilities(self, windows: Ints) -> Floats:
        """(M,) p(w | the three before), of (M, 4)."""
        found = np.full(len(windows), 1 / (self.size - 1))
        for length, order in enumerate(self._orders, 1):
            found = order.interpolated(_packed(windows[:, -length:], self.size), found)
        return found

    def unigrams(self, words: Ints) -> Floats:
        """(M,) p(w): how often people use a word; the share of one that was never met is smoothed as above."""
        return self._raw.interpolated(words, np.full(len(words), 1 / (self.size - 1)))

    def terms(self, captions: Iterable[Sequence[str]]) -> tuple[Floats, Ints]:
        """(M,) log p(w | three before) - log p(w) of each word and each end; and (M,) whose caption it is in."""
        windows, owner = self.windows(captions)
        return self.terms_of(windows), owner

    def terms_of(self, windows: Ints) -> Floats:
        """(M,) the same of (M, 4)"""
        return np.log(self.probabilities(windows)) - np.log(self.unigrams(windows[:, -1]))

    def number_of(self, word: str) -> int:
        return self._number.get(word, UNKNOWN)

    def save(self, path: Path, *, photos: Ints | None = None) -> None:
        """One compressed file, the sequences column by column; shorter ones follow from them.

        photos  (P,) ids of the photos whose captions it has seen, so that its sources are known
        """
        ids = np.sort(photos) if photos is not None else _NONE
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            words=np.frombuffer("\n".join(self.words).encode(), np.uint8),
            counts=self.counts.astype(np.uint16 if self.counts.max(initial=0) < 2**16 else np.uint32),
            photos=np.diff(ids, prepend=0).astype(np.int32),
            **{f"word_{place}": column.astype(np.uint16) for place, column in enumerate(self.ngrams.T)},
        )
        files.replace(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> KneserNey:
        try:
            with np.load(path, allow_pickle=False) as archive:
                words = archive["words"].tobytes().decode().split("\n")
                counts = archive["counts"].astype(np.int64)
                columns = [archive[f"word_{place}"].astype(np.int64) for place in range(ORDER)]
        except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile):
            raise UserError(f"{path}: this is no language model of captions, or it is damaged.") from None
        ngrams = np.stack(columns, 1)
        if len(counts) != len(ngrams) or ngrams.max(initial=0) >= _FIRST_WORD + len(words):
            raise UserError(f"{path}: this is no language model of captions, or it is damaged.")
        return cls(words, ngrams, counts)


_NONE = np.zeros(0, np.int64)


class _Order:
    """Sequences of one length.

    keys    (G,) ascending
    counts  (G,)
    size    a sequence without its last word is its key // size; 0: all have the same, empty one
    """

    def __init__(self, keys: Ints, counts: Floats, size: int):
        self._keys, self._counts, self._size = keys, counts, size
        contexts = self._contexts(keys)
        self._known, place, types = np.unique(contexts, return_inverse=True, return_counts=True)
        self._totals = np.bincount(place, counts, minlength=len(self._known))
        self._types = types

    def _contexts(self, keys: Ints) -> Ints:
        return keys // self._size if self._size else np.zeros_like(keys)

    def interpolated(self, keys: Ints, shorter: Floats) -> Floats:
        """(M,) probabilities of last words after the words before them, given those by the next shorter context."""
        counts = _found(self._keys, self._counts, keys)
        contexts = self._contexts(keys)
        totals = _found(self._known, self._totals, contexts)
        types = _found(self._known, self._types, contexts)
        above = np.maximum(counts - DISCOUNT, 0) + DISCOUNT * types * shorter
        return np.divide(above, totals, out=shorter.copy(), where=totals > 0)


def _found(keys: Ints, values: NDArray[np.generic], wanted: Ints) -> Floats:
    """The values of keys; 0 where there is no such key."""
    if not len(keys):
        return np.zeros(len(wanted))
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place].astype(np.float64), 0.0)


def _packed(numbers: Ints, size: int) -> Ints:
    """(M, n) numbers below `size` as one number a row, whose order is theirs."""
    packed = np.zeros(len(numbers), np.int64)
    for column in numbers.T:
        packed = packed * size + column
    return packed
