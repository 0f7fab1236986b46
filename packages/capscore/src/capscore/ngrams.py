"""N-grams of token ids: counted, numbered, weighed by how many photos have them, and compared with references.

An n-gram (n = 1..4) is a pair: the number of its first n - 1 tokens, and its last token.  Both fit one 64-bit key,
which the table stores whole, so two n-grams can never be taken for each other.

Everything here is read only once it is made: threads may share it, and processes may pickle it.  Document frequencies
can be kept in a file, so that CIDEr can score a single caption, or every data set on one scale; `coco` is bundled.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capscore import files
from capscore.compiled import compiled, over_cores
from capscore.errors import UserError
from capscore.sentences import Grouped, Sentences, Words, check_photos

ORDERS = 4  # n = 1..4
ROOT = 0  # the number of the empty n-gram, which all others grow from
UNKNOWN = -1
EMPTY = -1  # key of a free slot
_SPACE = 8  # times as many places as a bag's table needs: captions share few, and most others end at an empty one
_SPREADER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: neighbouring keys land far apart

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]
Tokens = tuple[Ints, Longs, Longs]  # of `Sentences`, as kernels take them: tokens, starts, lengths


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


class Counted(NamedTuple):
    """References as the kernels take them.  The n-grams of sentence s are ids[edges[s, n - 1] : edges[s, n]]."""

    slots: Longs  # (size, 2) table of all n-grams: key, number
    first: Longs  # (P + 1,) sentences of photo p: first[p] : first[p + 1]
    edges: Longs  # (S, ORDERS + 1)
    ids: Ints  # numbers of n-grams
    times: Ints  # how often the sentence has each
    weights: Floats  # of n-grams, by number
    unknown: float  # weight of an n-gram that is not in the table
    norms: Floats  # (S, ORDERS) lengths of tf-idf vectors
    lengths: Longs  # (S,)


class References:
    """The references of each photo, counted once, to compare any number of captions with.

    Document frequencies come from these references, each photo being a document, or from `frequencies`.
    """

    def __init__(self, references: Grouped, frequencies: Frequencies | None = None):
        base = Frequencies.none(len(references)) if frequencies is None else frequencies
        slots, self._counts, edges, ids, times = _build(
            _tokens(references.sentences), references.first, base.parents, base.tokens, base.counts, frequencies is None
        )
        self.documents = base.documents
        unknown = np.log(max(base.documents, 1))
        weights = unknown - np.log(np.maximum(self._counts, 1))
        weights[ROOT] = 0
        norms = _norms(edges, ids, times, weights)
        lengths = references.sentences.lengths
        self._people = Counted(slots, references.first, edges, ids, times, weights, float(unknown), norms, lengths)

    def __len__(self) -> int:
        """Photos."""
        return len(self._people.first) - 1

    @property
    def sizes(self) -> Longs:
        """(P,) how many references each photo has."""
        return np.diff(self._people.first)

    def without(self, photos: Longs, left_out: Longs) -> References:
        """For each of N captions a photo of its own: the references of `photos[i]` but for the one that is left out.

        photos    (N,)  the photo whose references caption i is compared with
        left_out  (N,)  which of that photo's references caption i is, and must not be compared with; -1 if none

        Weights stay those of all references.  Any measure then compares caption i with photo i.
        """
        people = self._people
        rows, first = others(people.first, photos, left_out)
        view = copy(self)
        view._people = people._replace(
            first=first, edges=people.edges[rows], norms=people.norms[rows], lengths=people.lengths[rows]
        )
        return view

    def frequencies(self) -> Frequencies:
        keys = self._people.slots[self._people.slots[:, 0] != EMPTY]
        keys = keys[keys[:, 1].argsort(), 0]
        return Frequencies(self.documents, (keys >> 32).astype(np.int32), keys.astype(np.int32), self._counts[1:])

    def clipped(self, captions: Sentences, photos: Longs) -> tuple[Longs, Longs]:
        """(N, ORDERS) n-grams of each caption that its photo's references have, none more often than any one of them;
        and (N,) the length of the reference whose length is nearest to the caption's, of two the shorter one.

        photos  (N,)  the photo whose references caption i is compared with
        """
        matches, closest = np.zeros((len(captions), ORDERS), np.int64), np.zeros(len(captions), np.int64)
        self._spread(_clipped, captions, photos, matches, closest)
        return matches, closest

    def cosines(self, captions: Sentences, photos: Longs, *, clip: bool, sigma: float) -> Floats:
        """(N,): the cosine of tf-idf vectors, averaged over n and over the references of the photo.

        clip   a caption's n-gram counts no more than the reference has it (CIDEr-D)
        sigma  width of the Gaussian penalty on a difference in length; infinity for none
        """
        similarities = np.zeros(len(captions))
        self._spread(_cosines, captions, photos, clip, sigma, similarities)
        return similarities

    def word_gains(
        self, captions: Sentences, photos: Longs, *, threshold: float, normalised: bool, sigma: float
    ) -> tuple[Floats, Floats]:
        """Earnings with the photo's references of the n-grams that a word is in, and the weight of the word itself.

        threshold   n-grams that weigh no more than this earn nothing
        normalised  an n-gram weighs by its share of the sentence's n-grams of that length, and not by its count
        sigma       width of the Gaussian penalty on a difference in length; infinity for none

        Both (N, longest caption), 0 after the end: the parts of the cosine that the distinct n-grams with this word
        add, summed over n and averaged over references; and the tf-idf weight of the word in the caption.
        """
        shape = len(captions), int(captions.lengths.max(initial=0))
        gains, word_weights = np.zeros(shape), np.zeros(shape)
        self._spread(_word_gains, captions, photos, threshold, normalised, sigma, gains, word_weights)
        return gains, word_weights

    def occurrences(self, captions: Sentences, photos: Longs) -> Longs:
        """(N, longest caption): the most often that any one reference of the photo has the word; 0 after the end."""
        most = np.zeros((len(captions), int(captions.lengths.max(initial=0))), np.int64)
        self._spread(_occurrences, captions, photos, most)
        return most

    def own_weights(self, order: int, *, normalised: bool) -> tuple[Ints, Floats]:
        """(M,) the references' own n-grams of one length, (M,) their tf-idf weights; `normalised` as in `word_gains`.

        Once for each time that a sentence has an n-gram.  `spelt` says which they are.
        """
        people = self._people
        begin, counts = people.edges[:, order - 1], np.diff(people.edges)[:, order - 1]
        entries, _ = _stretches(begin, counts)
        ids, times = people.ids[entries], people.times[entries]
        positions = np.repeat(people.lengths - order + 1, counts) if normalised else 1
        return np.repeat(ids, times), np.repeat(times * people.weights[ids] / positions, times)

    def spelt(self, ids: Ints, order: int) -> Ints:
        """(M,) numbers of n-grams of one length → (M, order) their tokens."""
        table = self.frequencies()
        tokens = np.empty((len(ids), order), np.int32)
        for place in reversed(range(order)):
            tokens[:, place] = table.tokens[ids - 1]
            ids = table.parents[ids - 1]
        return tokens

    def _spread(self, kernel: Any, captions: Sentences, photos: Longs, *arguments: Any) -> None:
        check_photos(captions, photos, len(self))
        over_cores(
            lambda start, stop: kernel(_tokens(captions), photos, start, stop, self._people, *arguments), len(captions)
        )


def _tokens(sentences: Sentences) -> Tokens:
    return sentences.tokens, sentences.starts, sentences.lengths


def others(first: Longs, photos: Longs, left_out: Longs) -> tuple[Longs, Longs]:
    """The sentences of photo `photos[i]` that remain for caption i when one is left out: see `References.without`.

    Returns their indices, caption after caption, and (N + 1,) where among these the ones of each caption begin.
    """
    if not left_out.shape == photos.shape == (len(photos),):
        raise ValueError(f"photos {photos.shape} and references to leave out {left_out.shape} must be one a caption")
    if len(photos) and not 0 <= photos.min() <= photos.max() < len(first) - 1:
        raise IndexError(f"photos must be between 0 and {len(first) - 2}")
    counts = first[photos + 1] - first[photos]
    if ((left_out < -1) | (left_out >= counts)).any():
        raise IndexError("the reference to leave out must be one of the photo's, or -1")
    rows, within = _stretches(first[photos], counts)
    rows = rows[within != np.repeat(left_out, counts)]
    return rows, np.concatenate([[0], np.cumsum(counts - (left_out >= 0))])


def _stretches(begin: Longs, counts: Longs) -> tuple[Longs, Longs]:
    """begin[0], begin[0] + 1, ... counts[0] of them, then begin[1], ...; and how far each is from its beginning."""
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(begin, counts) + within, within


# Document frequencies in files


@dataclass(frozen=True)
class WordFrequencies:
    words: list[str]  # what the tokens of `ngrams` stand for
    ngrams: Frequencies

    def of_words(self) -> dict[str, int]:
        """In how many documents each word is; a word that is in one may be missing."""
        single = self.ngrams.parents == ROOT
        tokens, counts = self.ngrams.tokens[single], self.ngrams.counts[single]
        return {self.words[token]: count for token, count in zip(tokens.tolist(), counts.tolist(), strict=True)}


def count(documents: Sequence[Sequence[Sequence[str]]]) -> WordFrequencies:
    """Frequencies of the n-grams that are in more than one document; a document is the references of one photo."""
    words = Words()
    references = References(words.join_groups(documents))
    return WordFrequencies(list(words), references.frequencies().pruned())


def save(frequencies: WordFrequencies, path: Path) -> None:
    """One compressed file; n-grams are sorted by their parents, which makes it small."""
    ngrams = _sorted(frequencies.ngrams)
    used = np.unique(ngrams.tokens)
    number = np.zeros(len(frequencies.words), np.int32)
    number[used] = np.arange(len(used))
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        words=np.frombuffer("\n".join(frequencies.words[token] for token in used).encode(), np.uint8),
        documents=np.array(ngrams.documents),
        parents=np.diff(ngrams.parents, prepend=np.int32(ROOT)),
        tokens=number[ngrams.tokens],
        counts=ngrams.counts,
    )
    files.replace(path, buffer.getvalue())


def _sorted(ngrams: Frequencies) -> Frequencies:
    """The same n-grams, renumbered: short ones first, then by their parents' numbers and their last tokens."""
    number = np.zeros(len(ngrams.parents) + 1, np.int32)  # old to new
    children = np.zeros(1, np.int32)  # old numbers of the order before
    parts = []
    following = 1
    while len(children):
        of_this_order = np.flatnonzero(np.isin(ngrams.parents, children)) + 1
        parents, tokens = number[ngrams.parents[of_this_order - 1]], ngrams.tokens[of_this_order - 1]
        children = of_this_order[np.lexsort((tokens, parents))].astype(np.int32)
        number[children] = np.arange(following, following + len(children))
        following += len(children)
        parts.append(children)
    order = np.concatenate(parts) - 1
    return Frequencies(ngrams.documents, number[ngrams.parents[order]], ngrams.tokens[order], ngrams.counts[order])


