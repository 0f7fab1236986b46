"""Photos with similar references: look-alikes for measures that see no photo, only references."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capscore.compiled import compiled, over_cores
from capscore.sentences import Grouped


def by_references(references: Grouped, k: int) -> NDArray[np.int64]:
    """(P, k): the photos whose references are nearest to photo p's, by the cosine of tf-idf vectors of their words.

    All references of a photo are one document.  Of equally near ones the earlier come first; with fewer than k other
    photos, all of them.
    """
    sentences, photos = references.sentences, len(references)
    of_photo = np.repeat(np.repeat(np.arange(photos), np.diff(references.first)), sentences.lengths)
    tokens = sentences.tokens[_positions(sentences.starts, sentences.lengths)]
    (pairs, times) = np.unique(tokens.astype(np.int64) * photos + of_photo, return_counts=True)  # sorted by token
    token, photo = np.divmod(pairs, max(photos, 1))
    _, entry, frequency = np.unique(token, return_inverse=True, return_counts=True)
    weight = times * np.log(photos / frequency[entry])
    norm = np.sqrt(np.bincount(photo, weight**2, minlength=photos))
    weight /= np.where(norm > 0, norm, 1)[photo]
    lists = np.concatenate([[0], frequency.cumsum()])  # photos of token t: entries lists[t] : lists[t + 1]
    by_photo = np.argsort(photo, kind="stable")
    bags = np.searchsorted(photo[by_photo], np.arange(photos + 1))
    nearest = np.zeros((photos, min(k, max(photos - 1, 0))), np.int64)

    def work(start: int, stop: int) -> None:
        _nearest(start, stop, bags, entry[by_photo], weight[by_photo], lists, photo, weight, nearest)

    over_cores(work, photos, least=64)
    return nearest


def _positions(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the tokens of all sentences are, one sentence after another."""
    return np.arange(lengths.sum()) + np.repeat(starts - (lengths.cumsum() - lengths), lengths)


@compiled
def _nearest(begin: int, end: int, bags: NDArray[np.int64], entries: NDArray[np.int64], weights: NDArray[np.float64],
             lists: NDArray[np.int64], listed: NDArray[np.int64], listed_weights: NDArray[np.float64],
             nearest: NDArray[np.int64]) -> None:  # fmt: skip
    photos, k = len(bags) - 1, nearest.shape[1]
    similarity = np.empty(photos)
    for p in range(begin, end):
        similarity[:] = 0
        for e in range(bags[p], bags[p + 1]):
            for at in range(lists[entries[e]], lists[entries[e] + 1]):
                similarity[listed[at]] += weights[e] * listed_weights[at]
        similarity[p] = -1
        for rank in range(k):
            best = 0
            for q in range(1, photos):
                if similarity[q] > similarity[best]:
                    best = q
            nearest[p, rank] = best
            similarity[best] = -2
