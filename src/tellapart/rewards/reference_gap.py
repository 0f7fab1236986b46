"""The reference gap: how much nearer a caption is to its photo's references than to those of its look-alikes."""

from __future__ import annotations

import torch
from torch import Tensor

from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.consensus import Consensus
from tellapart.rewards.group_gap import Kind, gap


class ReferenceGap:
    """The gap in CIDEr-D, or in another measure of `consensus`.  It cannot pay for invented detail.

    consensus    compares captions with the references of a photo
    look_alikes  (P, k) positions of each photo's look-alikes in the data; -1 where there are fewer than k
    kind         "average": minus the mean over the look-alikes; "hardest": minus the highest of them

    A caption that is itself one of its photo's references is compared with the others of them.
    """

    def __init__(self, consensus: Consensus, look_alikes: Tensor, kind: Kind = "average"):
        if kind not in ("average", "hardest"):
            raise ValueError(f"kind must be average or hardest, not {kind!r}")
        self._consensus, self._look_alikes, self._kind = consensus, look_alikes.cpu(), kind

    def __call__(self, sampled: SampledCaptions) -> Reward:
        tokens, photos = sampled.ids.cpu(), sampled.photos.cpu()
        compared = torch.cat([photos[:, None], self._look_alikes[photos]], 1)  # (N, 1 + k)
        exists = compared >= 0
        left_out = None
        if sampled.reference is not None:
            left_out = torch.full_like(compared, -1)
            left_out[:, 0] = sampled.reference.cpu()
            left_out = left_out[exists]
        scores = torch.zeros(compared.shape)
        rows = exists.nonzero()[:, 0]
        scores[exists] = self._consensus(tokens[rows], compared[exists], left_out)
        return Reward(gap(scores[:, 0], scores[:, 1:], exists[:, 1:], self._kind).to(sampled.words.device))
