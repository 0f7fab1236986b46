"""A running mean of the weights: what a run keeps where its recipe asks for one.

Single weights of a policy gradient jump about from step to step with the captions that were drawn; their mean along the
way captions better than the last of them does, and it costs a pass over the weights (Polyak and Juditsky, 1992).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tellapart.models import own_weights


class MeanWeights:
    """Exponential mean of a model's weights, without weight on how the model was before its first step.

    decay  how much of the mean a step leaves: it reaches back about 1 / (1 - decay) steps
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self._own = {name: weight for name, weight in own_weights(model).items() if weight.is_floating_point()}
        self._mean = {name: torch.zeros_like(weight) for name, weight in self._own.items()}
        self._steps = torch.zeros((), dtype=torch.int64)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        self._steps += 1
        # The mean of n steps counts (1 - decay**n) in all: dividing by that is what makes the first step count in full.
        share = (1 - self.decay) / (1 - self.decay ** int(self._steps))
        for name, mean in self._mean.items():
            mean.lerp_(self._own[name], share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the mean as its weights for a while.  Before the first step that is what it had."""
        if not self._steps:
            yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, mean in self._mean.items():
            before = self._own[name].clone()
            self._own[name].copy_(mean)
            mean.copy_(before)

    def state(self) -> dict[str, Tensor]:
        return {"steps": self._steps} | {f"weights/{name}": mean for name, mean in self._mean.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        self._steps.copy_(state["steps"])
        for name, mean in self._mean.items():
            mean.copy_(state[f"weights/{name}"])
