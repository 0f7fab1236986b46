"""Shots of a video: where its colours change from one frame to the next far more than they did just before."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from tellapart.data.media.clips import Clip

SHORTEST = 2.0  # seconds; a shorter shot is a part of the one before
_CUT = 0.3  # share of the pixels that change their colour
_TIMES = 4.0  # as much as in the frames before: shaking and flicker are no cuts
_BEFORE = 12  # frames
_SIDE = 48  # pixels of a frame that is compared
_COLOURS = 4  # of each channel


def cuts(clip: Clip) -> list[float]:
    """The times at which a shot follows another, ascending; all frames are decoded, one at a time."""
    found: list[float] = []
    before: NDArray[np.uint8] | None = None
    changes = deque[float](maxlen=_BEFORE)
    for time, frame in clip.small(_SIDE):
        if before is not None:
            change = colour_change(before, frame)
            usual = float(np.mean(changes)) if changes else 0.0
            if change > max(_CUT, _TIMES * usual):
                found.append(time)
                changes.clear()
            else:
                changes.append(change)
        before = frame
    return found


def shots(clip: Clip, shortest: float = SHORTEST) -> list[tuple[float, float]]:
    """From when to when each shot lasts; none is shorter than `shortest` unless the clip is."""
    starts = [0.0]
    for time in cuts(clip):
        if time - starts[-1] >= shortest and clip.duration - time >= shortest:
            starts.append(time)
    return list(zip(starts, [*starts[1:], clip.duration], strict=True))


def pieces(clip: Clip, seconds: float) -> list[tuple[float, float]]:
    """Equal lengths, and what remains; where no frame is shown for long there is no piece."""
    numbers = dict.fromkeys((clip.times // seconds).astype(np.int64).tolist())
    return [(number * seconds, min((number + 1) * seconds, max(clip.duration, 0.0))) for number in numbers]


def colour_change(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> float:
    """The share of the pixels that have other colours, wherever in the frame."""
    return float(np.abs(_histogram(before) - _histogram(after)).sum()) / 2


def _histogram(frame: NDArray[np.uint8]) -> NDArray[np.float64]:
    """How often each of 64 colours occurs.  (64,), sums to 1"""
    red, green, blue = (frame.reshape(-1, 3).astype(np.int64) * _COLOURS // 256).T
    counts = np.bincount((red * _COLOURS + green) * _COLOURS + blue, minlength=_COLOURS**3).astype(np.float64)
    return np.asarray(counts / counts.sum())
