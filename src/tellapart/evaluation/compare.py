"""Runs side by side: what their recipes and logs say, and what evaluations found."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError, safe_open

from tellapart import files
from tellapart.captions_file import CaptionsFile
from tellapart.errors import UserError
from tellapart.evaluation import rows
from tellapart.evaluation.trec import file_name
from tellapart.recipe import Recipe
from tellapart.training.run_folder import plain

_AS_THEY_ARE = ("loss", "length")  # the others are shares, and people read them times 100
_LOWER_IS_BETTER = ("loss", "Rep", "BadEnd")
_NEITHER = ("length",)
_UNSEEN = ("step", "epoch", "words")  # of a log line: where it is, and how much it is about
_CHECKPOINT = "last.safetensors"

Curves = dict[str, list[tuple[int, float]]]  # what is measured -> step, value


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
        return dict(objective.rewards.terms) if objective.name == "policy_gradient" else {}

    @property
    def label(self) -> str:
        """What it is trained for, in a word or two."""
        terms = " + ".join(name if weight == 1 else f"{weight:g} {name}" for name, weight in self.rewards.items())
        return terms or self.recipe.objective.name


def read(folders: Sequence[str]) -> list[Run]:
    for folder in folders:
        if not files.is_folder(Path(folder)) or not files.is_file(Path(folder) / "recipe.yaml"):
            raise UserError(f"{folder} is not a run folder: `tellapart train` writes recipe.yaml into one.")
    return [_read(Path(model.given), model.name) for model in rows.models(folders)]


def _read(folder: Path, name: str) -> Run:
    recipe = _recipe(folder / "recipe.yaml")
    validations, training, last = _curves(folder / "log.jsonl")
    position = _position(folder / _CHECKPOINT)
    return Run(
        folder,
        name,
        recipe,
        validations,
        training,
        max(last, int(position.get("step", 0))),  # a run that goes on has logged more than it has saved
        position.get("seconds"),
        str(position.get("finished") or "not finished"),
    )


def _recipe(file: Path) -> Recipe:
    try:
        stored = yaml.safe_load(files.read_text(file))
    except (yaml.YAMLError, RecursionError):
        raise UserError(f"{file} is damaged: it is not YAML.") from None
    recipe: Recipe = _filled(Recipe(), stored, file, "")
    if not all(isinstance(weight, int | float) for weight in recipe.objective.rewards.terms.values()):
        raise UserError(f"{file} is damaged: objective.rewards.terms must have numbers as weights.")
    return recipe


def _filled(default: Any, stored: object, file: Path, key: str) -> Any:
    """What is stored, as the dataclass that `default` is.  What it does not mention is a setting of a later version."""
    if not is_dataclass(default):
        both = {type(default), type(stored)}
        if len(both) > 1 and not both <= {int, float} and not both <= {list, tuple}:
            raise UserError(f"{file} is damaged: {key} must be {_what(default)}, not {_what(stored)}.")
        return stored
    if not isinstance(stored, dict):
        raise UserError(f"{file} is damaged: {key or 'a recipe'} must be a mapping, not {_what(stored)}.")
    own = {field.name: getattr(default, field.name) for field in fields(default) if field.name in stored}
    values = {name: _filled(value, stored[name], file, f"{key}.{name}".lstrip(".")) for name, value in own.items()}
    return replace(default, **values)  # type: ignore[type-var]


def _what(value: object) -> str:
    return files.type_of(list(value) if isinstance(value, tuple) else value)


def _curves(file: Path) -> tuple[Curves, Curves, int]:
    """Validations, all else, and the last step."""
    if not files.is_file(file):
        raise UserError(f"{file.parent}: there is no log.jsonl; the run has not come so far.")
    validations: Curves = defaultdict(list)
    training: Curves = defaultdict(list)
    step = -1
    for number, text in enumerate(files.read_lines(file), 1):
        try:
            line = json.loads(text)
            step = line["step"]
            if not isinstance(step, int) or not all(isinstance(value, int | float) for value in line.values()):
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


# Tables


def facts(runs: Sequence[Run]) -> dict[str, list[str]]:
    """A table, a row for each fact and a column for each run: what they are, then the last and the best validations."""
    rewards = [run.label if run.rewards else "" for run in runs]
    table: dict[str, list[str]] = {
        "objective": [run.recipe.objective.name for run in runs],
        **({"rewards": rewards} if any(rewards) else {}),
        "steps": [f"{run.steps:,}" for run in runs],
        "minutes": ["" if run.seconds is None else f"{run.seconds / 60:.1f}" for run in runs],
        "state": [run.state for run in runs],
    }
    for metric in _names(run.validations for run in runs):
        curves = [run.validations.get(metric, []) for run in runs]
        table[metric] = [shown(metric, curve[-1][1]) if curve else "" for curve in curves]
        if metric not in _NEITHER:
            table[f"{metric}, best"] = [_best(metric, curve) if curve else "" for curve in curves]
    return table


def caution(runs: Sequence[Run]) -> str:
    """A sentence where the validations of the runs cannot be compared, for they are not on the same photos."""
    validated = []
    for run in runs:
        data, validation = run.recipe.data, run.recipe.validation
        photos = [str(files.real(Path(file))) for file in data.files]
        validated.append((photos, data.val_split, data.limit, sorted(data.without), validation.photos, validation.beam))
    if all(one == validated[0] for one in validated):
        return ""
    return "The runs were validated on different photos or with different beams: their validations do not compare."


def in_units(metric: str, value: float) -> float:
    """A validation's figure as people read it."""
    return value if metric in _AS_THEY_ARE else 100 * value


