"""Softmax and mean over the regions that exist.

A photo of which nothing was found has no region at all: what is seen of it are zeros, and never NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, hidden: Tensor) -> Tensor:
    """Weights over the last dimension that add up to 1, or are all 0 where everything is hidden.

    >>> masked_softmax(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([False, False, True]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    lowest = torch.finfo(scores.dtype).min  # infinity would make a row without any region NaN, in the gradients too
    return scores.masked_fill(hidden, lowest).softmax(-1).masked_fill(hidden, 0.0)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over the rows that there are: values (..., R, C), mask fits (..., R) -> (..., C); 0 of no rows."""
    present = mask[..., None].to(values.dtype)
    return (values * present).sum(-2) / present.sum(-2).clamp(min=1.0)
