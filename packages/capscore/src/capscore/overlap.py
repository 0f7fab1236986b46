"""Measures of word overlap: BLEU, ROUGE-L, CIDEr and CIDEr-D as the COCO evaluation computes them, and what is made of
them: agreement with the references of look-alikes, and diversity of several captions of one photo.

In each, caption i is compared with the references of photo `photos[i]`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capscore.compiled import compiled, over_cores
from capscore.ngrams import ORDERS, Frequencies, References
from capscore.sentences import Grouped, Sentences, check_photos
from capscore.statistics import Floats, Statistics, ratio_of

Longs = NDArray[np.int64]


# BLEU-1 to BLEU-4 (Papineni et al., 2002), with the closest reference's length

# The COCO evaluation keeps its fractions from 0/0 with these; they show in the scores of single captions.
_TINY, _SMALL = 1e-15, 1e-9


def bleu(captions: Sentences, photos: Longs, references: References) -> Statistics:
    guesses = np.maximum(captions.lengths[:, None] - np.arange(ORDERS), 0)
    matches, closest = references.clipped(captions, photos)
    rows = [captions.lengths[:, None], closest[:, None], guesses, matches]
    names = tuple(f"BLEU-{n}" for n in range(1, ORDERS + 1))
    return Statistics(names, np.concatenate(rows, 1).astype(np.float64), bleu_value)


def bleu_value(sums: Floats) -> Floats:
    """(..., 2 + 2 ORDERS): length, reference length, n-grams, matches → (..., ORDERS)."""
    length, reference_length = sums[..., 0], sums[..., 1]
    guesses, matches = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
    precisions = np.cumprod((matches + _TINY) / (guesses + _SMALL), -1)
    means = precisions ** (1 / np.arange(1, ORDERS + 1))
    ratio = (length + _TINY) / (reference_length + _SMALL)
    brevity = np.exp(1 - 1 / np.minimum(ratio, 1))
    scores: Floats = means * brevity[..., None]
    return scores


# CIDEr and CIDEr-D (Vedantam et al., 2015): agreement by rare n-grams.  CIDEr-D, which the field's leaderboards call
# "CIDEr", counts no n-gram more often than the reference has it, and has a penalty on the difference in length.

SIGMA = 6.0  # of the length penalty, in words
_SCALE = 10.0


def cider_d(captions: Sentences, photos: Longs, references: References) -> Floats:
    """(N,) on the scale of the COCO evaluation: 1.2 is what papers print as 120."""
    return _SCALE * references.cosines(captions, photos, clip=True, sigma=SIGMA)


def cider(captions: Sentences, photos: Longs, references: References) -> Floats:
    return _SCALE * references.cosines(captions, photos, clip=False, sigma=np.inf)


# ROUGE-L (Lin, 2004): the longest common subsequence with the references

_BETA = 1.2  # recall counts this much more than precision


def rouge_l(captions: Sentences, photos: Longs, references: Grouped) -> Floats:
    """(N,), from the best precision and the best recall of any reference."""
    check_photos(captions, photos, len(references))
    scores = np.zeros(len(captions))
    reference = references.sentences

    def work(start: int, stop: int) -> None:
        _rouge(captions.tokens, captions.starts, captions.lengths, photos, start, stop, reference.tokens,
               reference.starts, reference.lengths, references.first, _BETA, scores)  # fmt: skip

    over_cores(work, len(captions))
    return scores


@compiled
def _rouge(tokens: NDArray[np.int32], starts: Longs, lengths: Longs, photos: Longs, begin: int, end: int,
           reference: NDArray[np.int32], reference_starts: Longs, reference_lengths: Longs, first: Longs, beta: float,
           scores: Floats) -> None:  # fmt: skip
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
def _common(caption: NDArray[np.int32], reference: NDArray[np.int32], row: Longs) -> int:
    """Length of the longest common subsequence; row[i + 1]: of caption[: i + 1] and what was read."""
    row[: len(caption) + 1] = 0
    for token in reference:
        diagonal = 0
        for i in range(len(caption)):
            above = row[i + 1]
            if caption[i] == token:
                row[i + 1] = diagonal + 1
            elif row[i] > above:
                row[i + 1] = row[i]
            diagonal = above
    return int(row[len(caption)])


# Look-alikes, for measures that see no photo: photos with similar references


def look_alikes(references: Grouped, k: int) -> Longs:
    """(P, k): the photos whose references are nearest to photo p's, by the cosine of tf-idf vectors of their words.

    All references of a photo are one document.  Of equally near ones the earlier come first; with fewer than k other
    photos, all of them.
    """
    sentences, photos = references.sentences, len(references)
    of_photo = np.repeat(np.repeat(np.arange(photos), np.diff(references.first)), sentences.lengths)
    lengths = sentences.lengths
    positions = np.arange(lengths.sum()) + np.repeat(sentences.starts - (lengths.cumsum() - lengths), lengths)
    tokens = sentences.tokens[positions]
    pairs, times = np.unique(tokens.astype(np.int64) * photos + of_photo, return_counts=True)  # sorted by token
    token, photo = np.divmod(pairs, max(photos, 1))
    _, entry, frequency = np.unique(token, return_inverse=True, return_counts=True)
    weight: Floats = np.multiply(times, np.log(photos / frequency[entry]))
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


@compiled
def _nearest(begin: int, end: int, bags: Longs, entries: Longs, weights: Floats, lists: Longs, listed: Longs,
             listed_weights: Floats, nearest: Longs) -> None:  # fmt: skip
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


def cider_between(captions: Sentences, references: References, look_alikes: Longs) -> Floats:
    """CIDErBtw (Wang et al., 2020): (N,) CIDEr-D of a caption against its look-alikes' references; less is better."""
    photos, k = look_alikes.shape
    each = cider_d(captions[np.repeat(np.arange(photos), k)], look_alikes.ravel(), references)
    return each.reshape(photos, k).mean(1) if k else np.zeros(photos)