_DAMAGE = (  # what is raised by a file that is no such table; RuntimeError: a ZIP archive that is encrypted
    *(OSError, ValueError, KeyError, EOFError, TypeError, OverflowError, RuntimeError, AttributeError, MemoryError),
    *(zlib.error, zipfile.BadZipFile),
)


def load(path: Path) -> WordFrequencies:
    files.regular(path)
    try:
        with zipfile.ZipFile(path) as members:
            files.refuse_larger(path, sum(info.file_size for info in members.infolist()))
        with np.load(path, allow_pickle=False) as archive:
            words = archive["words"].tobytes().decode().split("\n")
            documents = int(archive["documents"])
            parents, tokens, counts = (archive[key].astype(np.int32) for key in ("parents", "tokens", "counts"))
        parents = parents.cumsum(dtype=np.int32)
        in_order = (parents >= ROOT) & (parents <= np.arange(len(parents)))  # every parent stands before its child
        in_range = (tokens >= 0) & (tokens < len(words)) & (counts <= documents)
        if documents <= 0 or not len(parents) == len(tokens) == len(counts) or not np.all(in_order & in_range):
            raise ValueError("numbers out of range")
    except _DAMAGE:
        raise UserError(f"{path}: this is no table of document frequencies, or it is damaged.") from None
    return WordFrequencies(words, Frequencies(documents, parents, tokens, counts))


