"""The folder of a run: the recipe that it was started with, its checkpoints and its log.

A checkpoint is one safetensors file with weights, optimiser state, random state and position, replaced in one step, so
that its parts always belong together; and no pickle, so that reading one is safe.  Weights and optimiser are the same
in all processes of a run; the random state is each one's own, `random/cpu` that of the first and `random/1/cpu` that of
the second.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from capscore import files
from capscore.errors import UserError
from tellapart import journals, models, numerics, recipe_files
from tellapart.distributed import SINGLE, ProcessGroup
from tellapart.html import escaped
from tellapart.models import own_weights, put_weights, read_tensors
from tellapart.recipe import Recipe
from tellapart.recipe_files import flat, plain

if TYPE_CHECKING:
    from tellapart.captioning.captioner import PhotoCaptioner
    from tellapart.training.loop import Position

_LENGTHS = ("epochs", "max_steps", "max_minutes")  # what a resumed run may have more of
_WRITTEN = ("recipe.yaml", "config.json", "vocabulary.json", "log.jsonl")  # before the first checkpoint


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Hold a run folder, made if need be, for this process alone.

    A run that ends before its first checkpoint leaves nothing behind: neither its files nor folders that were made for
    it.  What was there before stays.
    """
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    with journals.held(out, "another process is training in this folder."):
        present = set(out.iterdir())
        try:
            yield
        except BaseException:
            if not has_weights(out):
                _remove({out / name for name in _WRITTEN} - present)
                for folder in made:
                    with suppress(OSError):  # it is not empty
                        folder.rmdir()
            raise


def claim(recipe: Recipe, out: Path, resume: bool) -> bool:
    """Write the recipe into the run folder, or see that it is the one that the run was started with.

    True if there is a checkpoint to resume.  A run that never came so far (its data were missing, say) leaves
    nothing to keep, so the next one may take its folder, with any recipe.  A run may get longer: more epochs or steps
    are no other recipe.
    """
    file = out / "recipe.yaml"
    unfinished = set(out.glob(".tellapart-*.tmp"))  # what a kill left of a file that was being written
    if not has_weights(out):
        if out.is_dir() and not file.exists() and set(out.iterdir()) - unfinished:
            raise UserError(f"{out} is not empty and holds no run; choose another --out.")
        _remove(unfinished)
        keep(recipe, out)
        return False
    if not resume:
        raise UserError(f"{out} holds a run already; --resume continues it, another --out starts a new one.")
    try:
        was, now = flat(recipe_of(out)), flat(plain(recipe))
    except UserError:
        raise UserError(f"{file} is damaged or missing; choose another --out.") from None
    changed = [key for key in sorted(was.keys() | now.keys()) if was.get(key) != now.get(key)]
    for key in sorted(changed, key=_LENGTHS.__contains__):
        change = f"{key} was {was.get(key)} and is {now.get(key)} now"
        if key not in _LENGTHS:
            raise UserError(
                f"{out} was started with another recipe: {change}. A changed recipe needs an --out of its own."
            )
        limits = [limit or math.inf for limit in (was.get(key), now[key]) if isinstance(limit, int | float)]  # 0: none
        if len(limits) < 2 or limits[0] > limits[1]:
            raise UserError(f"{out}: {change}; a resumed run can get longer, not shorter.")
    _remove(unfinished)
    return True


def recipe_of(run: Path) -> dict[str, Any]:
    """The fields of the recipe that a run was started with."""
    recipe = recipe_files.read_yaml(run / "recipe.yaml")
    if not isinstance(recipe, dict):
        raise UserError(f"{run / 'recipe.yaml'} is damaged.")
    return recipe


def number_type(recipe: Recipe, out: Path, resume: bool, device: torch.device) -> str:
    """fp32 or bf16; a run that is resumed goes on in what it was started with, unless its recipe asks for another."""
    if resume and recipe.dtype == "auto" and has_weights(out):
        with suppress(UserError):  # `claim` will say what is wrong with the folder
            if (dtype := str(recipe_of(out).get("dtype"))) in numerics.DTYPES:
                return dtype
    return numerics.choose_dtype(device, recipe.dtype)


