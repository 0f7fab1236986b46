"""`tellapart.train`: run a recipe from Python, and what it gives back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capscore.errors import UserError
from tellapart import recipe_files
from tellapart.captioning.captioner import PhotoCaptioner, load
from tellapart.html import escaped
from tellapart.recipe import Recipe
from tellapart.recipe_files import flat
from tellapart.training import build, run_folder
from tellapart.training.loop import Position

Name = str | os.PathLike[str]


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
        measured, _, _ = run_folder.curves(self.folder / "log.jsonl")
        for name, curve in measured.items():
            for step, value in curve:
                rows.setdefault(step, {})[name] = value
        return dict(sorted(rows.items()))

    def captioner(self, *, device: str = "auto") -> PhotoCaptioner:
        """With the weights of the best validation, and the recipe's detector if it has one.

        device   cpu, cuda ...; "auto": a GPU if there is one
        """
        return load(self.folder, device=device, detector=self.recipe.detector or None)

    def __repr__(self) -> str:
        return f"<TrainedRun {self.summary}>"

    def _repr_html_(self) -> str:
        rows = self.validations
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in names)
        body = "".join(_row(step, [row.get(name) for name in names], step == self._best) for step, row in rows.items())
        table = f"<table>\n<thead><tr><th>step</th>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
        fault = f"<p>{escaped(self.fault)}</p>\n" if self.fault else ""
        return f"<p>{escaped(self.summary)}</p>\n{fault}{table}\n"

    @property
    def _best(self) -> int | None:
        return None if self.position.best is None else self.position.best_step


def _row(step: int, values: Sequence[float | None], best: bool) -> str:
    cells = [str(step), *("" if value is None else f"{value:.4g}" for value in values)]
    return "<tr>" + "".join(f"<td><b>{cell}</b></td>" if best else f"<td>{cell}</td>" for cell in cells) + "</tr>\n"


def train(
    recipe: Name | Mapping[str, Any],
    *,
    data: Name | Sequence[Name] | None = None,
    out: Name = "runs/latest",
    resume: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> TrainedRun:
    """Run a recipe.  Progress and validations are shown as it goes; a run that is interrupted can be resumed.

    recipe     the name of one that ships with tellapart (`tellapart models` lists them), a file, or its content
    data       data files
    out        folder of the run
    resume     continue the run in that folder, if there is one; more epochs or max_steps make it longer
    overrides  fields of the recipe to set, nested or by dotted names: {"optim.lr": 1e-4, "data": {"limit": 500}}

    Example:
        >>> run = tellapart.train("tiny/photos_xe", data="holiday.json", out="runs/mine", overrides={"epochs": 1})
        >>> run.position.finished
        'all epochs done'
        >>> caption = run.captioner().caption("holiday/a.jpg")
    """
    resolved = recipe_files.filled(Recipe(), _content(recipe))
    for name, value in flat(_plain(overrides or {})).items():
        resolved = recipe_files.with_value(resolved, name, value)
    if data is not None:
        data_files = [data] if isinstance(data, str | os.PathLike) else list(data)
        resolved = recipe_files.with_value(resolved, "data.files", [os.fspath(file) for file in data_files])
    outcome = build.run(resolved, Path(out), resume=resume)
    return TrainedRun(Path(out), outcome.recipe, outcome.position, outcome.problems)


def _content(recipe: Name | Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe, over those of its base."""
    if not isinstance(recipe, Mapping):
        file = recipe_files.read(os.fspath(recipe))
        if file.stages is not None or file.cells:
            raise _not_one_run(os.fspath(recipe))
        return file.content
    values: dict[str, Any] = _plain(recipe)
    if "stages" in values or "grid" in values:
        raise _not_one_run("the recipe")
    base = values.pop("base", None)
    return values if base is None else recipe_files.merged(_content(base), values)


def _not_one_run(name: str) -> UserError:
    return UserError(f"{name} has stages, and this call trains one run; `tellapart train FILE` runs such a recipe.")


def _plain(value: Any) -> Any:
    """As YAML would have it: paths are texts, tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