@cache
def coco() -> WordFrequencies:
    """Frequencies in the captions of 17,721 COCO photos."""
    return load(Path(__file__).parent / "data" / "coco_frequencies.npz")


# The kernels.  All are in this file, since they call each other (`compiled`).


@compiled
def _slot(key: int, size: int) -> int:
    """The slot where the search for a key begins, of `size`, a power of two."""
    return int((np.uint64(key) * _SPREADER) >> np.uint64(32)) & (size - 1)


@compiled
def _key(parent: int, token: int) -> int:
    return (int(parent) << 32) | (int(token) & 0xFFFFFFFF)  # exact for any 32-bit token, negative ones too


@compiled
def _size(entries: int) -> int:
    """Slots for a table of so many entries: a power of two, at least half of them free."""
    size = 8
    while size < 2 * entries:
        size *= 2
    return size


@compiled
def _insert(slots: Longs, key: int, number: int) -> None:
    at = _slot(key, len(slots))
    while slots[at, 0] != EMPTY:
        at = (at + 1) & (len(slots) - 1)
    slots[at, 0], slots[at, 1] = key, number


@compiled
def _room(slots: Longs) -> int:
    """The number of n-grams that a table may hold, the empty one counted: fuller is slow; emptier, large."""
    return len(slots) // 4 * 3


