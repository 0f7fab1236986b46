"""Regions that a captioner does not see in a step: its captions must not depend on a single one."""

from __future__ import annotations

import torch
from torch import Tensor

from tellapart.data.streams import REGIONS, Inputs, Stream


def hide_some(inputs: Inputs, chance: float) -> Inputs:
    """The same inputs without some of their regions, each hidden with this chance."""
    if chance == 0 or REGIONS not in inputs:
        return inputs
    values, mask = inputs[REGIONS]
    return Inputs(inputs | {REGIONS: Stream(values, visible(mask, chance))})


def visible(mask: Tensor, hidden: float) -> Tensor:
    """mask (B, R) without the regions that chance hides; of each photo at least one stays.

    hidden  the chance of a region to be hidden
    """
    if hidden == 0:
        return mask
    chance = torch.rand(mask.shape, device=mask.device).masked_fill(~mask, -1)
    return mask & (chance >= chance.amax(1, keepdim=True).clamp(max=hidden))