def keep(recipe: Recipe, out: Path) -> None:
    """The recipe that a run goes by, in its folder."""
    file, content = out / "recipe.yaml", recipe_files.dump_yaml(plain(recipe)).encode()
    if not file.exists() or file.read_bytes() != content:
        files.replace(file, content)


def has_weights(out: Path) -> bool:
    return any((out / name).exists() for name in models.WEIGHTS)


def _remove(leftovers: Iterable[Path]) -> None:
    for file in leftovers:
        file.unlink(missing_ok=True)


# Checkpoints


class Stateful(Protocol):
    """An object with a state that lasts from step to step; the same in all processes of a run."""

    def state(self) -> dict[str, Tensor]: ...

    def restore(self, state: dict[str, Tensor]) -> None: ...


NOTHING: Mapping[str, Stateful] = MappingProxyType({})


def save_checkpoint(
    file: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: dict[str, Any],
    keeps: Mapping[str, Stateful] = NOTHING,
    world: ProcessGroup = SINGLE,
) -> None:
    """The first process writes; the others wait for it.

    keeps  what else there is to remember, by name; a name is the first part of its tensors' names
    """
    random = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        random["cuda"] = torch.cuda.get_rng_state()
    states = world.gather({name: state.numpy().tobytes().hex() for name, state in random.items()})

    def write() -> None:
        tensors = {f"model/{name}": tensor for name, tensor in own_weights(model).items()}
        for part, kept in keeps.items():
            tensors.update({f"{part}/{name}": tensor for name, tensor in kept.state().items()})
        for index, state in optimizer.state_dict()["state"].items():
            tensors.update({f"optimizer/{index}/{key}": torch.as_tensor(value) for key, value in state.items()})
        for rank, of_process in enumerate(states):
            for name, state in of_process.items():
                tensors[_random_name(rank, name)] = torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        files.replace(file, save_tensors(contiguous, metadata={"position": json.dumps(position)}))

    world.on_main(write)


def load_checkpoint(
    file: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    keeps: Mapping[str, Stateful] = NOTHING,
    rank: int = 0,
) -> dict[str, Any]:
    """Puts everything back and returns the position.

    A process that the run did not have when it was saved keeps its random state.
    """
    tensors, metadata = read_tensors(file)
    try:
        position: dict[str, Any] = json.loads(metadata["position"])
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in ("model", "optimizer", "random", *keeps)}
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = tensor
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimizer"].items():
            index, _, key = name.partition("/")
            state.setdefault(int(index), {})[key] = tensor
        first = parts["random"]["cpu"]
        put_weights(file, model, parts["model"])  # before what else is kept, for it says what differs in another model
        for part, keeper in keeps.items():
            keeper.restore(parts[part])
    except (KeyError, ValueError):
        raise UserError(f"{file} is not a training checkpoint.") from None
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    torch.set_rng_state(tensors.get(_random_name(rank, "cpu"), torch.get_rng_state() if rank else first))
    if torch.cuda.is_available() and (cuda := tensors.get(_random_name(rank, "cuda"))) is not None:
        torch.cuda.set_rng_state(cuda)
    return position


def _random_name(rank: int, name: str) -> str:
    return f"random/{rank}/{name}" if rank else f"random/{name}"


# log.jsonl: what was measured at which step

_UNSEEN = ("step", "epoch", "words", "dtype")  # of a log line: where it is, how much it is about, and in what numbers

Curves = dict[str, list[tuple[int, float]]]  # what is measured -> step, value


