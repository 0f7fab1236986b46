"""Run folders as `tellapart train` wrote them: what their recipes and logs say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from capscore import files
from capscore.errors import UserError
from tellapart import plain_yaml, recipe_values
from tellapart.evaluation import models
from tellapart.recipe import Recipe
from tellapart.training import run_log
from tellapart.training.run_log import Curves as Curves

_AS_THEY_ARE = ("loss", "length")  # the others are shares, and people read them times 100
NEEDED = ("recipe.yaml", "log.jsonl")
_CHECKPOINT = "last.safetensors"


@dataclass(frozen=True)
class Run:
    """A folder that `tellapart train` wrote."""

    folder: Path
    name: str
    recipe: Recipe
    validations: Curves  # without the "val/"
    training: Curves
    steps: int
    seconds: float | None  # none where there is no checkpoint
    state: str  # why it is finished, or that it is not

    @property
    def rewards(self) -> dict[str, float]:
        """Terms and weights; none where the objective knows no rewards."""
        objective = self.recipe.objective
        return dict(objective.rewards.weights) if objective.name == "policy_gradient" else {}

    @property
    def label(self) -> str:
        """What it is trained for, in a word or two."""
        terms = " + ".join(name if weight == 1 else f"{weight:g} {name}" for name, weight in self.rewards.items())
        return terms or self.recipe.objective.name


def read(folders: Sequence[str]) -> list[Run]:
    for folder in folders:
        if not files.is_folder(Path(folder)) or not files.is_file(Path(folder) / "recipe.yaml"):
            raise UserError(f"{folder} is not a run folder: `tellapart train` writes recipe.yaml into one.")
    return [_read(Path(model.given), model.name) for model in models.models(folders)]


def _read(folder: Path, name: str) -> Run:
    recipe = _recipe(folder / "recipe.yaml")
    validations, training, last = run_log.curves(folder / "log.jsonl")
    position = _position(folder / _CHECKPOINT)
    return Run(
        folder,
        name,
        recipe,
        validations,
        training,
        max(last, int(position.get("step", 0))),  # a resumed run has logged more than it has saved
        position.get("seconds"),
        str(position.get("finished") or "not finished"),
    )


def _recipe(file: Path) -> Recipe:
    try:
        recipe = recipe_values.filled(Recipe(), plain_yaml.read(file), strict=False)
    except UserError as error:
        raise UserError(f"{file} is damaged: {str(error).removeprefix(f'{file}: ')}") from None
    return recipe


def _position(file: Path) -> dict[str, Any]:
    """Where a run is, by its checkpoint; nothing where that is gone."""
    if not files.is_file(file):
        return {}
    try:
        with safe_open(file, "pt") as opened:  # reads the header alone
            position = json.loads((opened.metadata() or {}).get("position", "{}"))
    except (SafetensorError, OSError, ValueError):
        raise UserError(f"{file} is not a safetensors file, or is damaged.") from None
    return position if isinstance(position, dict) else {}


def caution(runs: Sequence[Run]) -> str:
    """A sentence where the validations of the runs cannot be compared, for they are not on the same photos."""
    validated = []
    for run in runs:
        data, validation = run.recipe.data, run.recipe.validation
        photos = [str(files.real(Path(file))) for file in data.files]
        validated.append((photos, data.val_split, data.limit, sorted(data.exclude), validation.photos, validation.beam))
    if all(one == validated[0] for one in validated):
        return ""
    return "The runs were validated on different photos or with different beams: their validations do not compare."


def in_units(metric: str, value: float) -> float:
    """A validation's figure as people read it."""
    return value if metric in _AS_THEY_ARE else 100 * value
