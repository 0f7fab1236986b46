"""What every decoder shares: the first word, and what counts as a log-probability."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def opening(memory: Any, bos: int) -> Tensor:
    """The token before the first word, once per photo: (B,), on the memory's device."""
    leaf = next(_leaves(memory))
    return torch.full((len(leaf),), bos, device=leaf.device)


def _leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of nested tuples, some of which may be empty."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        for part in tree:
            yield from _leaves(part)


def log_probabilities(logits: Tensor) -> Tensor:
    """log softmax over the last dimension, in single precision at least: sums of half-precision log p drift."""
    return F.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
