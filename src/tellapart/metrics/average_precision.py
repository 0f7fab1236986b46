"""Average precision of words that a tagger gives photos: plain, and as Fang et al. (2015) weigh it.

P photos, W words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def average_precision(scores: NDArray[np.floating], has: NDArray[np.bool_]) -> Numbers:
    """Of each word, (W,): the mean precision at the photos that have it; photos of equal score count together.

    scores, has   (P, W); a word that no photo has gets NaN

    >>> average_precision(np.array([[0.9], [0.8], [0.1]]), np.array([[True], [False], [True]])).round(4)
    array([0.8333])
    """
    return np.array([_of_word(scores[:, word], has[:, word]) for word in range(scores.shape[1])])


def _of_word(scores: NDArray[np.floating], has: NDArray[np.bool_]) -> float:
    if not has.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ends = _ends(scores[order])
    found = np.cumsum(has[order])[ends]
    recall = np.diff(found, prepend=0) / found[-1]
    return float((recall * found / (ends + 1)).sum())


def weighted_average_precision(scores: NDArray[np.floating], mentions: NDArray[np.integer], captions: int) -> Numbers:
    """AP as the program of Fang et al. computes it, (W,): what more people mention counts more.

    A photo whose captions mention the word n times is n true positives, each of 1 - 1/K; if n is 1 it is also 1/K of a
    false one, and if n is 0 a whole one.  The area is under the largest precision at each recall or beyond.

    mentions   (P, W) how many of a photo's captions have the word
    captions   K, of each photo; with one alone nothing is known of agreement, and all are NaN
    """
    return np.array([_weighted(scores[:, word], mentions[:, word], captions) for word in range(scores.shape[1])])


def _weighted(scores: NDArray[np.floating], mentions: NDArray[np.integer], captions: int) -> float:
    if captions < 2 or not mentions.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ends = _ends(scores[order])
    counts = mentions[order]
    true = np.cumsum(counts * (1 - 1 / captions))[ends]
    false = np.cumsum(np.where(counts == 0, 1.0, np.where(counts == 1, 1 / captions, 0.0)))[ends]
    precision = np.maximum.accumulate((true / (true + false))[::-1])[::-1]
    return float((np.diff(true, prepend=0.0) / true[-1] * precision).sum())


def _ends(scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """The last place of each score in a row that falls."""
    return np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
