"""The optimiser: its learning rate as a function of the step, its groups of weights, clipping, and the running mean of
the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from tellapart.models import own_weights
from tellapart.recipe import OptimConfig, Recipe, ScheduledSampling


def learning_rate(config: OptimConfig, step: int, total: int, steps_per_epoch: float) -> float:
    """For the optimiser step with this number, counted from 0."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.schedule == "step":
        epoch = int(step / steps_per_epoch + 1e-9)  # because 7 // (7 / 3) is 2
        return config.lr * config.decay ** (epoch // config.decay_epochs)
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "noam":
        # lr * min((s+1)^-.5, (s+1) * warmup^-1.5) * warmup^.5, whose other half is the warm-up of all schedules
        return config.lr * math.sqrt(max(1, config.warmup) / (step + 1))
    done = (step - config.warmup) / max(1, total - config.warmup)
    falling = 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.lr * (config.final_lr_ratio + (1 - config.final_lr_ratio) * falling)


def chance_of_own_words(config: ScheduledSampling, epoch: int, progress: float = 0.0) -> float:
    """In an epoch, counted from 0, or at this share of the whole training if there is a curve."""
    if config.curve:
        at, chances = zip(*config.curve, strict=True)
        return float(np.interp(progress, at, chances))
    if config.start < 0 or epoch < config.start:
        return 0.0
    return min(config.most, config.increase * ((epoch - config.start) // config.every + 1))


def clip(model: nn.Module, norm: float, value: float) -> float:
    """Clip gradients by value, then by norm; returns the norm before."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    before = torch.nn.utils.clip_grad_norm_(parameters, norm if norm > 0 and value <= 0 else math.inf)
    if value > 0:
        torch.nn.utils.clip_grad_value_(parameters, value)
        if norm > 0:
            torch.nn.utils.clip_grad_norm_(parameters, norm)
    return before.item()


def build_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW; vectors (biases, norms) and embeddings are not decayed.

    A network may have a method `rate_of(parameter)`: what the learning rate of some parts is multiplied with.
    """
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    rate_of: Callable[[str], float] = getattr(model, "rate_of", lambda name: 1.0)
    parts = dict[tuple[float, bool], list[nn.Parameter]]()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            kept = parameter.ndim < 2 or id(parameter) in embeddings
            parts.setdefault((rate_of(name), kept), []).append(parameter)
    groups = [
        {"params": parts[rate, kept], "weight_decay": 0.0 if kept else recipe.optim.weight_decay, "rate": rate}
        for rate, kept in sorted(parts, key=lambda part: (-part[0], part[1]))
    ]
    return torch.optim.AdamW(groups, lr=recipe.optim.lr, betas=recipe.optim.betas, fused=True)


class MeanWeights:
    """Exponential mean of a model's weights, without weight on how the model was before its first step.

    Single weights of a policy gradient jump about from step to step with the captions that were drawn; their mean
    captions better than the last of them does, and it costs a pass over the weights (Polyak and Juditsky, 1992).

    decay  how much of the mean a step leaves: it reaches back about 1 / (1 - decay) steps
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self._weights = {name: weight for name, weight in own_weights(model).items() if weight.is_floating_point()}
        self._mean = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
        self._steps = torch.zeros((), dtype=torch.int64)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        self._steps += 1
        # The mean of n steps counts (1 - decay**n) in all: dividing by that is what makes the first step count in full.
        share = (1 - self.decay) / (1 - self.decay ** int(self._steps))
        for name, mean in self._mean.items():
            mean.lerp_(self._weights[name], share)

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
            weight = self._weights[name].clone()
            self._weights[name].copy_(mean)
            mean.copy_(weight)

    def state(self) -> dict[str, Tensor]:
        return {"steps": self._steps} | {f"weights/{name}": mean for name, mean in self._mean.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        self._steps.copy_(state["steps"])
        for name, mean in self._mean.items():
            mean.copy_(state[f"weights/{name}"])
