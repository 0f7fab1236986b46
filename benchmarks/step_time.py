"""Where the time of a policy-gradient step goes (Table VI of the GLD paper), measured with a run's own parts.

    python benchmarks/step_time.py runs/scst runs/gld

Milliseconds of each part, the median of 5 batches after one that is not counted, on features of the run's cache, or on
noise of the same size.  A part within another counts as itself alone: captions that others are compared with are
sampled under `sample`, and what is left of that under `baseline`.  The optimiser's step is not in it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capscore.errors import UserError
from capscore.progress import Progress
from tellapart import models, numerics
from tellapart.data.batches import BatchStream, CaptionedPhotos
from tellapart.data.examples import Example
from tellapart.data.store import Rows, StoredFeatures, Stores
from tellapart.decoding.sample import Rollout
from tellapart.evaluation import compare
from tellapart.evaluation.compare import Run, read_runs
from tellapart.features.sources import Sources, StreamSource
from tellapart.objectives import StepInfo
from tellapart.objectives.policy_gradient import PolicyGradient
from tellapart.recipe import Recipe
from tellapart.rewards import Reward, SampledCaptions, Term
from tellapart.rewards.combine import Remembers
from tellapart.training.build import policy_step, reward_context, seed_everything
from tellapart.training.preparation import Selection, select, sources_of

BATCHES = 5  # whose median is reported, after one that pays for setting up
TOTAL = "whole step"


class Stopwatch:
    """Seconds of each part.  A part within another counts as itself alone."""

    def __init__(self) -> None:
        self.took: dict[str, float] = defaultdict(float)
        self._inside: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._turn()
        self._inside.append(name)
        try:
            yield
        finally:
            self._turn()
            self._inside.pop()

    def _turn(self) -> None:
        """What has passed belongs to the innermost part."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._inside:
            self.took[self._inside[-1]] += now - self._since
        self._since = now


class TimedTerm:
    """A reward that tells how long it takes."""

    def __init__(self, name: str, term: Term, watch: Stopwatch):
        self._name, self._term, self._watch = name, term, watch

    def __call__(self, sampled: SampledCaptions) -> Reward:
        with self._watch.part(f"reward: {self._name}"):
            return self._term(sampled)


class TimedMemory(TimedTerm):
    """One that uses what was measured before."""

    def __init__(self, name: str, term: Remembers, watch: Stopwatch):
        super().__init__(name, term, watch)  # type: ignore[arg-type]  # a term that remembers is a term
        self._memory = term

    def remember(self, captions: SampledCaptions | None) -> None:
        with self._watch.part(f"reward: {self._name}"):
            self._memory.remember(captions)

    def state(self) -> Tensor:
        return self._memory.state()

    def restore(self, state: Tensor) -> None:
        self._memory.restore(state)


def timed(name: str, term: Term, watch: Stopwatch) -> Term:
    return TimedMemory(name, term, watch) if isinstance(term, Remembers) else TimedTerm(name, term, watch)


class TimedPolicyGradient(PolicyGradient):
    """The step itself, with a watch on its parts; captions that others are compared with count as what they are."""

    watch: Stopwatch

    def read(self, name: str, rows: Rows, most: int | None = None) -> Tensor:
        """The boxes of a detector: each is the whole photo."""
        return torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(len(rows), self.shape[0] if most is None else most, 4)

    def use(self, tokenizer: object) -> None:
        """Noise has no words."""

    def _draw(self, memory: Any, samples: int, forced: Tensor | None = None) -> Rollout:
        with self.watch.part("sample"):
            return super()._draw(memory, samples, forced)

    def _search(self, memory: Any) -> Rollout:
        with self.watch.part("sample"):
            return super()._search(memory)

    def _scored(self, memory: Any, rollout: Rollout, captioner: Any = None) -> Rollout:
        with self.watch.part("score"):
            return super()._scored(memory, rollout, captioner)

    def _baseline(self, *arguments: Any) -> Reward:
        with self.watch.part("baseline"):
            return super()._baseline(*arguments)


def measure(run: Run) -> dict[str, float]:
    """Milliseconds of each part of a step with the run's batch size, in the order in which they come."""
    recipe = run.recipe
    if recipe.objective.name != "policy_gradient":
        raise UserError(f"{run.folder}: the parts of a step are those of a policy gradient, not of a {run.label} run.")
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    device = numerics.choose_device(recipe.device)
    seed_everything(recipe.seed)
    watch = Stopwatch()
    with tempfile.TemporaryDirectory(prefix="tellapart-") as scratch:
        step, captioner, stream = _parts(run, watch, device, Path(scratch))
        dtype = numerics.choose_dtype(device, recipe.dtype)
        turns: list[dict[str, float]] = []
        with Progress(f"steps of {run.name}", BATCHES + 1, unit="step") as bar:
            for batch in islice(iter(stream), BATCHES + 1):
                watch.took.clear()
                with watch.part("rest"), numerics.autocast(device, dtype):
                    result = step(batch.to(device), StepInfo(0, 0.0))
                    with watch.part("backward"):
                        result.loss.backward()  # type: ignore[no-untyped-call]
                captioner.zero_grad(set_to_none=True)
                turns.append({**watch.took, TOTAL: sum(watch.took.values())})
                bar.advance()
    names = dict.fromkeys(name for turn in turns for name in turn)
    order = ["encode", "sample", "score", *(name for name in names if name.startswith("reward: "))]
    order += ["baseline", "backward", "rest", TOTAL]
    return {
        name: 1000 * statistics.median(turn.get(name, 0.0) for turn in turns[1:]) for name in order if name in names
    }