@compiled
def _table(size: int) -> Longs:
    slots = np.empty((size, 2), np.int64)
    slots[:, 0] = EMPTY
    return slots


@compiled
def _longer(array: Ints, size: int) -> Ints:
    out = np.zeros(size, array.dtype)
    out[: len(array)] = array
    return out


@compiled
def _longest(lengths: Longs, begin: int, end: int) -> int:
    longest = 0
    for i in range(begin, end):
        longest = max(longest, lengths[i])
    return longest


# A *bag* is the distinct n-grams of one sentence; edges[n - 1] : edges[n] are those of order n.  Its rows: the entry of
# the first tokens, the last token, how often the sentence has it, and its number in the references' table, or UNKNOWN.
# Arrays go to the functions one by one: a tuple of many costs more per call than a short sentence takes.
_PARENT, _LAST, _TIMES, _ID = range(4)


@compiled
def _scratch(longest: int) -> tuple[Longs, Longs, Longs, Longs, Ints, Ints]:
    """Room for the bag of a sentence of at most so many tokens, its edges, and what `_fill` and `_index` work with."""
    places = _SPACE * _size(ORDERS * longest)
    return (
        np.empty((4, ORDERS * longest), np.int64),
        np.zeros(ORDERS + 1, np.int64),
        _table(_size(longest)),
        np.empty(longest, np.int64),
        np.empty(places, np.int32),
        np.empty(places, np.int32),
    )


@compiled
def _fill(bag: Longs, edges: Longs, keys: Longs, at: Longs, tokens: Ints, start: int, length: int) -> None:
    """Put a sentence into the bag, told apart by exact keys: n-grams that the references lack are counted as well."""
    entries, size = 0, _size(length)
    for order in range(ORDERS):
        keys[:size, 0] = EMPTY
        for i in range(length - order):
            parent = at[i] if order else -1
            token = tokens[start + i + order]
            key = _key(parent + 1, token)
            slot = _slot(key, size)
            while keys[slot, 0] != EMPTY and keys[slot, 0] != key:
                slot = (slot + 1) & (size - 1)
            if keys[slot, 0] == EMPTY:
                keys[slot, 0], keys[slot, 1] = key, entries
                bag[_PARENT, entries], bag[_LAST, entries], bag[_TIMES, entries] = parent, token, 0
                entries += 1
            entry = keys[slot, 1]
            bag[_TIMES, entry] += 1
            at[i] = entry
        edges[order + 1] = entries


@compiled
def _look_up(slots: Longs, bag: Longs, edges: Longs, order: int) -> None:
    """Number the bag's n-grams of one order; those of the order below are numbered already."""
    for entry in range(edges[order], edges[order + 1]):
        parent = ROOT if bag[_PARENT, entry] < 0 else bag[_ID, bag[_PARENT, entry]]
        bag[_ID, entry] = UNKNOWN
        if parent != UNKNOWN:
            key = _key(parent, bag[_LAST, entry])
            at = _slot(key, len(slots))
            while slots[at, 0] != key and slots[at, 0] != EMPTY:
                at = (at + 1) & (len(slots) - 1)
            bag[_ID, entry] = slots[at, 1] if slots[at, 0] == key else UNKNOWN


@compiled
def _index(slots: Longs, bag: Longs, edges: Longs, numbers: Ints, entries: Ints) -> int:
    """Number the entries of a bag, and write them where `_entry` finds them.  Returns how many places are in use.

    A number is its own hash: those of one photo mostly follow each other, and then no two of them want the same place.
    """
    size = _SPACE * _size(edges[ORDERS])
    numbers[:size] = EMPTY
    for order in range(ORDERS):
        _look_up(slots, bag, edges, order)
    for entry in range(edges[ORDERS]):
        number = bag[_ID, entry]
        if number != UNKNOWN:
            place = number & (size - 1)
            while numbers[place] != EMPTY:
                place = (place + 1) & (size - 1)
            numbers[place], entries[place] = number, entry
    return size


