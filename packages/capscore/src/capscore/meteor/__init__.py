"""METEOR 1.5 for English without Java (Denkowski and Lavie, 2014): words matched exactly, by stem, as synonyms or as
paraphrases.  Captions become statistics that add up over photos, and statistics scores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore.compiled import compiled, over_cores
from capscore.meteor import alignment, index
from capscore.meteor.alignment import STAGES, STATISTICS, Words
from capscore.meteor.index import available as available
from capscore.meteor.words import normalise, stem
from capscore.statistics import Floats, Statistics

ALPHA = 0.85  # recall's share of the mean of precision and recall
BETA, GAMMA = 0.2, 0.6  # shape and weight of the penalty for matches that are scattered
DELTA = 0.75  # weight of a content word; a function word weighs the rest
WEIGHTS = (1.0, 0.6, 0.8, 0.6)  # of a match: exact, by stem, as synonyms, as paraphrases


class Meteor:
    """Captions to statistics.  May be used by several threads at once; after unpickling, it loads its data again."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._index = index.load_index(folder)
        self._function_words, self._prefixes = index.small_lists(folder)

    def __reduce__(self) -> tuple[type[Meteor], tuple[Path]]:
        return Meteor, (self._folder,)

    def statistics(
        self, hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
    ) -> NDArray[np.float64]:
        """(N, S) of N tokenised captions: against the reference that each scores best with.  Additive over photos."""
        if len(hypotheses) != len(references):
            raise ValueError(f"{len(hypotheses)} hypotheses, but {len(references)} sets of references")
        vocabulary: defaultdict[str, int] = defaultdict(count().__next__)  # words, numbered as they come
        tokens: list[int] = []
        captions: list[int] = [0]
        first: list[int] = []  # the caption of each photo that is its hypothesis; the references follow it

        def add(caption: str) -> None:
            tokens.extend(map(vocabulary.__getitem__, normalise(caption, self._prefixes)))
            captions.append(len(tokens))

        for hypothesis, own in zip(hypotheses, references, strict=True):
            first.append(len(captions) - 1)
            add(" ".join(hypothesis).replace("|||", ""))  # METEOR's own separator
            for reference in own or [[]]:  # no reference counts as an empty one
                for part in " ".join(reference).split("|||"):
                    add(part)
        first.append(len(captions) - 1)
        return self._best(
            np.array(first, np.int64), np.array(captions, np.int64), np.array(tokens, np.int32), list(vocabulary)
        )

    def _best(
        self, first: NDArray[np.int64], captions: NDArray[np.int64], tokens: NDArray[np.int32], vocabulary: list[str]
    ) -> NDArray[np.float64]:
        photos = len(first) - 1
        if not photos:
            return np.zeros((0, STATISTICS))
        numbers = index.of_words(vocabulary)
        words = self._words(vocabulary, numbers)
        data = self._index
        paraphrases = data.phrases, data.shift, data.buckets, data.edges, data.paraphrases
        hypotheses = np.repeat(first[:-1], np.diff(first))
        out = np.zeros((len(captions) - 1, STATISTICS))

        def work(start: int, stop: int) -> None:
            begin, end = int(first[start]), int(first[stop])
            edges = captions[begin : end + 1]
            spans = index.of_spans(numbers[tokens[edges[0] : edges[-1]]], edges - edges[0], int(data.longest))
            alignment.align(begin, end, captions, hypotheses, tokens, spans, words, paraphrases, out)

        over_cores(work, photos, least=64)
        score = value(out)
        score[first[:-1]] = -1  # the hypotheses themselves
        best = np.maximum.reduceat(score, first[:-1])
        rows = np.where(score == best.repeat(np.diff(first)), np.arange(len(score)), len(score))
        return out[np.minimum.reduceat(rows, first[:-1])]  # of equally good references the first

    def _words(self, vocabulary: list[str], numbers: NDArray[np.uint64]) -> Words:
        """What the matching needs to know of each word."""
        sets = np.zeros((len(vocabulary), 2), np.int32)
        known, rows = self._known(numbers)
        sets[known] = self._index.all[rows[known]]
        candidates = [(word, base) for word in np.flatnonzero(~known) for base in index.base_forms(vocabulary[word])]
        if candidates:
            owners = np.array([word for word, _ in candidates])
            found, rows = self._known(index.of_words([base for _, base in candidates]))
            own = self._index.own[rows]
            found &= own[:, 0] < own[:, 1]
            sets[owners[found][::-1]] = own[found][::-1]  # the first base form that WordNet knows is written last
        function = np.array([word in self._function_words for word in vocabulary], np.bool_)
        keys, stems = _java_hashes(vocabulary), _java_hashes([stem(word) for word in vocabulary])
        return keys, stems, *_shared(sets, self._index.sets), function

    def _known(self, numbers: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
        """Which words WordNet knows, and their rows."""
        known = self._index.words
        rows = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        return (known[rows] == numbers), rows


def load(folder: Path | None = None) -> Meteor:
    """With the data of the installed pycocoevalcap, or that of a folder laid out like its `meteor`."""
    return Meteor(folder or index.data_folder())


def value(statistics: NDArray[np.float64]) -> NDArray[np.float64]:
    """METEOR of (..., S) statistics: a photo's own, or a whole corpus's from their sum.  0 where nothing matches."""
    length, reference_length, function, reference_function = (statistics[..., column] for column in range(4))
    stages = statistics[..., 4 : 4 + 4 * STAGES].reshape(*statistics.shape[:-1], STAGES, 4)
    chunks, matched, reference_matched = (statistics[..., column] for column in range(STATISTICS - 3, STATISTICS))
    weighted = DELTA * (length - function) + (1 - DELTA) * function
    reference_weighted = DELTA * (reference_length - reference_function) + (1 - DELTA) * reference_function
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = _weighted(stages[..., 0], stages[..., 2]) / weighted
        recall = _weighted(stages[..., 1], stages[..., 3]) / reference_weighted
        mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
        fragmentation = chunks / ((matched + reference_matched) / 2)
        score = mean * (1 - GAMMA * fragmentation**BETA)
    return np.where(np.isnan(score), 0.0, np.maximum(score, 0.0))


def _weighted(content: NDArray[np.float64], function: NDArray[np.float64]) -> NDArray[np.float64]:
    """Matches (..., stages) by their weights; added up in METEOR's order, to have its last digits too."""
    total = np.zeros(content.shape[:-1])
    for matches, weight in ((content, DELTA), (function, 1 - DELTA)):
        for stage in range(STAGES):
            total = total + matches[..., stage] * WEIGHTS[stage] * weight
    return total


def _java_hashes(words: list[str]) -> NDArray[np.int32]:
    """METEOR tells words apart by Java's hash of them alone, under which "aw" and "c9" are one word."""
    encoded = [word.encode("utf-16-le", "surrogatepass") for word in words]
    edges = np.zeros(len(words) + 1, np.int64)
    np.cumsum([len(word) // 2 for word in encoded], out=edges[1:])
    return _hashes(np.frombuffer(b"".join(encoded), np.uint16), edges)


@compiled
def _hashes(text: NDArray[np.uint16], edges: NDArray[np.int64]) -> NDArray[np.int32]:
    hashes = np.empty(len(edges) - 1, np.int32)
    for word in range(len(hashes)):
        number = np.uint32(0)
        for at in range(edges[word], edges[word + 1]):
            number = np.uint32(number * np.uint32(31) + np.uint32(text[at]))
        hashes[word] = np.int32(number)
    return hashes


def _shared(
    slices: NDArray[np.int32], sets: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
    """Of the words' synonym sets those that two words are in, as the matching takes them: most words keep few."""
    lengths = slices[:, 1] - slices[:, 0]
    words = np.repeat(np.arange(len(slices)), lengths)
    within = np.arange(len(words)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    _, numbers, sizes = np.unique(sets[slices[words, 0] + within], return_inverse=True, return_counts=True)
    shared = sizes[numbers] > 1
    words, numbers = words[shared], numbers[shared]
    edges = np.searchsorted(words, np.arange(len(slices) + 1))
    bits = np.zeros(len(slices), np.uint64)
    np.bitwise_or.at(bits, words, np.uint64(1) << (numbers % 64).astype(np.uint64))
    return edges, numbers, bits


def statistics(captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> Statistics:
    """Of the words of one caption for each photo, and of its references."""
    return Statistics(("METEOR",), load().statistics(captions, references), _value)


def _value(sums: Floats) -> Floats:
    return value(sums)[..., None]
