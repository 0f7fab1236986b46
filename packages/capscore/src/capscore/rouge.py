"""ROUGE-L (Lin, 2004): the longest common subsequence with the references, as the COCO evaluation computes it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capscore.compiled import compiled, over_cores
from capscore.sentences import Grouped, Sentences, check_photos

_BETA = 1.2  # recall counts this much more than precision


def rouge_l(captions: Sentences, photos: NDArray[np.int64], references: Grouped) -> NDArray[np.float64]:
    """(N,): caption i against the references of photo `photos[i]`; the best precision and the best recall of any."""
    check_photos(captions, photos, len(references))
    scores = np.zeros(len(captions))
    reference = references.sentences

    def work(start: int, stop: int) -> None:
        _score(captions.tokens, captions.starts, captions.lengths, photos, start, stop, reference.tokens,
               reference.starts, reference.lengths, references.first, _BETA, scores)  # fmt: skip

    over_cores(work, len(captions))
    return scores


@compiled
def _score(tokens: NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64], photos: NDArray[np.int64],
           begin: int, end: int, reference: NDArray[np.int32], reference_starts: NDArray[np.int64],
           reference_lengths: NDArray[np.int64], first: NDArray[np.int64], beta: float,
           scores: NDArray[np.float64]) -> None:  # fmt: skip
    longest = 0
    for i in range(begin, end):
        longest = max(longest, lengths[i])
    row = np.empty(longest + 1, np.int64)
    for i in range(begin, end):
        precision, recall = 0.0, 0.0
        for s in range(first[photos[i]], first[photos[i] + 1]):
            common = _common(
                tokens[starts[i] : starts[i] + lengths[i]],
                reference[reference_starts[s] : reference_starts[s] + reference_lengths[s]],
                row,
            )
            if common > 0:
                precision = max(precision, common / lengths[i])
                recall = max(recall, common / reference_lengths[s])
        if precision > 0:
            scores[i] = (1 + beta**2) * precision * recall / (recall + beta**2 * precision)


@compiled
def _common(one: NDArray[np.int32], other: NDArray[np.int32], row: NDArray[np.int64]) -> int:
    """Length of the longest common subsequence; row[i + 1] is that of one[: i + 1] and what was read of `other`."""
    row[: len(one) + 1] = 0
    for token in other:
        diagonal = 0
        for i in range(len(one)):
            above = row[i + 1]
            if one[i] == token:
                row[i + 1] = diagonal + 1
            elif row[i] > above:
                row[i + 1] = row[i]
            diagonal = above
    return int(row[len(one)])