def shown(metric: str, value: float) -> str:
    return f"{in_units(metric, value):.{3 if metric == 'loss' else 1}f}"


def _best(metric: str, curve: Sequence[tuple[int, float]]) -> str:
    sign = -1 if metric in _LOWER_IS_BETTER else 1
    step, value = max(curve, key=lambda point: sign * point[1])
    return f"{shown(metric, value)} at {step:,}"


def _names(curves: Iterator[Curves]) -> list[str]:
    """What any of the runs has, in the order of their logs."""
    return list(dict.fromkeys(name for own in curves for name in own))


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The settings in which the recipes differ, and each run's."""
    settings = [dict(_settings(plain(run.recipe))) for run in runs]
    keys = sorted({key for own in settings for key in own})
    return {
        key: [_written(own.get(key)) for own in settings]
        for key in keys
        if any(own.get(key) != settings[0].get(key) for own in settings)
    }


def _settings(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in part.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _written(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value in ("", None) else str(value)


def text_table(table: Mapping[str, Sequence[str]], names: Sequence[str], width: int) -> str:
    """For a terminal: as many runs beside each other as the width takes, then the next ones."""
    first = max(map(len, table), default=0)
    columns = [
        [_short(text) for text in (name, *(cells[n] for cells in table.values()))] for n, name in enumerate(names)
    ]
    parts: list[list[list[str]]] = [[]]
    left = width - first
    for column in columns:
        wide = 2 + max(map(len, column))
        if parts[-1] and wide > left:
            parts.append([])
            left = width - first
        parts[-1].append(column)
        left -= wide
    return "\n\n".join(_part(["", *table], first, part) for part in parts)


def _short(text: str, most: int = 44) -> str:
    """Of a list of files, say, the end tells more than the beginning."""
    return text if len(text) <= most else f"...{text[3 - most :]}"


def _part(heads: Sequence[str], first: int, columns: Sequence[Sequence[str]]) -> str:
    wide = [max(map(len, column)) for column in columns]
    lines = []
    for row, head in enumerate(heads):
        cells = "".join(f"  {column[row]:>{size}}" for column, size in zip(columns, wide, strict=True))
        lines.append(f"{head:<{first}}{cells}".rstrip())
    return "\n".join(lines)


# Evaluations

Scores = dict[str, dict[str, dict[str, float]]]  # data set -> run -> score -> value


@dataclass(frozen=True)
class Evaluation:
    """A folder that `tellapart evaluate --out` wrote, as far as it is about the runs."""

    folder: Path
    models: dict[str, dict[str, str]]  # data set -> run -> the name that it has in this evaluation
    scores: Scores


def read_evaluation(folder: Path, runs: Sequence[Run]) -> Evaluation:
    results = files.read_json(folder / "results.json")
    details = files.read_json(folder / "details.json")
    models: dict[str, dict[str, str]] = {}
    scores: Scores = {}
    try:
        for data, of_models in results.items():
            given = {name: details[data]["models"][name]["given"] for name in of_models}
            models[data] = {
                run.name: name for run in runs for name, path in given.items() if _same(run.folder, Path(path))
            }
            scores[data] = {run: dict(of_models[name]) for run, name in models[data].items()}
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{folder}: results.json and details.json are not those of one evaluation.") from None
    if not any(models.values()):
        there = ", ".join(dict.fromkeys(name for of_models in results.values() for name in of_models))
        raise UserError(f"{folder}: none of the runs was evaluated there; it has {there}.")
    return Evaluation(folder, models, scores)


def evaluated(run: Run, data: str, evaluations: Sequence[Evaluation]) -> dict[str, str]:
    """A run's captions of a data set's photos in the first evaluation that has them: file -> caption."""
    for evaluation in evaluations:
        if (model := evaluation.models.get(data, {}).get(run.name)) is not None:
            file = evaluation.folder / "captions" / f"{file_name(data)}.{file_name(model)}.jsonl"
            return {row["file"]: row["caption"] for row in CaptionsFile(file).rows if "caption" in row}
    return {}


def _same(one: Path, other: Path) -> bool:
    return files.real(one) == files.real(other)


def by_batch_size(
    runs: Sequence[Run], evaluations: Sequence[Evaluation]
) -> dict[tuple[str, str], dict[str, list[tuple[float, float]]]]:
    """Recall against the batch size: data set and score -> what runs are trained for -> batch size, mean of the runs.

    Only what at least two batch sizes of one objective were evaluated by.
    """
    found: dict[tuple[str, str], dict[str, dict[int, list[float]]]] = {}
    for evaluation in evaluations:
        for data, of_runs in evaluation.scores.items():
            for run in (run for run in runs if run.name in of_runs):
                for score, value in of_runs[run.name].items():
                    if "R@" in score:
                        sizes = found.setdefault((data, score), {}).setdefault(run.label, {})
                        sizes.setdefault(run.recipe.batch_size, []).append(value)
    curves = {
        key: {
            label: [(float(size), 100 * sum(values) / len(values)) for size, values in sorted(sizes.items())]
            for label, sizes in of_labels.items()
            if len(sizes) > 1
        }
        for key, of_labels in found.items()
    }
    return {key: of_labels for key, of_labels in curves.items() if of_labels}