@compiled
def _entry(numbers: Ints, entries: Ints, number: int, size: int) -> int:
    """The bag's entry of an n-gram of the references, or UNKNOWN."""
    place = number & (size - 1)
    while numbers[place] != EMPTY:
        if numbers[place] == number:
            return int(entries[place])
        place = (place + 1) & (size - 1)
    return UNKNOWN


@compiled
def _build(references: Tokens, first: Longs, base_parents: Ints, base_tokens: Ints, base_counts: Ints,
           count: bool) -> Any:  # fmt: skip
    """Number every n-gram of the references and write down each sentence's bag."""
    tokens, starts, lengths = references
    sentences = len(lengths)
    positions = 0
    for s in range(sentences):
        for order in range(ORDERS):
            positions += max(lengths[s] - order, 0)

    slots = _table(1024)
    while _room(slots) < len(base_tokens) + positions // 8 + 1:  # of many captions' n-grams, so many are distinct
        slots = _table(2 * len(slots))
    counts, last_photo = np.zeros(_room(slots), np.int32), np.zeros(_room(slots), np.int32)
    numbered = 1  # the root
    for g in range(len(base_tokens)):
        _insert(slots, _key(base_parents[g], base_tokens[g]), numbered)
        counts[numbered] = base_counts[g]
        numbered += 1

    bag, bag_edges, keys, at, _, _ = _scratch(_longest(lengths, 0, sentences))
    edges = np.zeros((sentences, ORDERS + 1), np.int64)
    ids, times = np.empty(positions, np.int32), np.empty(positions, np.int32)
    written = 0
    for photo in range(len(first) - 1):
        for s in range(first[photo], first[photo + 1]):
            _fill(bag, bag_edges, keys, at, tokens, starts[s], lengths[s])
            entries = bag_edges[ORDERS]
            while numbered + entries > _room(slots):
                larger = _table(2 * len(slots))
                for slot in range(len(slots)):
                    if slots[slot, 0] != EMPTY:
                        _insert(larger, slots[slot, 0], slots[slot, 1])
                slots = larger
                counts, last_photo = _longer(counts, _room(slots)), _longer(last_photo, _room(slots))
            for order in range(ORDERS):
                _look_up(slots, bag, bag_edges, order)
                for entry in range(bag_edges[order], bag_edges[order + 1]):
                    number = bag[_ID, entry]
                    if number == UNKNOWN:
                        parent = ROOT if bag[_PARENT, entry] < 0 else bag[_ID, bag[_PARENT, entry]]
                        number = bag[_ID, entry] = numbered
                        numbered += 1
                        _insert(slots, _key(parent, bag[_LAST, entry]), number)
                    if count and last_photo[number] != photo + 1:  # one photo's references are one document
                        last_photo[number] = photo + 1
                        counts[number] += 1
                    ids[written + entry] = number
                    times[written + entry] = bag[_TIMES, entry]
            for order in range(ORDERS + 1):
                edges[s, order] = written + bag_edges[order]
            written += entries
    return slots, counts[:numbered], edges, ids[:written], times[:written]


@compiled
def _norms(edges: Longs, ids: Ints, times: Ints, weights: Floats) -> Floats:
    norms = np.zeros((len(edges), ORDERS))
    for s in range(len(edges)):
        for order in range(ORDERS):
            total = 0.0
            for entry in range(edges[s, order], edges[s, order + 1]):
                total += (times[entry] * weights[ids[entry]]) ** 2
            norms[s, order] = np.sqrt(total)
    return norms


@compiled
def _candidates(numbers: Ints, size: int, ids: Ints, begin: int, end: int, places: Longs) -> int:
    """Find places in ids[begin:end] of n-grams that the bag may have: all that it has, few others.  Returns how many.

    Without a branch: a processor would guess wrongly at every other n-gram.
    """
    count = 0
    for reference in range(begin, end):
        places[count] = reference
        count += numbers[ids[reference] & (size - 1)] != EMPTY
    return count


