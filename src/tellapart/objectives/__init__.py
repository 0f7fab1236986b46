"""Objectives: what a captioner or a retriever learns from a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class StepInfo(NamedTuple):
    """When in a run a step is taken."""

    epoch: int  # counted from 0
    progress: float  # from 0 to 1


class StepResult(NamedTuple):
    """Result of a step over a batch, or over this process's share of one.

    The loss of the whole batch is the mean of the shares' by weight.  A share without photos weighs nothing, but its
    log line has the same names as any other.
    """

    loss: Tensor
    weight: float  # words, say, where the loss is a mean over words
    log: dict[str, float]  # the loss, and means over what is weighed, or over `captions`
    captions: int | None = None  # in the share, where they are what is counted
