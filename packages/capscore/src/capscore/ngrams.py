"""N-grams of token ids: counted, numbered, weighed by how many photos have them, and compared with references.

An n-gram (n = 1..4) is a pair: the number of its first n - 1 tokens, and its last token.  Both fit one 64-bit key,
which the table stores whole, so two n-grams can never be taken for each other.

Everything here is read only once it is made: threads may share it, and processes may pickle it.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from capscore import ngram_kernels as kernels
from capscore.compiled import over_cores
from capscore.ngram_kernels import EMPTY, ORDERS, ROOT, UNKNOWN, Floats, Ints, Longs
from capscore.sentences import Grouped, Sentences, check_photos

__all__ = ["ORDERS", "ROOT", "Frequencies", "References", "others"]


@dataclass(frozen=True)
class Frequencies:
    """In how many of so many documents (photos) each n-gram occurs.  An n-gram that is not here counts as in one."""

    documents: int
    parents: Ints  # (G,) number of the n-gram without its last token; entry g is n-gram number g + 1
    tokens: Ints  # (G,) its last token
    counts: Ints  # (G,) documents that have it

    @staticmethod
    def none(documents: int) -> Frequencies:
        return Frequencies(documents, *(np.zeros(0, np.int32) for _ in range(3)))

    def pruned(self) -> Frequencies:
        """Without the n-grams of a single document: they weigh what an unknown one weighs, and are most of all."""
        keep = self.counts > 1
        number = np.concatenate([[ROOT], np.where(keep, keep.cumsum(), UNKNOWN)]).astype(np.int32)
        # an n-gram's first tokens occur wherever it does, so that no n-gram loses its parent
        return Frequencies(self.documents, number[self.parents[keep]], self.tokens[keep], self.counts[keep])


class References:
    """The references of each photo, counted once, to compare any number of captions with.

    Document frequencies come from these references, each photo being a document, or from `frequencies`.
    """

    def __init__(self, references: Grouped, frequencies: Frequencies | None = None):
        sentences = references.sentences
        base = Frequencies.none(len(references)) if frequencies is None else frequencies
        built = kernels.build(
            sentences.tokens,
            sentences.starts,
            sentences.lengths,
            references.first,
            base.parents,
            base.tokens,
            base.counts,
            frequencies is None,
        )
        self._slots, self._counts, self._edges, self._ids, self._times = built
        self.documents = base.documents
        self._weights = np.log(max(base.documents, 1)) - np.log(np.maximum(self._counts, 1))
        self._weights[ROOT] = 0
        self._norms = kernels.norms(self._edges, self._ids, self._times, self._weights)
        self._lengths, self._first = sentences.lengths, references.first

    def __len__(self) -> int:
        """Photos."""
        return len(self._first) - 1

    @property
    def sizes(self) -> Longs:
        """(P,) how many references each photo has."""
        return np.diff(self._first)

    def without(self, photos: Longs, left_out: Longs) -> References:
        """For each of N captions a photo of its own: the references of `photos[i]` but for the one that is left out.

        photos    (N,)  the photo whose references caption i is compared with
        left_out  (N,)  which of that photo's references caption i is, and must not be compared with; -1 if none

        Weights stay those of all references.  Any measure then compares caption i with photo i.
        """
        chosen, first = others(self._first, photos, left_out)
        view = copy(self)
        view._edges, view._norms, view._lengths = self._edges[chosen], self._norms[chosen], self._lengths[chosen]
        view._first = first
        return view

    def frequencies(self) -> Frequencies:
        keys = self._slots[self._slots[:, 0] != EMPTY]
        keys = keys[keys[:, 1].argsort(), 0]
        return Frequencies(self.documents, (keys >> 32).astype(np.int32), keys.astype(np.int32), self._counts[1:])

    def closest_lengths(self, captions: Sentences, photos: Longs) -> Longs:
        """(N,): the length of the reference of the photo that is nearest to the caption's; of two, the shorter one."""
        closest = np.zeros(len(captions), np.int64)
        self._spread(kernels.closest, captions, photos, self._first, self._lengths, closest)
        return closest

    def clipped(self, captions: Sentences, photos: Longs) -> Longs:
        """(N, ORDERS): n-grams of each caption that its photo's references have, none more often than any one of them.

        photos  (N,)  the photo whose references caption i is compared with
        """
        matches = np.zeros((len(captions), ORDERS), np.int64)
        self._spread(kernels.clipped, captions, photos, self._first, self._edges, self._ids, self._times, matches)
        return matches

    def cosines(self, captions: Sentences, photos: Longs, *, clip: bool, sigma: float) -> Floats:
        """(N,): the cosine of tf-idf vectors, averaged over n and over the references of the photo.

        clip   a caption's n-gram counts no more than the reference has it (CIDEr-D)
        sigma  width of the Gaussian penalty on a difference in length; infinity for none
        """
        similarities = np.zeros(len(captions))
        self._spread(
            kernels.cosines,
            captions,
            photos,
            *self._counted,
            clip,
            sigma,
            similarities,
        )
        return similarities

    @property
    def _counted(self) -> tuple[Any, ...]:
        """What the kernels that weigh n-grams take of the references."""
        unknown = np.log(max(self.documents, 1))
        return self._first, self._edges, self._ids, self._times, self._weights, unknown, self._norms, self._lengths

    def word_gains(
        self, captions: Sentences, photos: Longs, *, threshold: float, normalised: bool, sigma: float
    ) -> tuple[Floats, Floats]:
        """What the n-grams that a word is in earn with the references of the photo, and what the word itself weighs.

        threshold   n-grams that weigh no more than this earn nothing
        normalised  an n-gram weighs by its share of the sentence's n-grams of that length, and not by its count
        sigma       width of the Gaussian penalty on a difference in length; infinity for none

        Both (N, longest caption), 0 after the end: the parts of the cosine that the distinct n-grams with this word
        add, summed over n and averaged over references; and the tf-idf weight of the word in the caption.
        """
        shape = len(captions), int(captions.lengths.max(initial=0))
        gains, word_weights = np.zeros(shape), np.zeros(shape)
        self._spread(
            kernels.word_gains,
            captions,
            photos,
            *self._counted,
            threshold,
            normalised,
            sigma,
            gains,
            word_weights,
        )
        return gains, word_weights

    def occurrences(self, captions: Sentences, photos: Longs) -> Longs:
        """(N, longest caption): the most often that any one reference of the photo has the word; 0 after the end."""
        most = np.zeros((len(captions), int(captions.lengths.max(initial=0))), np.int64)
        self._spread(kernels.occurrences, captions, photos, self._first, self._edges, self._ids, self._times, most)
        return most

    def own_weights(self, order: int, *, normalised: bool) -> tuple[Ints, Floats]:
        """(M,) the references' own n-grams of one length, (M,) their tf-idf weights; `normalised` as in `word_gains`.

        Once for each time that a sentence has an n-gram.  `spelt` says which they are.
        """
        begin, counts = self._edges[:, order - 1], np.diff(self._edges)[:, order - 1]
        entries, _ = _stretches(begin, counts)
        ids, times = self._ids[entries], self._times[entries]
        positions = np.repeat(self._lengths - order + 1, counts) if normalised else 1
        return np.repeat(ids, times), np.repeat(times * self._weights[ids] / positions, times)

    def spelt(self, ids: Ints, order: int) -> Ints:
        """(M,) numbers of n-grams of one length → (M, order) their tokens."""
        known = self.frequencies()
        tokens = np.empty((len(ids), order), np.int32)
        for place in reversed(range(order)):
            tokens[:, place] = known.tokens[ids - 1]
            ids = known.parents[ids - 1]
        return tokens

    def _spread(self, kernel: Any, captions: Sentences, photos: Longs, *arguments: Any) -> None:
        check_photos(captions, photos, len(self))

        def work(start: int, stop: int) -> None:
            kernel(captions.tokens, captions.starts, captions.lengths, photos, start, stop, self._slots, *arguments)

        over_cores(work, len(captions))


def others(first: Longs, photos: Longs, left_out: Longs) -> tuple[Longs, Longs]:
    """Which sentences of photo `photos[i]` remain for caption i when one is left out: see `References.without`.

    Returns their indices, caption after caption, and (N + 1,) where among these the ones of each caption begin.
    """
    if not left_out.shape == photos.shape == (len(photos),):
        raise ValueError(f"photos {photos.shape} and references to leave out {left_out.shape} must be one a caption")
    if len(photos) and not 0 <= photos.min() <= photos.max() < len(first) - 1:
        raise IndexError(f"photos must be between 0 and {len(first) - 2}")
    counts = first[photos + 1] - first[photos]
    if ((left_out < -1) | (left_out >= counts)).any():
        raise IndexError("the reference to leave out must be one of the photo's, or -1")
    chosen, within = _stretches(first[photos], counts)
    chosen = chosen[within != np.repeat(left_out, counts)]
    return chosen, np.concatenate([[0], np.cumsum(counts - (left_out >= 0))])


def _stretches(begin: Longs, counts: Longs) -> tuple[Longs, Longs]:
    """begin[0], begin[0] + 1, ... counts[0] of them, then begin[1], ...; and how far each is from its beginning."""
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(begin, counts) + within, within
