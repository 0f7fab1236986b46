"""Runs side by side: what they reached, where their recipes differ, and what evaluations found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capscore import files
from capscore.errors import UserError
from capscore.printable import printable
from tellapart.evaluation.captions import read_kept
from tellapart.evaluation.training_runs import Curves, Run, in_units
from tellapart.evaluation.trec import file_name
from tellapart.metrics import descriptions
from tellapart.training.run_folder import plain

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
        if (info := descriptions.of(metric)) is not None and info.higher_is_better is not None:
            table[f"{metric}, best"] = [_best(metric, curve) if curve else "" for curve in curves]
    return table


def shown(metric: str, value: float) -> str:
    return f"{in_units(metric, value):.{3 if metric == 'loss' else 1}f}"


def _best(metric: str, curve: Sequence[tuple[int, float]]) -> str:
    sign = -1 if descriptions.lower_is_better(metric) else 1
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
    heads = list(map(printable, table))
    first = max(map(len, heads), default=0)
    columns = [
        [_short(printable(text)) for text in (name, *(cells[n] for cells in table.values()))]
        for n, name in enumerate(names)
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
    return "\n\n".join(_part(["", *heads], first, part) for part in parts)


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
        known = ", ".join(dict.fromkeys(name for of_models in results.values() for name in of_models))
        raise UserError(f"{folder}: none of the runs was evaluated there; it has {known}.")
    return Evaluation(folder, models, scores)


def evaluated(run: Run, data: str, evaluations: Sequence[Evaluation]) -> dict[str, str]:
    """A run's captions of a data set's photos in the first evaluation that has them: file -> caption."""
    for evaluation in evaluations:
        if (model := evaluation.models.get(data, {}).get(run.name)) is not None:
            file = evaluation.folder / "captions" / f"{file_name(data)}.{file_name(model)}.jsonl"
            return {row["file"]: row["caption"] for row in read_kept(file)}
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
