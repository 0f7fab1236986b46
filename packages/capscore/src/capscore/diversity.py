"""How different the captions of one photo are from each other, where a model gives several."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capscore import bleu
from capscore.ngrams import Frequencies, References
from capscore.sentences import Grouped
from capscore.statistics import Statistics, ratio_of


def mutual_bleu(captions: Grouped) -> Statistics:
    """mBLEU: BLEU of each caption of a photo against its other captions; less is more diverse.

    A photo with one caption has nothing to compare it with and adds nothing.
    """
    owner = np.repeat(np.arange(len(captions)), np.diff(captions.first))
    one, other = _pairs(captions)
    one, other = one[one != other], other[one != other]
    groups = Grouped(captions.sentences[other], np.searchsorted(one, np.arange(len(owner) + 1)))
    compared = np.flatnonzero(np.diff(groups.first))  # captions with siblings
    each = bleu.bleu(captions.sentences[compared], compared, References(groups))
    rows = np.zeros((len(captions), each.rows.shape[1]))
    np.add.at(rows, owner[compared], each.rows)
    return Statistics(tuple(f"m{name}" for name in each.names), rows, each.value)


def self_cider(captions: Grouped, frequencies: Frequencies) -> Statistics:
    """self-CIDEr (Wang and Chan, 2019): 0 where the captions of a photo are alike, 1 where they share nothing.

    From the matrix of CIDEr between the photo's captions, -log of the share that the largest root of its eigenvalues
    has of all, to the base of the number of captions.  A photo with one caption has no part in the mean.
    """
    one, other = _pairs(captions)
    alone = Grouped(captions.sentences, np.arange(len(captions.sentences) + 1))  # every caption is a reference
    cosines = References(alone, frequencies).cosines(captions.sentences[one], other, clip=False, sigma=np.inf)
    counts = np.diff(captions.first)
    matrices = np.split(cosines, (counts**2).cumsum()[:-1])
    scores = [_spread(matrix.reshape(count, count)) for matrix, count in zip(matrices, counts, strict=True)]
    return ratio_of("self-CIDEr", np.array(scores), (counts > 1).astype(np.float64))


def _spread(matrix: NDArray[np.float64]) -> float:
    if len(matrix) < 2:
        return 0.0
    roots = np.sqrt(np.clip(np.linalg.eigvalsh(matrix), 0, None))
    return max(0.0, float(-np.log(roots.max() / roots.sum()) / np.log(len(matrix)))) if roots.any() else 0.0


def _pairs(captions: Grouped) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every caption with every caption of its photo, itself too: sorted by the one, then by the other."""
    counts = np.diff(captions.first)
    siblings = np.repeat(counts, counts)  # for each caption, how many its photo has
    one = np.repeat(np.arange(len(siblings)), siblings)
    nth = np.arange(len(one)) - np.repeat(siblings.cumsum() - siblings, siblings)
    return one, np.repeat(captions.first[:-1], counts)[one] + nth
