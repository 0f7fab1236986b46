"""Confidence intervals and paired tests: photos are resampled with replacement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capscore.statistics import Statistics

SAMPLES = 1000
LEAST_P = 2 / (SAMPLES + 1)  # what a difference that has one sign in all samples is given
_BLOCK = 64  # samples at once: the counts of 40,000 photos then take 20 MB


class Difference(NamedTuple):
    """One model's score minus another's on the same photos."""

    value: float
    low: float  # ends of the 95 % interval
    high: float
    p: float  # two-sided: how often resampling takes the difference to the other side of 0


def intervals(measures: list[Statistics], *, samples: int = SAMPLES, seed: int = 0) -> dict[str, tuple[float, float]]:
    """The 95 % interval of each score of each measure."""
    drawn = _resampled(measures, samples, seed)
    return {name: _ends(scores) for name, scores in drawn.items()}


def differences(
    ours: list[Statistics], theirs: list[Statistics], *, samples: int = SAMPLES, seed: int = 0
) -> dict[str, Difference]:
    """Ours minus theirs, both measured on the same photos in the same order: each sample draws them alike for both.

    Scores that only one side has are left out.  One photo shows no spread, and so no difference.
    """
    one, other = _resampled(ours, samples, seed), _resampled(theirs, samples, seed)
    point, against = _corpus(ours), _corpus(theirs)
    found = {}
    for name in (name for name in one if name in other):
        drawn = one[name] - other[name]
        # a sample counts on both sides where it is exactly 0; no finite number of samples can show a p of 0
        below, above = (np.sum(drawn <= 0) + 1) / (samples + 1), (np.sum(drawn >= 0) + 1) / (samples + 1)
        p = min(1.0, 2 * float(min(below, above))) if len(ours[0].rows) > 1 else 1.0
        found[name] = Difference(point[name] - against[name], *_ends(drawn), p)
    return found


def _corpus(measures: list[Statistics]) -> dict[str, float]:
    return {name: score for measure in measures for name, score in measure.corpus().items()}


def _ends(scores: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(scores, [2.5, 97.5])
    return float(low), float(high)


def _resampled(measures: list[Statistics], samples: int, seed: int) -> dict[str, NDArray[np.float64]]:
    """Each score in each sample.  The draws depend on the seed and the number of photos only."""
    if not measures or not len(measures[0].rows):
        return {}
    found: dict[str, list[NDArray[np.float64]]] = {name: [] for measure in measures for name in measure.names}
    for counts in draws(len(measures[0].rows), samples, seed):
        for measure in measures:
            for name, scores in zip(measure.names, measure.value(counts @ measure.rows).T, strict=True):
                found[name].append(scores)
    return {name: np.concatenate(scores) for name, scores in found.items()}


def draws(photos: int, samples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """(block, N): how often each photo is in each sample."""
    generator = np.random.default_rng(seed)
    for start in range(0, samples, _BLOCK):
        block = min(_BLOCK, samples - start)
        chosen = generator.integers(photos, size=(block, photos)) + np.arange(block)[:, None] * photos
        yield np.bincount(chosen.ravel(), minlength=block * photos).reshape(block, photos).astype(np.float64)