# Diversity: how different the captions of one photo are from each other, where a model gives several


def mutual_bleu(captions: Grouped) -> Statistics:
    """mBLEU: BLEU of each caption of a photo against its other captions; less is more diverse.

    A photo with one caption has nothing to compare it with and adds nothing.
    """
    owner = np.repeat(np.arange(len(captions)), np.diff(captions.first))
    row, sibling = _pairs(captions)
    row, sibling = row[row != sibling], sibling[row != sibling]
    groups = Grouped(captions.sentences[sibling], np.searchsorted(row, np.arange(len(owner) + 1)))
    compared = np.flatnonzero(np.diff(groups.first))  # captions with siblings
    each = bleu(captions.sentences[compared], compared, References(groups))
    rows = np.zeros((len(captions), each.rows.shape[1]))
    np.add.at(rows, owner[compared], each.rows)
    return Statistics(tuple(f"m{name}" for name in each.names), rows, each.value)


def self_cider(captions: Grouped, frequencies: Frequencies) -> Statistics:
    """self-CIDEr (Wang and Chan, 2019): 0 where the captions of a photo are alike, 1 where they share nothing.

    From the matrix of CIDEr between the photo's captions, -log of the share that the largest root of its eigenvalues
    has of all, to the base of the number of captions.  A photo with one caption has no part in the mean.
    """
    row, sibling = _pairs(captions)
    alone = Grouped(captions.sentences, np.arange(len(captions.sentences) + 1))  # every caption is a reference
    cosines = References(alone, frequencies).cosines(captions.sentences[row], sibling, clip=False, sigma=np.inf)
    counts = np.diff(captions.first)
    matrices = np.split(cosines, (counts**2).cumsum()[:-1])
    scores = [_spread(matrix.reshape(count, count)) for matrix, count in zip(matrices, counts, strict=True)]
    return ratio_of("self-CIDEr", np.array(scores), (counts > 1).astype(np.float64))


def _spread(matrix: Floats) -> float:
    if len(matrix) < 2:
        return 0.0
    roots = np.sqrt(np.clip(np.linalg.eigvalsh(matrix), 0, None))
    return max(0.0, float(-np.log(roots.max() / roots.sum()) / np.log(len(matrix)))) if roots.any() else 0.0


def _pairs(captions: Grouped) -> tuple[Longs, Longs]:
    """Every caption with every caption of its photo, itself too: sorted by the first, then by the second."""
    counts = np.diff(captions.first)
    siblings = np.repeat(counts, counts)  # for each caption, how many its photo has
    row = np.repeat(np.arange(len(siblings)), siblings)
    nth = np.arange(len(row)) - np.repeat(siblings.cumsum() - siblings, siblings)
    return row, np.repeat(captions.first[:-1], counts)[row] + nth
