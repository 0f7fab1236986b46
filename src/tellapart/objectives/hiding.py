"""Regions that a captioner does not see in a step: what it says must not hang on one of them."""

from __future__ import annotations

import torch
from torch import Tensor


def visible(mask: Tensor, hidden: float) -> Tensor:
    """mask (B, R) without the regions that chance hides; of each photo at least one stays.

    hidden  the chance of a region to be hidden
    """
    if hidden == 0:
        return mask
    chance = torch.rand(mask.shape, device=mask.device).masked_fill(~mask, -1)
    return mask & (chance >= chance.amax(1, keepdim=True).clamp(max=hidden))
