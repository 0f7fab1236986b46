"""Statistics of each photo that add up to a score, so that one function resamples any measure: intervals, tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Statistics:
    """Sufficient statistics: their sum over any photos, taken as often as one likes, gives the score of these photos.

    names  the M scores that they hold
    rows   (N, S)               one row a photo
    value  (..., S) → (..., M)  the scores of a sum of rows; never NaN
    """

    names: tuple[str, ...]
    rows: Floats
    value: Callable[[Floats], Floats]

    def corpus(self) -> dict[str, float]:
        return dict(zip(self.names, self.value(self.rows.sum(0)).tolist(), strict=True))

    def per_photo(self) -> Floats:
        """(N, M)"""
        return self.value(self.rows)


def mean_of(name: str, scores: ArrayLike) -> Statistics:
    """A measure whose corpus value is the mean of its photos' values (N,)."""
    values = np.asarray(scores, np.float64)
    return ratio_of(name, values, np.ones(len(values)))


def ratio_of(name: str, above: ArrayLike, below: ArrayLike) -> Statistics:
    """A measure that is one total over another, both (N,), such as a share of all words of all captions."""
    return Statistics((name,), np.stack([np.asarray(above, np.float64), np.asarray(below, np.float64)], 1), quotients)


def share_of_words(name: str, captions: Sequence[Sequence[str]], counts: Callable[[int, str], bool]) -> Statistics:
    """Words that count, as a share of all words of all captions.  `counts` is given the photo's number and the word."""
    above = [sum(counts(photo, word) for word in words) for photo, words in enumerate(captions)]
    return ratio_of(name, above, [len(words) for words in captions])


def shares(items: Sequence[Sequence[Hashable]]) -> Floats:
    """(N,) for each photo the sum, over its items, of one part in as many as all photos have of the item.

    So the size of a set, of all different words say, is a sum over photos, and can be resampled like all others.
    """
    times = Counter(item for of_one in items for item in of_one)
    return np.array([sum(1 / times[item] for item in of_one) for of_one in items], np.float64)


def mean_of_runs(runs: Sequence[Statistics]) -> Statistics:
    """The same measure of several runs on the same photos: the mean of their scores, resampled together."""

    def value(sums: Floats) -> Floats:
        parts = np.split(sums, len(runs), axis=-1)
        mean: Floats = np.mean([run.value(part) for run, part in zip(runs, parts, strict=True)], axis=0)
        return mean

    return Statistics(runs[0].names, np.concatenate([run.rows for run in runs], axis=1), value)


def quotients(sums: Floats) -> Floats:
    """(..., 2 M), each score's numerator and denominator side by side → (..., M); 0 where that is 0."""
    pairs = sums.reshape(*sums.shape[:-1], -1, 2)
    return np.divide(pairs[..., 0], pairs[..., 1], out=np.zeros(pairs.shape[:-1]), where=pairs[..., 1] != 0)


# Photos are resampled with replacement

SAMPLES = 1000
LEAST_P = 2 / (SAMPLES + 1)  # of a difference that has one sign in all samples
_BLOCK = 64  # samples at once: the counts of 40,000 photos then take 20 MB


class Difference(NamedTuple):
    """One model's score minus another's on the same photos."""

    value: float
    low: float  # ends of the 95 % interval
    high: float
    p: float  # two-sided: how often resampling takes the difference to the other side of 0


def intervals(measures: list[Statistics], *, samples: int = SAMPLES, seed: int = 0) -> dict[str, tuple[float, float]]:
    """The 95 % interval of each score of each measure."""
    return {name: _ends(scores) for name, scores in _resampled(measures, samples, seed).items()}


def differences(
    ours: list[Statistics], theirs: list[Statistics], *, samples: int = SAMPLES, seed: int = 0
) -> dict[str, Difference]:
    """Ours minus theirs, both measured on the same photos in the same order: each sample draws them alike for both.

    Scores that only one side has are left out.  One photo shows no spread, and so no difference.
    """
    our_samples, their_samples = _resampled(ours, samples, seed), _resampled(theirs, samples, seed)
    our_scores, their_scores = _corpus(ours), _corpus(theirs)
    result = {}
    for name in (name for name in our_samples if name in their_samples):
        drawn = our_samples[name] - their_samples[name]
        # a sample counts on both sides where it is exactly 0; no finite number of samples can show a p of 0
        below, above = (np.sum(drawn <= 0) + 1) / (samples + 1), (np.sum(drawn >= 0) + 1) / (samples + 1)
        p = min(1.0, 2 * float(min(below, above))) if len(ours[0].rows) > 1 else 1.0
        result[name] = Difference(our_scores[name] - their_scores[name], *_ends(drawn), p)
    return result


def _corpus(measures: list[Statistics]) -> dict[str, float]:
    return {name: score for measure in measures for name, score in measure.corpus().items()}


def _ends(scores: Floats) -> tuple[float, float]:
    low, high = np.percentile(scores, [2.5, 97.5])
    return float(low), float(high)


def _resampled(measures: list[Statistics], samples: int, seed: int) -> dict[str, Floats]:
    """Each score in each sample.  The draws depend on the seed and the number of photos only."""
    if not measures or not len(measures[0].rows):
        return {}
    result: dict[str, list[Floats]] = {name: [] for measure in measures for name in measure.names}
    for counts in draws(len(measures[0].rows), samples, seed):
        for measure in measures:
            for name, scores in zip(measure.names, measure.value(counts @ measure.rows).T, strict=True):
                result[name].append(scores)
    return {name: np.concatenate(scores) for name, scores in result.items()}


def draws(photos: int, samples: int, seed: int) -> Iterator[Floats]:
    """(block, N): how often each photo is in each sample."""
    generator = np.random.default_rng(seed)
    for start in range(0, samples, _BLOCK):
        block = min(_BLOCK, samples - start)
        rows = generator.integers(photos, size=(block, photos)) + np.arange(block)[:, None] * photos
        yield np.bincount(rows.ravel(), minlength=block * photos).reshape(block, photos).astype(np.float64)
