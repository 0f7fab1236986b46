"""Learning rate and scheduled sampling as functions of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

import numpy as np

from tellapart.recipe import OptimConfig, ScheduledSampling


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
