"""The group embedding gap (GEG, "CLIP-guided group optimisation", Eqs. 3 and 4) and what it is compared with.

By how much does a caption fit its own photo better than the look-alikes of that photo?  Than they do on average, or
than the one that it fits best.  The similarity f(I, c) alone, without a group, is the reward of the ablation ER.

Ours: a curriculum.  A group can begin with photos that are easy to tell apart and end with the hardest.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tellapart.metrics.similarity import gap_to_highest, gap_to_mean
from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.frozen_retriever import FrozenRetriever, look_up

Kind = Literal["average", "hardest"]


def gap(own: Tensor, group: Tensor, exists: Tensor, kind: Kind) -> Tensor:
    """G_avg (Eq. 3) or G_min (Eq. 4).

    own      (N,)   similarity of each caption to its photo
    group    (N, k) to the look-alikes of that
    exists   (N, k) False where there is no further look-alike
    kind            "average": minus the mean over the look-alikes; "hardest": minus the highest of them
    returns  (N,)   `own` where there is none at all
    """
    return (gap_to_mean if kind == "average" else gap_to_highest)(own, group, exists)


def at_progress(groups: Tensor, k: int, progress: float) -> Tensor:
    """The k look-alikes that stand for a photo at this point of a training: the farthest at 0, the nearest at 1.

    groups    (N, M) nearest first, -1 after the last
    progress  the window of k moves linearly from the last of a photo's look-alikes to the first
    returns   (N, k), or (N, M) if that is less
    """
    k = min(k, groups.shape[1])
    farther = ((groups >= 0).sum(1) - k).clamp(min=0)  # look-alikes beyond the nearest k
    first = (farther * (1 - min(max(progress, 0.0), 1.0))).round().long()
    return groups.gather(1, first[:, None] + torch.arange(k, device=groups.device))


class GroupGap:
    """G of captions.

    groups      (P, M) positions of each photo's look-alikes, nearest first, -1 after the last
    kind        "average": G_avg; "hardest": G_min
    k           how many of them are a group; the paper's 5
    curriculum  the group moves from the farthest k to the nearest k during the training; else: the nearest k
    scale       the gap is multiplied with this
    """

    def __init__(
        self,
        retriever: FrozenRetriever,
        groups: Tensor,
        kind: Kind = "average",
        *,
        k: int = 5,
        curriculum: bool = False,
        scale: float = 1.0,
    ):
        if groups.ndim != 2 or len(groups) != len(retriever) or not groups.shape[1]:
            raise ValueError(f"{len(retriever)} photos and groups of shape {tuple(groups.shape)}")
        if kind not in ("average", "hardest") or k < 1:
            raise ValueError(f"there is no gap of kind {kind!r} to {k} look-alikes")
        self.retriever, self.groups, self.kind, self.k = retriever, groups, kind, k
        self.curriculum, self.scale = curriculum, scale

    def __call__(self, sampled: SampledCaptions) -> Reward:
        progress = sampled.progress if self.curriculum else 1.0
        groups = at_progress(look_up(self.groups, sampled.photos).to(sampled.words.device), self.k, progress)
        group = self.retriever.to_photos(sampled, groups.clamp(min=0))
        exists = groups >= 0
        gaps = gap(self.retriever.to_own(sampled), group, exists, self.kind)
        return Reward(gaps.masked_fill(~exists.any(1), 0) * self.scale)


class OwnSimilarity:
    """f(I, c): how well a caption fits its photo, regardless of others."""

    def __init__(self, retriever: FrozenRetriever):
        self.retriever = retriever

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(self.retriever.to_own(sampled))
