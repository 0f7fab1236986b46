"""Several captioners as one: at each word, the mean of their probabilities.

They share the vocabulary and the features; each has a memory and a state of its own.  What they give out as logits is
the log of the mean probability, which is normalised already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tellapart.captioners import Captioner
from tellapart.data.streams import Inputs


class Ensemble:
    """A captioner, for decoding; its members are trained each by itself."""

    def __init__(self, members: Sequence[Captioner]):
        if not members:
            raise ValueError("an ensemble needs a member at least")
        self.members = tuple(members)
        if longest := [member.max_words for member in members if hasattr(member, "max_words")]:
            self.max_words = max(longest)  # of a caption, where a member says so

    def encode(self, inputs: Inputs) -> tuple[Any, ...]:
        return tuple(member.encode(inputs) for member in self.members)

    def start(self, memory: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(member.start(rows) for member, rows in zip(self.members, memory, strict=True))

    def step(self, token: Tensor, state: tuple[Any, ...], memory: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        each = [m.step(token, *parts) for m, *parts in zip(self.members, state, memory, strict=True)]
        return _log_of_mean([logits for logits, _ in each]), tuple(state for _, state in each)

    def forward(self, tokens: Tensor, memory: tuple[Any, ...], token_mask: Tensor | None = None) -> Tensor:
        return _log_of_mean([m.forward(tokens, rows, token_mask) for m, rows in zip(self.members, memory, strict=True)])


def _log_of_mean(logits: Sequence[Tensor]) -> Tensor:
    """The log of the mean of softmaxes, from their logs: probabilities too small for a float are not lost."""
    dtype = torch.promote_types(logits[0].dtype, torch.float32)
    each = torch.stack([F.log_softmax(member, dim=-1, dtype=dtype) for member in logits])
    return each.logsumexp(0) - math.log(len(logits))
