"""What a measure needs to know of each photo, so that one function can resample any measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Direction = Literal["higher", "lower", "neither"]  # of a score: which way it gets better


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


def mean_of(name: str, scores: Floats) -> Statistics:
    """A measure whose corpus value is the mean of its photos' values."""
    return ratio_of(name, scores, np.ones(len(scores)))


def ratio_of(name: str, above: Floats, below: Floats) -> Statistics:
    """A measure that is one total over another, such as a share of all words of all captions."""
    return Statistics((name,), np.stack([above, below], 1).astype(np.float64), quotients)


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
