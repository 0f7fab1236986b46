"""The training loop: one for every objective.

It owns the optimiser, clipping, accumulation, number type, logging, validation, saving and stopping; an objective owns
only a step, from a batch to a loss and a log line.  Several processes go through it side by side: each has its share of
every batch, their gradients are added up, and all take the same decisions.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from capscore.errors import UserError
from capscore.progress import Progress
from tellapart import models, numerics
from tellapart.data.batches import BatchStream
from tellapart.distributed import SINGLE, ProcessGroup, SharedError
from tellapart.metrics import descriptions
from tellapart.objectives import StepInfo, StepResult
from tellapart.recipe import Recipe
from tellapart.training.optimizer import MeanWeights, build_optimizer, clip, learning_rate
from tellapart.training.run_folder import NOTHING, Log, Stateful, load_checkpoint, save_checkpoint
from tellapart.training.validation import LAST, Watch


class AnyBatch(Protocol):
    photos: NDArray[np.int64]  # positions in the data, for messages

    def to(self, device: torch.device) -> AnyBatch: ...


Step = Callable[[Any, StepInfo], StepResult]  # batch, when -> loss, weight, log line
Validate = Callable[[], dict[str, float]]

ALL_DONE, TIME_OVER = "all epochs done", "the time is over"  # why a run has ended that may go on if it gets longer
COUNTED = {"words"}  # in a log line: adds up over processes; of all else there is the mean


@dataclass
class Position:
    """Position of a run: all that must survive a kill beside its weights."""

    step: int = 0  # optimiser steps done
    consumed: int = 0  # batches of the stream
    best: float | None = None
    best_step: int = 0
    stale: int = 0  # validations since the best
    seconds: float = 0.0
    finished: str = ""  # why, once it is
    first: dict[str, float] = field(default_factory=dict)  # the validation before the first step, where there was one
    total: int = 0  # optimiser steps that it is to have
    collapse: str = ""  # a sentence of the watch about the weights that are kept

    def summary(self, recipe: Recipe) -> str:
        """A line about the end of a run that is finished."""
        metric = recipe.validation.metric
        best = "" if self.best is None else f"; best {metric} {self.best:.4f} at step {self.best_step}"
        return f"{self.finished} after {self.step} steps in {recipe.dtype}, {self.seconds / 60:.1f} minutes{best}"

    def fault(self, metric: str) -> str:
        """A sentence about a run whose model is not what it was trained for; of any other an empty string."""
        if self.best is not None and self.best_step == 0:
            return f"no validation was better than the start ({metric} {self.best:.4f}); the run's model is its start."
        return f"{self.collapse}." if self.collapse else ""


def fit(
    recipe: Recipe,
    out: Path,
    *,
    model: nn.Module,
    step: Step,
    validate: Validate,
    stream: BatchStream[AnyBatch],
    device: torch.device,
    resume: bool,
    keeps: Mapping[str, Stateful] = NOTHING,
    watch: Watch | None = None,
    mean: MeanWeights | None = None,
    world: ProcessGroup = SINGLE,
) -> Position:
    """Train until the epochs are over, the validation metric stops getting better, or it is interrupted.

    The model that a run starts from (init_from) is validated and kept as long as none is better.

    watch  gets the validations, and one before the first step, and says what looks wrong
    mean   the running mean of the weights, where the step uses it, too
    """
    optimizer = build_optimizer(model, recipe)
    position = Position()
    if mean is None and recipe.optim.ema_decay:
        mean = MeanWeights(model, recipe.optim.ema_decay)
    keeps = {**keeps, "mean": mean} if mean else keeps
    with world.together():
        if resume:
            position = Position(**load_checkpoint(out / "last.safetensors", model, optimizer, keeps, world.rank))
            stream.consumed = position.consumed
    world.share_weights(model)
    steps_per_epoch = stream.batches_per_epoch / recipe.optim.accumulate  # a step may end in the next epoch
    total = max(1, recipe.epochs * stream.batches_per_epoch // recipe.optim.accumulate)
    total = min(total, recipe.max_steps) if recipe.max_steps else total
    in_time = not recipe.is_over(position.seconds)
    if position.step < total and (position.finished == ALL_DONE or (position.finished == TIME_OVER and in_time)):
        position.finished = ""
    if position.finished:
        return position
    longer = _longer(recipe, position, total, steps_per_epoch)
    position.total = total
    log = Log(out / "log.jsonl" if world.is_main else None, position.step, {"dtype": recipe.dtype})
    every = max(1, round(recipe.validation.every * steps_per_epoch))
    run = _Run(recipe, out, model, optimizer, mean, keeps, stream, device, world, position, log, steps_per_epoch)
    if not resume:
        run.save()  # finds a full or read-only disk now, not after an hour
    model.train()
    with Progress("training", total, unit="step", done=position.step) as bar, _interruptible() as interrupted:
        slow = ", for which this CPU has no instructions: --dtype fp32 may be many times quicker"
        bar.message(f"training on {device} in {recipe.dtype}{slow * numerics.is_slow(device, recipe.dtype)}")
        if longer:
            bar.message(longer)
        if (watch is not None or recipe.init_from) and position.step == 0:
            position.first = run.validated(validate, bar)
            if recipe.init_from and recipe.validation.metric != LAST:
                run.keep_best(position.first)
        while not position.finished:
            loss = run.advance(step)
            bar.advance(note=f"loss {loss:.3f}")
            over = recipe.max_minutes > 0 and world.any(recipe.is_over(run.seconds))[0]
            due = position.step % every == 0 or position.step == total or over
            if due:
                run.judge(run.validated(validate, bar), watch, bar)
            if position.step >= total:
                position.finished = position.finished or ALL_DONE
            elif over:
                position.finished = position.finished or TIME_OVER
            # Asked once: a signal after this gets a step of its own, and that is saved as well.
            stop, due = world.any(interrupted(), due or time.monotonic() - run.saved > 60 * recipe.save_minutes)
            if position.finished or stop or due:
                run.save()
            if stop and not position.finished:
                raise KeyboardInterrupt
    return position


@dataclass
class _Run:
    """A run under way: what its steps change, and how they are validated and saved."""

    recipe: Recipe
    out: Path
    model: nn.Module
    optimizer: torch.optim.Optimizer
    mean: MeanWeights | None
    keeps: Mapping[str, Stateful]
    stream: BatchStream[AnyBatch]
    device: torch.device
    world: ProcessGroup
    position: Position
    log: Log
    steps_per_epoch: float

    def __post_init__(self) -> None:
        self._batches = iter(self.stream)
        self.saved = time.monotonic()
        self._began = self.saved - self.position.seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def save(self) -> None:
        self.position.consumed, self.position.seconds = self.stream.consumed, self.seconds
        file = self.out / "last.safetensors"
        save_checkpoint(file, self.model, self.optimizer, asdict(self.position), self.keeps, self.world)
        self.saved = time.monotonic()

    def advance(self, step: Step) -> float:
        """One optimiser step; returns the loss of its last batch."""
        recipe, position, world = self.recipe, self.position, self.world
        lr = learning_rate(recipe.optim, position.step, position.total, self.steps_per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["rate"]
        epoch = position.step * recipe.optim.accumulate // self.stream.batches_per_epoch
        info, batches = StepInfo(epoch, position.step / position.total), list[AnyBatch]()
        for _ in range(recipe.optim.accumulate):
            batches.append(next(self._batches).to(self.device))
            with numerics.autocast(self.device, recipe.dtype):
                result = step(batches[-1], info)
            share, line = joined(world, result)
            suspects = batches[-1:] if not math.isfinite(result.log["loss"]) else []
            _require_finite("loss", line["loss"], position.step + 1, suspects, self.stream, world)
            if result.loss.requires_grad:  # not where this process has nothing of the batch
                (share * result.loss / recipe.optim.accumulate).backward()  # type: ignore[no-untyped-call]
            self.log.add(line)
        world.add_gradients(self.model)
        gradient = clip(self.model, recipe.optim.clip_norm, recipe.optim.clip_value)
        _require_finite("gradient", gradient, position.step + 1, batches, self.stream, world)
        self.log.add({"gradient": gradient})
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.mean:
            self.mean.update()
        position.step += 1
        if position.step % recipe.log_steps == 0 or position.step == position.total:
            self.log.write(position.step, {"epoch": position.step / self.steps_per_epoch, "lr": lr})
        return line["loss"]

    def validated(self, validate: Validate, bar: Progress) -> dict[str, float]:
        self.model.eval()
        with self._as_kept():
            metrics: dict[str, float] = self.world.gather(validate())[0]  # the first one's, so that all decide alike
        self.model.train()
        self.log.write(self.position.step, {f"val/{name}": value for name, value in metrics.items()})
        bar.message(f"step {self.position.step}: " + ", ".join(f"{k} {v:.4g}" for k, v in metrics.items()))
        return metrics

    def keep_best(self, metrics: dict[str, float], collapse: str = "") -> None:
        """Keep the weights if they are the best so far."""
        if judge(self.position, metrics, self.recipe.validation.metric):
            self.position.collapse = collapse
            with self._as_kept():
                self.world.on_main(partial(models.save_weights, self.out / "best.safetensors", self.model))

    def judge(self, metrics: dict[str, float], watch: Watch | None, bar: Progress) -> None:
        """Keep the weights if they are the best so far, and end the run if there is reason to."""
        position, validation = self.position, self.recipe.validation
        collapse = watch.check(position.first, metrics) if watch is not None else ""
        self.keep_best(metrics, collapse)
        if validation.patience and position.stale >= validation.patience:
            position.finished = f"{validation.metric} has not improved for {position.stale} validations"
        if watch is not None and collapse:
            bar.message(f"step {position.step}: {collapse}.")
            position.finished = position.finished or (f"stopped, for {collapse}" if watch.stops else "")

    def _as_kept(self) -> AbstractContextManager[None]:
        """The model is what the run would end with if it ended now."""
        return self.mean.in_place() if self.mean else nullcontext()


def _longer(recipe: Recipe, position: Position, total: int, steps_per_epoch: float) -> str:
    """A sentence about a run that is resumed with another number of steps; empty for any other.

    The rate is a function of the step and of that number: where it falls towards the end, it rises to where the longer
    run would be.  Steps, batches and draws continue as if the run had never had another number.
    """
    if position.total in (0, total):
        return ""
    now = learning_rate(recipe.optim, position.step, total, steps_per_epoch)
    was = learning_rate(recipe.optim, min(position.step, position.total), position.total, steps_per_epoch)
    rate = f"; the learning rate continues from {now:.3g}, where it was {was:.3g}" if now != was else ""
    return f"step {position.step}: the run has {total} steps now, not {position.total}{rate}."


def joined(world: ProcessGroup, result: StepResult) -> tuple[float, dict[str, float]]:
    """This process's share of the batch's loss, and the log line of the whole batch."""
    captions = result.weight if result.captions is None else result.captions

    def over(weight: float, captions: float) -> list[float]:
        """The count that each number of the line is a mean over."""
        return [weight if name == "loss" else 1.0 if name in COUNTED else captions for name in result.log]

    sums = [count * value for count, value in zip(over(result.weight, captions), result.log.values(), strict=True)]
    weight, captions, *sums = world.sum([result.weight, captions, *sums])
    means = [total / count for total, count in zip(sums, over(weight, captions), strict=True)]
    return result.weight / weight, dict(zip(result.log, means, strict=True))


def judge(position: Position, metrics: dict[str, float], metric: str) -> bool:
    """Note a validation in the position; True if it is the best so far.  By the metric "last", every one is."""
    if metric == LAST:
        position.best_step = position.step
        return True
    if metric not in metrics:
        raise UserError(f"validation.metric: there is no {metric!r} here; there are {', '.join(metrics)}.")
    value = metrics[metric]
    sign = -1 if descriptions.lower_is_better(metric) else 1
    if math.isfinite(value) and (position.best is None or sign * value > sign * position.best):
        position.best, position.best_step, position.stale = value, position.step, 0
        return True
    position.stale += 1
    return False


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM are noted, so that the step under way ends well and is saved; a second one stops at once."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    try:
        handlers = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: the caller decides how to stop
        handlers = {}
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _require_finite(
    what: str, value: float, step: int, suspects: list[AnyBatch], stream: BatchStream[AnyBatch], world: ProcessGroup
) -> None:
    """Stop before such a number reaches the weights, and say which photos it came from."""
    if not math.isfinite(value):
        here = [str(stream.data.examples[photo].id) for batch in suspects for photo in batch.photos]
        ids = [id for of_process in world.gather(here) for id in of_process]
        photos = f"{', '.join(ids[:20])}{' ...' if len(ids) > 20 else ''}"
        raise SharedError(f"the {what} is {value} at step {step}; the batch has the photos {photos}.")
