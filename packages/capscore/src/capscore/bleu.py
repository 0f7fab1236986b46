"""BLEU-1 to BLEU-4 (Papineni et al., 2002), with the closest reference's length, as the COCO evaluation computes it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capscore.ngrams import ORDERS, References
from capscore.sentences import Sentences
from capscore.statistics import Statistics

# The COCO evaluation keeps its fractions from 0/0 with these; they show in the scores of single captions.
_TINY, _SMALL = 1e-15, 1e-9

NAMES = tuple(f"BLEU-{n}" for n in range(1, ORDERS + 1))


def bleu(captions: Sentences, photos: NDArray[np.int64], references: References) -> Statistics:
    """Caption i against the references of photo `photos[i]`."""
    orders = np.arange(ORDERS)
    guesses = np.maximum(captions.lengths[:, None] - orders, 0)
    closest = references.closest_lengths(captions, photos)
    rows = [captions.lengths[:, None], closest[:, None], guesses, references.clipped(captions, photos)]
    return Statistics(NAMES, np.concatenate(rows, 1).astype(np.float64), value)


def value(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """(..., 2 + 2 ORDERS): length, reference length, n-grams, matches → (..., ORDERS)."""
    length, reference_length = sums[..., 0], sums[..., 1]
    guesses, matches = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
    precisions = np.cumprod((matches + _TINY) / (guesses + _SMALL), -1)
    means = precisions ** (1 / np.arange(1, ORDERS + 1))
    ratio = (length + _TINY) / (reference_length + _SMALL)
    brevity = np.exp(1 - 1 / np.minimum(ratio, 1))
    scores: NDArray[np.float64] = means * brevity[..., None]
    return scores