class Log:
    """log.jsonl: a line every few steps with the means since the last one.  Without a file nothing is written."""

    def __init__(self, file: Path | None, after: int, always: Mapping[str, str] = MappingProxyType({})):
        """
        after   lines after the checkpoint that a run resumes from belong to steps that it will do again
        always  what every line says
        """
        self.file, self._always = file, always
        self._values: dict[str, list[float]] = defaultdict(list)
        self._since = time.monotonic()
        if file is not None:
            self._cut(file, after)

    def _cut(self, file: Path, after: int) -> None:
        kept = []
        for number, line in enumerate(journals.read_lines(file), 1):
            try:
                if json.loads(line)["step"] <= after:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{file}: line {number} is damaged; take it out, or choose another --out.") from None
        files.replace(file, b"".join(line + b"\n" for line in kept))

    def add(self, line: dict[str, float]) -> None:
        for name, value in line.items():
            self._values[name].append(value)

    def write(self, step: int, more: dict[str, float]) -> None:
        line: dict[str, float | str] = {"step": step, **self._always}
        for name, values in self._values.items():
            line[name] = sum(values) / len(values)
        if words := self._values.get("words"):
            line["words_per_second"] = sum(words) / (time.monotonic() - self._since)
        if self.file is not None:
            journals.append(self.file, (json.dumps(line | more) + "\n").encode())
        self._values.clear()
        self._since = time.monotonic()


def curves(file: Path) -> tuple[Curves, Curves, int]:
    """Validations, all else, and the last step."""
    if not files.is_file(file):
        raise UserError(f"{file.parent}: there is no log.jsonl; the run has logged nothing yet.")
    validations: Curves = defaultdict(list)
    training: Curves = defaultdict(list)
    step = -1
    for number, text in enumerate(journals.read_lines(file), 1):
        try:
            line = json.loads(text)
            step = line["step"]
            numbers = [value for name, value in line.items() if name != "dtype"]
            if not isinstance(step, int) or not all(isinstance(value, int | float) for value in numbers):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{file}: line {number} is damaged; it must be an object of numbers with a step.") from None
        for name, value in line.items():
            if name not in _UNSEEN and math.isfinite(value):
                curves = validations if name.startswith("val/") else training
                curves[name.removeprefix("val/")].append((step, value))
    if step < 0:
        raise UserError(f"{file} has no line yet: there is nothing to compare.")
    return dict(validations), dict(training), step


# Runs that have ended


@dataclass(frozen=True)
class TrainedRun:
    """A run that has ended.  A notebook shows the table of its validations.

    folder    what other calls and commands take as a model
    recipe    the whole recipe that it was trained by
    position  how far it came, why it ended, and which validation was the best
    problems  a sentence for each photo or caption that could not be used
    fault     a sentence if it never got better than its start, or its captions collapsed; the command exits with 1
    """

    folder: Path
    recipe: Recipe
    position: Position
    problems: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        return f"{self.folder}: {self.position.summary(self.recipe)}"

    @property
    def fault(self) -> str:
        """See the class; mostly empty."""
        return self.position.fault(self.recipe.validation.metric)

    @property
    def validations(self) -> dict[int, dict[str, float]]:
        """{step: {metric: value}}, as the run's log has them; all are fractions but loss and length."""
        rows: dict[int, dict[str, float]] = {}
        measured, _, _ = curves(self.folder / "log.jsonl")
        for name, curve in measured.items():
            for step, value in curve:
                rows.setdefault(step, {})[name] = value
        return dict(sorted(rows.items()))

    def captioner(self, *, device: str = "auto") -> PhotoCaptioner:
        """With the weights of the best validation, and the recipe's detector if it has one.

        device   cpu, cuda ...; "auto": a GPU if there is one
        """
        from tellapart.captioning.captioner import load

        return load(self.folder, device=device, detector=self.recipe.detector or None)

    def __repr__(self) -> str:
        return f"<TrainedRun {self.summary}>"

    def _repr_html_(self) -> str:
        rows = self.validations
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in names)
        best = None if self.position.best is None else self.position.best_step
        body = ""
        for step, row in rows.items():
            cells = [str(step), *(f"{row[name]:.4g}" if name in row else "" for name in names)]
            shown = [f"<b>{cell}</b>" if step == best else cell for cell in cells]
            body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in shown) + "</tr>\n"
        table = f"<table>\n<thead><tr><th>step</th>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
        fault = f"<p>{escaped(self.fault)}</p>\n" if self.fault else ""
        return f"<p>{escaped(self.summary)}</p>\n{fault}{table}\n"
