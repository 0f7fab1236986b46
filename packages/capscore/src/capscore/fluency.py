"""A language model of captions, and what it says of a caption: how fluent it is, and whether it is bad English.

The model is interpolated Kneser-Ney over four words (Kneser and Ney, 1995; Chen and Goodman, 1999).

    p(w | h) = max(c(h w) - d, 0) / c(h) + d N(h) / c(h) * p(w | h without its first word)

c is how often a sequence of four words occurs and, for a shorter one, how many different words it is preceded by.  N(h)
is how many different words follow h.  The last step goes down to 1 / V.  Words that occur once count as one word,
"unknown", and so does every word that the model has never met.

Fluency (SLOR: Pauls and Klein, 2012; Lau et al., 2017) is the mean, over the words of a caption and its end, of
log p(word | the three before) - log p(word).  The bundled model has seen captions of COCO photos with odd ids, none of
a validation or test photo: rewards and decoders that have a language model take the others, so that this one stays
independent of them.  Captioners say what is most expected, and so score above people: the figure compares models, not
models with people.

Unidiomatic: captions whose least expected word is less expected than the least expected words of 95 % of people's
captions of the same photos.  So people are near 5 % by construction, and only differences between models count: it is a
guard against captions that are rewarded into bad English.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore import files
from capscore.errors import UserError
from capscore.measures import UNIDIOMATIC
from capscore.statistics import Statistics, mean_of
from capscore.words import packed, unpacked, windows

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
        keys = packed(ngrams, self.size)
        used, place = np.unique(ngrams[:, -1], return_inverse=True)
        self._raw = _Order(used, np.bincount(place, counts, minlength=len(used)).astype(np.float64), 0)
        self._orders = [_Order(keys, counts.astype(np.float64), self.size)]
        for length in range(ORDER - 1, 0, -1):
            keys, types = np.unique(keys % self.size**length, return_counts=True)
            self._orders.insert(0, _Order(keys, types.astype(np.float64), self.size if length > 1 else 0))

    @classmethod
    def of(cls, captions: Sequence[Sequence[str]]) -> KneserNey:
        """The model of captions, given as words."""
        times = Counter(chain.from_iterable(captions)).most_common(_MOST_WORDS)
        model = cls(sorted(word for word, count in times if count > 1), np.zeros((0, ORDER), np.int64), _NONE)
        keys, counts = np.unique(packed(model.windows(captions)[0], model.size), return_counts=True)
        return cls(model.words, unpacked(keys, model.size), counts.astype(np.int64))

    def windows(self, captions: Iterable[Sequence[str]]) -> tuple[Ints, Ints]:
        """(M, 4) each word, and each end, with the three before it; and (M,) whose caption it is in."""
        return windows([*map(self.number_of, words), END] for words in captions)

    def probabilities(self, windows: Ints) -> Floats:
        """(M,) p(w | the three before), of (M, 4)."""
        shares = np.full(len(windows), 1 / (self.size - 1))
        for length, order in enumerate(self._orders, 1):
            shares = order.interpolated(packed(windows[:, -length:], self.size), shares)
        return shares

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
        self._distinct, place, types = np.unique(contexts, return_inverse=True, return_counts=True)
        self._totals = np.bincount(place, counts, minlength=len(self._distinct))
        self._types = types

    def _contexts(self, keys: Ints) -> Ints:
        return keys // self._size if self._size else np.zeros_like(keys)

    def interpolated(self, keys: Ints, shorter: Floats) -> Floats:
        """(M,) probabilities of last words after the words before them, given those by the next shorter context."""
        counts = _values(self._keys, self._counts, keys)
        contexts = self._contexts(keys)
        totals = _values(self._distinct, self._totals, contexts)
        types = _values(self._distinct, self._types, contexts)
        above = np.maximum(counts - DISCOUNT, 0) + DISCOUNT * types * shorter
        return np.divide(above, totals, out=shorter.copy(), where=totals > 0)


def _values(keys: Ints, values: NDArray[np.generic], wanted: Ints) -> Floats:
    """The values of keys; 0 where there is no such key."""
    if not len(keys):
        return np.zeros(len(wanted))
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place].astype(np.float64), 0.0)


# That quantile of 15,980 captions by people of COCO training photos with even ids, for photos without references
COCO_LIMIT = -3.83


@cache
def coco() -> KneserNey:
    """Made by scripts/build_language_model.py."""
    return KneserNey.load(Path(__file__).parent / "data" / "coco_language_model.npz")


def fluency(captions: Sequence[Sequence[str]], model: KneserNey | None = None) -> Statistics:
    """SLOR of one caption of each photo, given as words, by the bundled model or another."""
    terms, owner = (model or coco()).terms(captions)
    count = np.bincount(owner, minlength=len(captions))  # the end is always one
    return mean_of("Fluency", np.bincount(owner, terms, minlength=len(captions)) / count)


def lowest_terms(captions: Sequence[Sequence[str]], model: KneserNey) -> Floats:
    """(N,) of each caption the term of its least expected word, or of its end."""
    terms, owner = model.terms(captions)
    lowest = np.full(len(captions), np.inf)
    np.minimum.at(lowest, owner, terms)
    return lowest


def unidiomatic(
    captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]], model: KneserNey | None = None
) -> Statistics:
    """The share of captions, one of each photo, whose least expected word is below the references' quantile.

    Where people's own captions are scored, they are not among the references.  The quantile is held fixed when photos
    are resampled.
    """
    model = model or coco()
    limit = np.quantile(lowest_terms(list(chain.from_iterable(references)), model), UNIDIOMATIC)
    return below(captions, model, float(limit))


def below(captions: Sequence[Sequence[str]], model: KneserNey, limit: float = COCO_LIMIT) -> Statistics:
    """Unidiomatic by a given limit."""
    return mean_of("Unidiomatic", lowest_terms(captions, model) < limit)