@compiled
def _longest_bag(photos: Longs, begin: int, end: int, first: Longs, edges: Longs) -> int:
    """The most n-grams that a reference of these captions has."""
    longest = 0
    for i in range(begin, end):
        for s in range(first[photos[i]], first[photos[i] + 1]):
            longest = max(longest, edges[s, ORDERS] - edges[s, 0])
    return longest


@compiled
def _clipped(captions: Tokens, photos: Longs, begin: int, end: int, people: Counted, matches: Longs,
             closest: Longs) -> None:  # fmt: skip
    tokens, starts, lengths = captions
    first, edges, ids, times = people.first, people.edges, people.ids, people.times
    longest = _longest(lengths, begin, end)
    bag, bag_edges, keys, at, numbers, entries = _scratch(longest)
    counts = bag[_TIMES]
    most = np.empty(ORDERS * longest, np.int64)
    places = np.empty(_longest_bag(photos, begin, end, first, edges), np.int64)
    for i in range(begin, end):
        _fill(bag, bag_edges, keys, at, tokens, starts[i], lengths[i])
        size = _index(people.slots, bag, bag_edges, numbers, entries)
        most[: bag_edges[ORDERS]] = 0
        nearest = -1
        for s in range(first[photos[i]], first[photos[i] + 1]):
            length = people.lengths[s]
            off, least = abs(length - lengths[i]), abs(nearest - lengths[i])
            if nearest < 0 or off < least or (off == least and length < nearest):
                nearest = length
            for k in range(_candidates(numbers, size, ids, edges[s, 0], edges[s, ORDERS], places)):
                reference = places[k]
                entry = _entry(numbers, entries, ids[reference], size)
                if entry != UNKNOWN:
                    most[entry] = max(most[entry], times[reference])
        closest[i] = max(nearest, 0)
        for order in range(ORDERS):
            for entry in range(bag_edges[order], bag_edges[order + 1]):
                matches[i, order] += min(counts[entry], most[entry])


@compiled
def _weigh(bag: Longs, edges: Longs, table: Floats, unknown: float, weights: Floats, norm: Floats) -> None:
    """Weights of a bag's n-grams, and for each order the length of its tf-idf vector."""
    for order in range(ORDERS):
        total = 0.0
        for entry in range(edges[order], edges[order + 1]):
            weight = unknown if bag[_ID, entry] == UNKNOWN else table[bag[_ID, entry]]
            weights[entry] = weight
            total += (bag[_TIMES, entry] * weight) ** 2
        norm[order] = np.sqrt(total)


@compiled
def _cosines(captions: Tokens, photos: Longs, begin: int, end: int, people: Counted, clip: bool, sigma: float,
             similarities: Floats) -> None:  # fmt: skip
    tokens, starts, lengths = captions
    first, edges, ids, times = people.first, people.edges, people.ids, people.times
    norms, reference_lengths = people.norms, people.lengths
    longest = _longest(lengths, begin, end)
    bag, bag_edges, keys, at, numbers, entries = _scratch(longest)
    counts = bag[_TIMES]
    weights = np.empty(ORDERS * longest)
    norm, products = np.empty(ORDERS), np.empty(ORDERS)
    orders = np.empty(ORDERS * longest, np.int64)  # of the bag's entries, counted from 0
    places = np.empty(_longest_bag(photos, begin, end, first, edges), np.int64)
    for i in range(begin, end):
        _fill(bag, bag_edges, keys, at, tokens, starts[i], lengths[i])
        size = _index(people.slots, bag, bag_edges, numbers, entries)
        _weigh(bag, bag_edges, people.weights, people.unknown, weights, norm)
        for order in range(ORDERS):
            orders[bag_edges[order] : bag_edges[order + 1]] = order
        sentences = first[photos[i] + 1] - first[photos[i]]
        total = 0.0
        for s in range(first[photos[i]], first[photos[i] + 1]):
            products[:] = 0.0
            for k in range(_candidates(numbers, size, ids, edges[s, 0], edges[s, ORDERS], places)):
                reference = places[k]
                entry = _entry(numbers, entries, ids[reference], size)
                if entry != UNKNOWN:
                    counted = min(counts[entry], times[reference]) if clip else counts[entry]
                    products[orders[entry]] += counted * times[reference] * weights[entry] ** 2
            cosine = 0.0
            for order in range(ORDERS):
                if products[order] > 0:
                    cosine += products[order] / (norm[order] * norms[s, order])
            # the original counts two-word sequences, so that captions of one word and of none are equally long
            difference = max(lengths[i] - 1, 0) - max(reference_lengths[s] - 1, 0)
            total += cosine * np.exp(-(difference**2) / (2 * sigma**2))
        if sentences > 0:
            similarities[i] = total / (ORDERS * sentences)