def time_table(times: Mapping[str, Mapping[str, float]]) -> dict[str, list[str]]:
    """run -> part -> milliseconds, as a table with a row for each part."""
    parts = dict.fromkeys(part for of_run in times.values() for part in of_run if part != TOTAL)
    return {
        part: [f"{of_run[part]:.1f}" if part in of_run else "-" for of_run in times.values()]
        for part in (*parts, TOTAL)
    }


def _parts(
    run: Run, watch: Stopwatch, device: torch.device, scratch: Path
) -> tuple[TimedPolicyGradient, nn.Module, BatchStream[Any]]:
    """The step, the captioner that it trains, and its batches."""
    recipe, config = run.recipe, models.read_config(run.folder, "captioner")
    tokenizer = models.load_tokenizer(run.folder, config.settings)
    chosen, _ = select(recipe, takes=("photos", "clips"))
    sources, cached = _sources(recipe, chosen, device)
    data = CaptionedPhotos(sources, tokenizer, recipe.data.max_words)
    sizes = {name: store.shape[1] for name, store in sources[0][0].items()}
    captioner = models.build_captioner(
        recipe.captioner,
        recipe.model,
        vocab_size=len(tokenizer),
        feature_sizes=sizes,
    ).to(device)
    models.load_weights(run.folder, captioner)
    encode = captioner.encode

    def timed_encode(*arguments: Any) -> Any:
        with watch.part("encode"):
            return encode(*arguments)  # type: ignore[operator]

    captioner.encode = timed_encode  # type: ignore[assignment]
    context = reward_context(
        recipe,
        tokenizer,
        sources,
        data,
        device,
        names=[one.name for one in chosen],
        features=Path(recipe.data.features) if cached else scratch,
    )
    step = policy_step(
        TimedPolicyGradient, recipe, captioner, tokenizer, context, wrap=lambda name, term: timed(name, term, watch)
    )
    step.watch = watch
    return step, captioner.train(), BatchStream(data, recipe.batch_size, recipe.data.captions_per_photo, recipe.seed)


def _sources(
    recipe: Recipe, chosen: Sequence[Selection], device: torch.device
) -> tuple[list[tuple[Stores, list[Example]]], bool]:
    """Training photos with features, data set by data set: those that are kept; where none are, noise for as many as
    are needed.
    """
    streams, root = sources_of(recipe, device), Path(recipe.data.features)
    stores = [_stores(streams, root, one.name) for one in chosen]
    kept = [
        [photo for photo in one.training if found is not None and found.have(photo)]
        for one, found in zip(chosen, stores, strict=True)
    ]
    imported = [stream.name for stream in streams.values() if not stream.most]
    if imported:
        if not any(kept):
            raise UserError(f"there are no features {imported[0]!r} to take a step with.")
        return [(found, photos) for found, photos in zip(stores, kept, strict=True) if found is not None], True
    noise = Stores((name, _noise(stream)) for name, stream in streams.items())
    if any(kept):
        return [(noise if found is None else found, photos) for found, photos in zip(stores, kept, strict=True)], True
    needed, sources = recipe.batch_size * (BATCHES + 1), list[tuple[Stores, list[Example]]]()
    for one in chosen:
        sources.append((noise, one.training[:needed]))
        needed -= len(sources[-1][1])
    return sources, False


def _stores(streams: Sources, root: Path, dataset: str) -> Stores | None:
    """What is kept of a data set; nothing where a stream is missing."""
    stores = {name: stream.open(root, dataset) for name, stream in streams.items()}
    complete = Stores((name, store) for name, store in stores.items() if store is not None)
    return complete if len(complete) == len(stores) else None


def _noise(source: StreamSource) -> StoredFeatures:
    if source.reader is not source:  # boxes, which belong to regions
        return source.of(_noise(source.reader))
    return Noise((source.most, source.feature_size), getattr(source.encoder, "pooled_size", source.feature_size))


class Noise:
    """Features of the right size that mean nothing: the time of a step does not depend on what photos show."""

    def __init__(self, shape: tuple[int, int], pooled: int):
        self.shape, self._pooled, self.identity = shape, pooled, {"name": "noise"}
        self._rows: dict[int | str, int] = {}

    def __contains__(self, example: Example) -> bool:
        return True

    def row(self, example: Example) -> int:
        return self._rows.setdefault(example.id, len(self._rows))

    def count(self, example: Example) -> int:
        return self.shape[0]

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        return self._draw(rows, self.shape)[:, :most]

    def pooled(self, rows: Rows) -> Tensor:
        return self._draw(rows, (self._pooled,))

    def read(self, name: str, rows: Rows, most: int | None = None) -> Tensor:
        """The boxes of a detector: each is the whole photo."""
        return torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(len(rows), self.shape[0] if most is None else most, 4)

    def use(self, tokenizer: object) -> None:
        """Noise has no words."""

    def _draw(self, rows: Rows, shape: tuple[int, ...]) -> Tensor:
        drawn = [np.random.default_rng(int(row)).standard_normal(shape, np.float32) for row in rows]
        return torch.from_numpy(np.stack(drawn)) if drawn else torch.zeros(0, *shape)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run folder of `tellapart train` by a policy gradient")
    times = {run.name: measure(run) for run in read_runs(parser.parse_args().runs)}
    print(compare.text_table(time_table(times), list(times), 120))
