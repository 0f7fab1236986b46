"""`tellapart.train`: run a recipe from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capscore.errors import UserError
from tellapart import recipe_files
from tellapart.recipe import Recipe
from tellapart.recipe_files import flat
from tellapart.training import build
from tellapart.training.run_folder import TrainedRun

Name = str | os.PathLike[str]


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
    for name, value in flat(recipe_files.as_yaml(overrides or {})).items():
        resolved = recipe_files.with_value(resolved, name, value)
    if data is not None:
        data_files = [data] if isinstance(data, str | os.PathLike) else list(data)
        resolved = recipe_files.with_value(resolved, "data.files", [os.fspath(file) for file in data_files])
    return build.run(resolved, Path(out), resume=resume)


def _content(recipe: Name | Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe, over those of its base."""
    if not isinstance(recipe, Mapping):
        file = recipe_files.read(os.fspath(recipe))
        if file.stages is not None or file.cells:
            raise _not_one_run(os.fspath(recipe))
        return file.content
    values: dict[str, Any] = recipe_files.as_yaml(recipe)
    if "stages" in values or "grid" in values:
        raise _not_one_run("the recipe")
    base = values.pop("base", None)
    return values if base is None else recipe_files.merged(_content(base), values)


def _not_one_run(name: str) -> UserError:
    return UserError(f"{name} has stages, and this call trains one run; `tellapart train FILE` runs such a recipe.")