@compiled
def _word(lasts: Longs, words: int, token: int) -> int:
    """The entry of a word in the bag of its sentence.  A sentence has few: a table would take longer."""
    for entry in range(words):
        if lasts[entry] == token:
            return entry
    return UNKNOWN


@compiled
def _word_gains(captions: Tokens, photos: Longs, begin: int, end: int, people: Counted, threshold: float,
                normalised: bool, sigma: float, gains: Floats, word_weights: Floats) -> None:  # fmt: skip
    tokens, starts, lengths = captions
    first, edges, ids, times = people.first, people.edges, people.ids, people.times
    norms, reference_lengths = people.norms, people.lengths
    longest = _longest(lengths, begin, end)
    bag, bag_edges, keys, at, numbers, entries = _scratch(longest)
    counts, lasts = bag[_TIMES], bag[_LAST]
    weights = np.empty(ORDERS * longest)
    norm = np.empty(ORDERS)
    earned, of_words = np.empty(ORDERS * longest), np.empty(longest)  # by n-grams; by words through them
    members = np.empty(ORDERS, np.int64)
    for i in range(begin, end):
        _fill(bag, bag_edges, keys, at, tokens, starts[i], lengths[i])
        size = _index(people.slots, bag, bag_edges, numbers, entries)
        _weigh(bag, bag_edges, people.weights, people.unknown, weights, norm)
        earned[: bag_edges[ORDERS]] = 0
        for s in range(first[photos[i]], first[photos[i] + 1]):
            difference = max(lengths[i] - 1, 0) - max(reference_lengths[s] - 1, 0)
            penalty = np.exp(-(difference**2) / (2 * sigma**2))
            for order in range(ORDERS):
                positions, reference_positions = lengths[i] - order, reference_lengths[s] - order
                for reference in range(edges[s, order], edges[s, order + 1]):
                    entry = _entry(numbers, entries, ids[reference], size)
                    if entry == UNKNOWN:
                        continue
                    share = positions if normalised else 1
                    if counts[entry] * weights[entry] / share > threshold and weights[entry] > 0:
                        # shares of either sentence are multiples of counts, and but for this factor the norms undo it
                        longer = positions / reference_positions if normalised else 1.0
                        product = min(float(counts[entry]), times[reference] * longer) * times[reference]
                        earned[entry] += penalty * product * weights[entry] ** 2 / (norm[order] * norms[s, order])
        of_words[: bag_edges[1]] = 0
        for order in range(ORDERS):
            for entry in range(bag_edges[order], bag_edges[order + 1]):
                if earned[entry] == 0:
                    continue
                step = entry
                for place in range(order + 1):  # from its last word back to its first
                    word = members[place] = _word(lasts, bag_edges[1], lasts[step])
                    again = False
                    for earlier in range(place):
                        again |= members[earlier] == word
                    if not again:
                        of_words[word] += earned[entry]
                    step = bag[_PARENT, step]
        sentences = max(first[photos[i] + 1] - first[photos[i]], 1)
        for place in range(lengths[i]):
            word = _word(lasts, bag_edges[1], tokens[starts[i] + place])
            gains[i, place] = of_words[word] / sentences
            word_weights[i, place] = counts[word] * weights[word] / (lengths[i] if normalised else 1)


@compiled
def _occurrences(captions: Tokens, photos: Longs, begin: int, end: int, people: Counted, most: Longs) -> None:
    tokens, starts, lengths = captions
    longest = _longest(lengths, begin, end)
    bag, bag_edges, _, _, _, _ = _scratch(longest)
    for i in range(begin, end):
        bag_edges[1] = lengths[i]  # each word as an entry of its own, again where it is repeated
        bag[_PARENT, : lengths[i]] = -1
        for place in range(lengths[i]):
            bag[_LAST, place] = tokens[starts[i] + place]
        _look_up(people.slots, bag, bag_edges, 0)
        for s in range(people.first[photos[i]], people.first[photos[i] + 1]):
            for reference in range(people.edges[s, 0], people.edges[s, 1]):
                for place in range(lengths[i]):
                    if bag[_ID, place] == people.ids[reference]:
                        most[i, place] = max(most[i, place], people.times[reference])
