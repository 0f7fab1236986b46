"""Is a caption that of one photo alone?  Words that stand under many photos of an album tell its reader nothing.

Ranks by a retriever are about what a caption means; this is about the very words.  It looks at captions of other
photos in the last steps, so it follows the captioner: words that have become common in training are no longer paid for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tellapart.rewards import Reward, SampledCaptions

_FACTOR = 0x5851F42D4C957F2D  # odd, so that no word is lost in the product; the multiplier of Knuth's MMIX


def _alone(own: Any) -> list[Any]:
    return [own]


class Different:
    """Minus ln(1 + n) for a caption that other photos got n times lately; 0 for one that is its photo's alone.

    window  how many captions are remembered: the last ones
    gather  what each process gives, by rank: all of them remember the same
    """

    def __init__(self, window: int = 16384, gather: Callable[[Any], list[Any]] = _alone):
        if window < 1:
            raise ValueError(f"at least one caption must be remembered, not {window}")
        self._gather = gather
        self._fingerprints = torch.zeros(window, dtype=torch.long)  # fingerprints, the oldest first
        self._photos = torch.full((window,), -1)  # of which photo; -1 where there was none yet

    def __call__(self, sampled: SampledCaptions) -> Reward:
        same = fingerprints(sampled)[:, None] == self._fingerprints
        of_others = (self._photos >= 0) & (self._photos != sampled.photos.cpu()[:, None])
        return Reward(-(same & of_others).sum(1).float().log1p().to(sampled.words.device))

    def remember(self, sampled: SampledCaptions | None) -> None:
        """Captions that were learned from; None where this process has none of the batch."""
        own = [] if sampled is None else [fingerprints(sampled).tolist(), sampled.photos.tolist()]
        for batch in filter(None, self._gather(own)):
            latest, photos = torch.tensor(batch)
            self._fingerprints = torch.cat([self._fingerprints, latest])[-len(self._fingerprints) :]
            self._photos = torch.cat([self._photos, photos])[-len(self._photos) :]

    def state(self) -> Tensor:
        """(2, window), for a checkpoint"""
        return torch.stack([self._fingerprints, self._photos])

    def restore(self, state: Tensor) -> None:
        self._fingerprints, self._photos = state.cpu().unbind()


def fingerprints(sampled: SampledCaptions) -> Tensor:
    """(N,) a number for the words of each caption: the same for the same words, another one for others.

    A polynomial of the words modulo 2^64: that two captions of a window share one by chance is out of the question.
    """
    tokens = ((sampled.words + 1) * sampled.mask).cpu()  # 0 is no word, so that padding adds nothing
    place = torch.full((tokens.shape[1],), _FACTOR).cumprod(0)
    return (tokens * place).sum(1)
