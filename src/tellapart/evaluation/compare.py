"""Runs side by side: what `tellapart train` wrote, where recipes differ, what evaluations found, captions that changed.

The page has the figures of the GLD paper; each figure is a file of its own besides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from capscore import files
from capscore.cider import cider_d
from capscore.errors import UserError
from capscore.printable import counted, printable
from capscore.scoring_inputs import ScoringInputs
from tellapart import recipe_files
from tellapart.data.examples import Example
from tellapart.evaluation import cards as of_photos
from tellapart.evaluation import models, plots
from tellapart.evaluation.attention import FOLDER, Picture, file_names
from tellapart.evaluation.attention import section as attended
from tellapart.evaluation.captions import read_kept
from tellapart.evaluation.cards import (
    Card,
    Columns,
    FindRegions,
    Order,
    Pictures,
    Places,
    card,
    legend,
    no_regions,
    places_of,
    section,
)
from tellapart.evaluation.grid import Grid
from tellapart.evaluation.local_reward import LocalReward, weights, word_rewards
from tellapart.evaluation.models import Split
from tellapart.evaluation.plots import Figure, Series, dot, side_by_side
from tellapart.evaluation.trec import file_name
from tellapart.html import escaped, page
from tellapart.metrics import descriptions
from tellapart.recipe import Recipe
from tellapart.recipe_files import plain
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


def read_runs(folders: Sequence[str]) -> list[Run]:
    for folder in folders:
        if not files.is_folder(Path(folder)) or not files.is_file(Path(folder) / "recipe.yaml"):
            raise UserError(f"{folder} is not a run folder: `tellapart train` writes recipe.yaml into one.")
    return [_read_run(Path(model.given), model.name) for model in models.models(folders)]


def _read_run(folder: Path, name: str) -> Run:
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
        recipe = recipe_files.filled(Recipe(), recipe_files.read_yaml(file), strict=False)
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


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Changes:
    """Captions of the photos that all runs captioned.

    photos  P of them, each with references
    said    run -> P captions
    scores  run -> (P,) CIDEr-D; document frequencies are those of the whole split
    """

    photos: list[Example]
    captions: dict[str, list[str]]
    scores: dict[str, Floats]

    @property
    def gains(self) -> Floats:
        """(P,) what the last run's captions score more than the first one's; of a single run, what they score."""
        first, last = (list(self.scores.values())[place] for place in (0, -1))
        return last - first if len(self.scores) > 1 else last

    def improved(self, most: int) -> list[int]:
        """Photos whose captions gained most, the largest gain first."""
        order = np.argsort(-self.gains, kind="stable")
        return [int(photo) for photo in order[:most] if len(self.scores) > 1 and self.gains[photo] > 0]

    def failed(self, most: int) -> list[int]:
        """Photos whose captions lost most, the largest loss first; of a single run, those that score least."""
        order = np.argsort(self.gains, kind="stable")
        return [int(photo) for photo in order[:most] if len(self.scores) == 1 or self.gains[photo] < 0]


def drawn_photos(split: Split, count: int) -> Split:
    """So many photos with references, drawn by a seed, in the order of the data."""
    with_references = [photo for photo in split.photos if photo.captions]
    if not with_references:
        raise UserError(f"{split.source}: no photo of the split has captions to compare with.")
    return Split(split.name, split.source, with_references, split.problems).some(count)


def compare_captions(split: Split, photos: Sequence[Example], captions: Mapping[str, Mapping[str, str]]) -> Changes:
    """split: all photos, whose references say how frequent words are.  said: run -> file of a photo -> caption."""
    shared = [photo for photo in photos if all(str(photo.file) in own for own in captions.values())]
    if not shared:
        raise UserError(f"{split.source}: there is no photo that all runs have a caption of.")
    with_references = [photo for photo in split.photos if photo.captions]
    row_of = {str(photo.file): row for row, photo in enumerate(with_references)}
    at = np.array([row_of[str(photo.file)] for photo in shared])
    inputs = ScoringInputs([[""] for _ in with_references], [photo.captions for photo in with_references])
    scores = {}
    for run, own in captions.items():
        texts = [""] * len(with_references)
        for row, photo in zip(at.tolist(), shared, strict=True):
            texts[row] = own[str(photo.file)]
        captioned = inputs.with_captions([[text] for text in texts])
        scores[run] = cider_d(captioned.captions_split, captioned.photos, captioned.references)[at]
    return Changes(shared, {run: [own[str(photo.file)] for photo in shared] for run, own in captions.items()}, scores)


_CHANGED = 12  # photos whose captions gained most
_FAILED = 8  # and lost most


@dataclass
class Findings:
    """All that is shown; what is none has no section."""

    runs: list[Run]
    evaluations: list[Evaluation] = field(default_factory=list)
    changes: Changes | None = None
    grid: Grid | None = (
        None  # of the photos of `changes`: how a retriever embeds them and their captions, if there is one
    )
    find_regions: FindRegions = no_regions
    attention: Sequence[Picture] = ()
    local: LocalReward | None = None
    left_out: list[str] = field(default_factory=list)  # figures that could not be made, and why


def write_page(findings: Findings, out: Path) -> None:
    drawn: dict[str, str] = {}
    pictures = Pictures()
    sections = [
        _runs(findings.runs),
        *(_section(*one) for one in over_steps(findings.runs, drawn)),
        _batch_sizes(findings.runs, findings.evaluations, drawn),
        _changed(findings, pictures),
        attended(findings.attention),
        _figures(findings, pictures, drawn),
        "".join(f'<p class="notes">{escaped(sentence)}</p>\n' for sentence in findings.left_out),
    ]
    for name, picture in zip(file_names(findings.attention), findings.attention, strict=True):
        files.replace(out / FOLDER / name, picture.png)
    for name, chart in drawn.items():
        files.replace(out / "figures" / f"{file_name(name)}.svg", plots.standalone(chart))
    subtitle = ", ".join(run.name for run in findings.runs)
    body = "".join(sections)
    style = plots.STYLE + plots.FIGURES_STYLE + of_photos.TABLES + of_photos.STYLE + _STYLE + pictures.style
    made = page("Runs side by side", subtitle, body, style=style, script=of_photos.script())
    files.replace(out / "report.html", made)


def over_steps(runs: Sequence[Run], drawn: dict[str, str]) -> list[Figure]:
    """How runs went (Fig. 6 of the GLD paper), as far as their logs say."""

    def validations(run: Run) -> Curves:
        return {
            name: [(step, in_units(name, value)) for step, value in curve] for name, curve in run.validations.items()
        }

    def rewards(run: Run) -> Curves:
        return {name: curve for name, curve in run.training.items() if name.split("/")[0] == "reward"}

    made = [
        Figure("Validation over steps", caution(runs), side_by_side(_curves(runs, validations, "validation"), drawn)),
        Figure(
            "Rewards over steps",
            "Of the captions that are learned from, before any weight; reward is the weighted sum.",
            side_by_side(_curves(runs, rewards, "training"), drawn),
        ),
    ]
    return [figure for figure in made if figure.body]


def _curves(runs: Sequence[Run], of: Callable[[Run], Curves], prefix: str) -> dict[str, str]:
    curves = [of(run) for run in runs]
    names = dict.fromkeys(name for own in curves for name in own)
    return {
        f"{prefix}.{name.replace('/', '.')}": plots.lines(
            name,
            [
                Series(run.name, own[name], n)
                for n, (run, own) in enumerate(zip(runs, curves, strict=True))
                if name in own
            ],
            x="step",
        )
        for name in names
    }


def _section(title: str, note: str, body: str) -> str:
    """Nothing where there is nothing to show."""
    notes = f'<p class="notes">{escaped(note)}</p>\n' if note else ""
    return f"<section>\n<h2>{escaped(title)}</h2>\n{notes}{body}</section>\n" if body else ""


def _table(table: Mapping[str, Sequence[str]], names: Sequence[str], *, colours: Sequence[int]) -> str:
    """A column for each run."""
    both = zip(colours, names, strict=True)
    head = "".join(f'<th scope="col" dir="auto">{dot(colour)}{escaped(name)}</th>' for colour, name in both)
    body = "".join(
        f'<tr><th scope="row">{escaped(key)}</th>{"".join(f"<td>{escaped(cell)}</td>" for cell in cells)}</tr>\n'
        for key, cells in table.items()
    )
    return f'<div class="wide"><table>\n<thead><tr><td></td>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def _figures(findings: Findings, pictures: Pictures, drawn: dict[str, str]) -> str:
    """What words earn and weigh."""
    changes, local, found = findings.changes, findings.local, []
    if changes is not None and local is not None:
        found.append(word_rewards(local, changes.photos, changes.captions, pictures, drawn))
    if local is not None:
        found.append(weights(local, drawn))
    return "".join(_section(*one) for one in found)


# Recipes and logs


def _runs(runs: Sequence[Run]) -> str:
    names = [run.name for run in runs]
    note = f"Validations: the last, and the best with its step; times 100, but for loss and length. {caution(runs)}"
    colours = range(len(runs))
    parts = [_table(facts(runs), names, colours=colours)]
    if differ := differences(runs):
        parts.append(f"<h3>Where the recipes differ</h3>\n{_table(differ, names, colours=colours)}")
    return _section("Runs", note, "".join(parts))


def _batch_sizes(runs: Sequence[Run], evaluations: Sequence[Evaluation], drawn: dict[str, str]) -> str:
    charts = {
        f"batch_size.{data}.{score}": plots.lines(
            f"{score}, {data}",
            [Series(label, points, n) for n, (label, points) in enumerate(of_labels.items())],
            x="batch size",
        )
        for (data, score), of_labels in by_batch_size(runs, evaluations).items()
    }
    return _section("Recall against batch size", "Times 100.", side_by_side(charts, drawn))


# Captions


def _changed(findings: Findings, pictures: Pictures) -> str:
    runs, changes, grid = findings.runs, findings.changes, findings.grid
    if changes is None or grid is None:
        return ""
    count = counted(len(changes.photos), "photo")
    first, last = runs[0].name, runs[-1].name
    alone = len(runs) == 1
    by, places = list(grid.retrievers), {run.name: places_of(grid.rows[run.name]) for run in runs}
    columns = Columns(["CIDEr-D", *by], frozenset(by))
    scored = f"Behind each caption is its CIDEr-D, times 100{''.join(f', and its place by {one}' for one in by)}."

    def listed(photos: Sequence[int]) -> tuple[str, str]:
        cards = [_card(findings, grid, changes, photo, places) for photo in photos]
        orders = [Order(f"{run.name}: CIDEr-D", [-changes.scores[run.name][photo] for photo in photos]) for run in runs]
        orders += [
            Order(f"{run.name}: place by {one}", [places[run.name][one][photo] for photo in photos])
            for one in by
            for run in runs
        ]
        return f"{scored} {legend(cards)}", section(cards, pictures, columns, orders=orders) if cards else ""

    legend_better, better = listed(changes.improved(_CHANGED))
    legend_worse, worse = listed(changes.failed(_FAILED))
    fell = f"those that score least by {last}" if alone else f"those whose CIDEr-D fell most from {first} to {last}"
    return _section(
        "Captions that got better",
        f"Of {count} drawn by chance, those whose CIDEr-D rose most from {first} to {last}. {legend_better}",
        better,
    ) + _section("Where it fails", f"Of {count} drawn by chance, {fell}. {legend_worse}", worse)


def _card(findings: Findings, grid: Grid, changes: Changes, photo: int, places: Mapping[str, Places]) -> Card:
    """A photo of the grid, each caption with its score and its run's colour."""
    bare = card(grid, photo, places, findings.find_regions)
    lines = [
        replace(
            line,
            colour=dot(number),
            figures={"CIDEr-D": 100 * float(changes.scores[line.name][photo]), **line.figures},
        )
        for number, line in enumerate(bare.lines)
    ]
    return replace(bare, lines=lines)


_STYLE = """
tbody tr:last-child > * { border-bottom: 0; }
tr th:first-child { padding-left: 0; }
section > .wide th:first-child { background: var(--paper); left: 0; position: sticky; }
section > .wide td { max-width: 18rem; overflow-wrap: break-word; }
@media (max-width: 48rem) {
  section > .wide td { max-width: 9rem; min-width: 7rem; overflow-wrap: anywhere; } }
"""
