"""Runs side by side: what `tellapart train` wrote, where recipes differ, what evaluations found, captions that changed.

The page has the figures of the GLD paper; each figure is a file of its own besides.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from capscore import files
from capscore.errors import UserError
from capscore.overlap import cider_d
from capscore.printable import counted
from capscore.scoring import ScoringInputs
from tellapart import recipe_files
from tellapart.data.examples import Example
from tellapart.evaluation import cards, models, plots
from tellapart.evaluation import grid as grids
from tellapart.evaluation.attention import FOLDER, Picture, file_names
from tellapart.evaluation.attention import section as attended
from tellapart.evaluation.captions import Captioners, read_kept
from tellapart.evaluation.cards import Columns, FindRegions, Order, Pictures, no_regions
from tellapart.evaluation.grid import Grid
from tellapart.evaluation.local_reward import LocalReward, weights, word_rewards
from tellapart.evaluation.models import Model, ModelCaptions, Split
from tellapart.evaluation.plots import Figure, Series, dot, side_by_side
from tellapart.evaluation.table import text_table
from tellapart.evaluation.trec import file_name
from tellapart.html import render_page
from tellapart.metrics import descriptions
from tellapart.models.retrievers import load as load_retriever
from tellapart.recipe import Recipe
from tellapart.recipe_files import plain
from tellapart.retrievers.retriever import Retriever
from tellapart.training import run_folder
from tellapart.training.run_folder import Curves

Floats = NDArray[np.float64]
NEEDED = ("recipe.yaml", "log.jsonl")
_AS_THEY_ARE = ("loss", "length")  # the others are shares, and people read them times 100
_CHECKPOINT = "last.safetensors"
_CHANGED = 12  # photos whose captions gained most
_FAILED = 8  # and lost most
_LONGEST = 44  # letters of a cell in a terminal

# Run folders


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
        """The rewards that it is trained for, or its objective."""
        terms = " + ".join(name if weight == 1 else f"{weight:g} {name}" for name, weight in self.rewards.items())
        return terms or self.recipe.objective.name


def read_runs(folders: Sequence[str]) -> list[Run]:
    for folder in folders:
        if not files.is_folder(Path(folder)) or not files.is_file(Path(folder) / "recipe.yaml"):
            raise UserError(f"{folder} is not a run folder: `tellapart train` writes recipe.yaml into one.")
    return [_read_run(Path(model.source), model.name) for model in models.models(folders)]


def _read_run(folder: Path, name: str) -> Run:
    file = folder / "recipe.yaml"
    try:
        recipe = recipe_files.filled(Recipe(), recipe_files.read_yaml(file), strict=False)
    except UserError as error:
        raise UserError(f"{file} is damaged: {str(error).removeprefix(f'{file}: ')}") from None
    validations, training, last = run_folder.curves(folder / "log.jsonl")
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


def _position(file: Path) -> dict[str, Any]:
    """Position of a run by its checkpoint; empty where that is gone."""
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
    if all(settings == validated[0] for settings in validated):
        return ""
    return "The runs were validated on different photos or with different beams: their validations do not compare."


def in_units(metric: str, value: float) -> float:
    """A validation's figure as people read it."""
    return value if metric in _AS_THEY_ARE else 100 * value


# Tables: a row for each fact, a column for each run


def facts(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Objective, steps and state of the runs, then the last and the best validations."""
    rewards = [run.label if run.rewards else "" for run in runs]
    table: dict[str, list[str]] = {
        "objective": [run.recipe.objective.name for run in runs],
        **({"rewards": rewards} if any(rewards) else {}),
        "steps": [f"{run.steps:,}" for run in runs],
        "minutes": ["" if run.seconds is None else f"{run.seconds / 60:.1f}" for run in runs],
        "state": [run.state for run in runs],
    }
    for metric in dict.fromkeys(name for run in runs for name in run.validations):
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


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The settings in which the recipes differ, and each run's."""

    def settings(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
        for name, value in part.items():
            if isinstance(value, dict):
                yield from settings(value, f"{prefix}{name}.")
            else:
                text = ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
                yield f"{prefix}{name}", text or "-"

    of_runs = [dict(settings(plain(run.recipe))) for run in runs]
    rows = {key: [of_run.get(key, "-") for of_run in of_runs] for key in sorted(set[str]().union(*of_runs))}
    return {key: cells for key, cells in rows.items() if len(set(cells)) > 1}


def for_terminal(runs: Sequence[Run]) -> str:
    """Facts and differences as tables, as wide as the terminal."""
    names, width = [run.name for run in runs], shutil.get_terminal_size((100, 24)).columns
    parts = [text_table(names, facts(runs), width, most=_LONGEST), caution(runs)]
    if table := differences(runs):
        parts.append(f"where the recipes differ\n{text_table(names, table, width, most=_LONGEST)}")
    return "\n\n".join(filter(None, parts))


# Evaluations of the runs


@dataclass(frozen=True)
class Evaluation:
    """A folder that `tellapart evaluate --out` wrote, as far as it is about the runs."""

    folder: Path
    models: dict[str, dict[str, str]]  # data set -> run -> the name that it has in this evaluation
    scores: dict[str, dict[str, dict[str, float]]]  # data set -> run -> score -> value


def read_evaluation(folder: Path, runs: Sequence[Run]) -> Evaluation:
    results = files.read_json(folder / "results.json")
    details = files.read_json(folder / "details.json")
    evaluation = Evaluation(folder, {}, {})
    try:
        for data, of_models in results.items():
            paths = {name: files.real(Path(details[data]["models"][name]["given"])) for name in of_models}
            names = {run.name: name for run in runs for name, path in paths.items() if files.real(run.folder) == path}
            evaluation.models[data] = names
            evaluation.scores[data] = {run: dict(of_models[name]) for run, name in names.items()}
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{folder}: results.json and details.json are not those of one evaluation.") from None
    if not any(evaluation.models.values()):
        names_there = ", ".join(dict.fromkeys(name for of_models in results.values() for name in of_models))
        raise UserError(f"{folder}: none of the runs was evaluated there; it has {names_there}.")
    return evaluation


def evaluated(run: Run, data: str, evaluations: Sequence[Evaluation]) -> dict[str, str]:
    """A run's captions of a data set's photos in the first evaluation that has them: file -> caption."""
    for evaluation in evaluations:
        if (model := evaluation.models.get(data, {}).get(run.name)) is not None:
            file = evaluation.folder / "captions" / f"{file_name(data)}.{file_name(model)}.jsonl"
            return {row["file"]: row["caption"] for row in read_kept(file)}
    return {}


def by_batch_size(
    runs: Sequence[Run], evaluations: Sequence[Evaluation]
) -> dict[tuple[str, str], dict[str, list[tuple[float, float]]]]:
    """Recall against the batch size: data set and score -> what runs are trained for -> batch size, mean of the runs.

    Only what at least two batch sizes of one objective were evaluated by.
    """
    values: dict[tuple[str, str], dict[str, dict[int, list[float]]]] = {}
    for evaluation in evaluations:
        for data, of_runs in evaluation.scores.items():
            for run in (run for run in runs if run.name in of_runs):
                for score, value in of_runs[run.name].items():
                    if "R@" in score:
                        sizes = values.setdefault((data, score), {}).setdefault(run.label, {})
                        sizes.setdefault(run.recipe.batch_size, []).append(value)
    curves = {
        key: {
            label: [(float(size), 100 * sum(scores) / len(scores)) for size, scores in sorted(sizes.items())]
            for label, sizes in of_labels.items()
            if len(sizes) > 1
        }
        for key, of_labels in values.items()
    }
    return {key: of_labels for key, of_labels in curves.items() if of_labels}


# Captions of the runs for the same photos


@dataclass(frozen=True)
class Changes:
    """Captions of the photos that all runs captioned.

    photos    P of them, each with references
    captions  run -> P captions
    scores    run -> (P,) CIDEr-D; document frequencies are those of the whole split
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
    return replace(split, photos=with_references).some(count)


def compare_captions(split: Split, photos: Sequence[Example], captions: Mapping[str, Mapping[str, str]]) -> Changes:
    """split     all photos, whose references say how frequent words are
    captions  run -> file of a photo -> caption
    """
    shared = [photo for photo in photos if all(str(photo.file) in of_run for of_run in captions.values())]
    if not shared:
        raise UserError(f"{split.source}: there is no photo that all runs have a caption of.")
    with_references = [photo for photo in split.photos if photo.captions]
    row_of = {str(photo.file): row for row, photo in enumerate(with_references)}
    rows = np.array([row_of[str(photo.file)] for photo in shared])
    inputs = ScoringInputs([[""] for _ in with_references], [photo.captions for photo in with_references])
    scores, texts = {}, {run: [of_run[str(photo.file)] for photo in shared] for run, of_run in captions.items()}
    for run, of_run in texts.items():
        of_split = [""] * len(with_references)
        for row, text in zip(rows.tolist(), of_run, strict=True):
            of_split[row] = text
        captioned = inputs.with_captions([[text] for text in of_split])
        scores[run] = cider_d(captioned.captions_split, captioned.photos, captioned.references)[rows]
    return Changes(shared, texts, scores)


# All that is found


@dataclass
class Findings:
    """All that is shown; what is none has no section.

    grid      the photos of `changes`: how a retriever embeds them and their captions, if there is one
    left_out  figures that could not be made, and why
    problems  what could not be used
    """

    runs: list[Run]
    evaluations: list[Evaluation] = field(default_factory=list)
    changes: Changes | None = None
    grid: Grid | None = None
    find_regions: FindRegions = no_regions
    attention: Sequence[Picture] = ()
    local: LocalReward | None = None
    left_out: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def analyse(
    findings: Findings,
    out: Path,
    *,
    data: str | None = None,
    split: str = "test",
    photos: int = 200,
    features: Path | None = None,
    attention: int = 0,
    word: str = "",
    device: str = "auto",
) -> None:
    """Fill in the captions of some photos of a data file, where there is one, and what the runs learned from."""
    runs = findings.runs
    if data:
        (whole,) = models.splits([data], split)
        captioners = Captioners(out / "captions", device, features, [data])
        changes = findings.changes = _caption(findings, whole, drawn_photos(whole, photos), captioners)
        findings.find_regions = captioners.word_regions
        if attention:
            shown_files = [photo.file for photo in changes.photos]
            captions = {run: dict(zip(shown_files, texts, strict=True)) for run, texts in changes.captions.items()}
            findings.attention = captioners.attention(captions, attention, word)
        retriever = _unless(findings, "what a listener makes of captions", lambda: load_retriever(device=device))
        findings.grid = _retrieved(findings, changes, replace(whole, photos=changes.photos, problems=[]), retriever)
    captioning = [run for run in runs if not run.recipe.retriever]
    rewarded = [run for run in captioning if "ld" in run.rewards] or captioning
    if rewarded:
        findings.local = _unless(findings, "what words weigh and earn", lambda: LocalReward.of_run(rewarded[-1]))
    if findings.evaluations and not by_batch_size(runs, findings.evaluations):
        findings.left_out.append(
            "recall against batch size is left out: it takes evaluations of two runs that are trained for the same and "
            "differ in batch_size."
        )


def _caption(findings: Findings, whole: Split, split: Split, captioners: Captioners) -> Changes:
    """Each run's captions of some photos: as they were evaluated, or made now and kept in a folder."""
    wanted = [str(photo.file) for photo in split.photos]
    captions = dict[str, dict[str, str]]()
    findings.problems += whole.problems
    for run in findings.runs:
        model = Model(str(run.folder), run.name, "captioner")
        texts = evaluated(run, whole.name, findings.evaluations)
        if not set(wanted) <= texts.keys():
            of_photo = captioners.captions_of(model, split).of_photo
            texts = {wanted[row]: texts[0] for row, texts in of_photo.items()}
        else:
            with suppress(UserError):  # its captions are there; a captioner that cannot be loaded costs but the overlay
                captioners.load(model)
        captions[run.name] = {file: texts[file] for file in wanted if file in texts}
        findings.problems += [f"{file}: {run.name} has no caption of it." for file in wanted if file not in texts]
    return compare_captions(whole, split.photos, captions)


def _retrieved(findings: Findings, changes: Changes, photos: Split, retriever: Retriever | None) -> Grid:
    """The photos and the runs' captions of them, as a retriever embeds them; or as they are."""

    def photo_retrievers() -> list[grids.PhotoRetriever]:
        if retriever is None:
            return []
        readable, embedded = grids.embed([retriever], photos)
        if len(readable.photos) < len(photos.photos):
            raise UserError(readable.problems[0])
        return grids.photo_retrievers_of([retriever], embedded, photos, None)

    captions = [
        ModelCaptions(
            Model(str(run.folder), run.name, "captioner"),
            {photo: [text] for photo, text in enumerate(changes.captions[run.name])},
        )
        for run in findings.runs
    ]
    return grids.measure(
        photos,
        captions,
        list(range(len(changes.photos))),
        _unless(findings, "look-alikes, and places by a retriever,", photo_retrievers) or [],
        None,
        against=findings.runs[0].name,
        metrics="CIDEr-D",
    )


Result = TypeVar("Result")


def _unless(findings: Findings, what: str, find: Callable[[], Result]) -> Result | None:
    """A figure that cannot be made should not cost the others."""
    try:
        return find()
    except UserError as error:
        findings.left_out.append(f"{what} left out: {error}")
        return None


# The page


def write_page(findings: Findings, out: Path) -> None:
    runs, drawn, pictures = findings.runs, dict[str, Markup](), Pictures()
    sections = [
        *over_steps(runs, drawn),
        Figure("Recall against batch size", "Times 100.", side_by_side(_batch_sizes(findings), drawn)),
        *_changed(findings, pictures),
    ]
    local, changes, words = findings.local, findings.changes, list[Figure]()
    if local is not None and changes is not None:
        words.append(word_rewards(local, changes.photos, changes.captions, pictures, drawn))
    if local is not None:
        words.append(weights(local, drawn))
    page = render_page(
        "evaluation/pages/compare.html",
        title="Runs side by side",
        subtitle=", ".join(run.name for run in runs),
        styles=(plots.STYLE, cards.TABLES, cards.STYLE, "evaluation/pages/compare.css"),
        more_style=pictures.style,
        scripts=[cards.SCRIPT],
        runs=[(dot(number), run.name) for number, run in enumerate(runs)],
        caution=caution(runs),
        facts=facts(runs),
        differences=differences(runs),
        sections=[section for section in sections if section.body],
        attention=attended(findings.attention),
        words=words,
        left_out=findings.left_out,
    )
    for name, picture in zip(file_names(findings.attention), findings.attention, strict=True):
        files.replace(out / FOLDER / name, picture.png)
    for name, chart in drawn.items():
        files.replace(out / "figures" / f"{file_name(name)}.svg", plots.standalone(chart))
    files.replace(out / "report.html", page)


def over_steps(runs: Sequence[Run], drawn: dict[str, Markup]) -> list[Figure]:
    """Curves of runs (Fig. 6 of the GLD paper), as far as their logs go."""
    validations = [
        {name: [(step, in_units(name, value)) for step, value in curve] for name, curve in run.validations.items()}
        for run in runs
    ]
    rewards = [{name: curve for name, curve in run.training.items() if name.split("/")[0] == "reward"} for run in runs]
    note = "Of the captions that are learned from, before any weight; reward is the weighted sum."
    figures = [
        Figure("Validation over steps", caution(runs), side_by_side(_curves(runs, validations, "validation"), drawn)),
        Figure("Rewards over steps", note, side_by_side(_curves(runs, rewards, "training"), drawn)),
    ]
    return [figure for figure in figures if figure.body]


def _curves(runs: Sequence[Run], curves: Sequence[Curves], prefix: str) -> dict[str, Markup]:
    charts = {}
    for name in dict.fromkeys(name for of_run in curves for name in of_run):
        of_runs = enumerate(zip(runs, curves, strict=True))
        series = [Series(run.name, of_run[name], n) for n, (run, of_run) in of_runs if name in of_run]
        charts[f"{prefix}.{name.replace('/', '.')}"] = plots.lines(name, series, x="step")
    return charts


def _batch_sizes(findings: Findings) -> dict[str, Markup]:
    charts = {}
    for (data, score), of_labels in by_batch_size(findings.runs, findings.evaluations).items():
        series = [Series(label, points, n) for n, (label, points) in enumerate(of_labels.items())]
        charts[f"batch_size.{data}.{score}"] = plots.lines(f"{score}, {data}", series, x="batch size")
    return charts


def _changed(findings: Findings, pictures: Pictures) -> list[Figure]:
    """Photos whose captions got better, and worse."""
    runs, changes, grid = findings.runs, findings.changes, findings.grid
    if changes is None or grid is None:
        return []
    first, last = runs[0].name, runs[-1].name
    drawn = f"Of {counted(len(changes.photos), 'photo')} drawn by chance, those"
    by, places = list(grid.retrievers), {run.name: grid.rows[run.name].places() for run in runs}
    columns = Columns(["CIDEr-D", *by], frozenset(by))
    scored = f"Behind each caption is its CIDEr-D, times 100{''.join(f', and its place by {name}' for name in by)}."

    def card(photo: int) -> cards.Card:
        """Each caption with its score and its run's colour."""
        bare = cards.card(grid, photo, places, findings.find_regions)
        lines = []
        for number, line in enumerate(bare.lines):
            figures = {"CIDEr-D": 100 * float(changes.scores[line.name][photo]), **line.figures}
            lines.append(replace(line, colour=dot(number), figures=figures))
        return replace(bare, lines=lines)

    def listed(title: str, which: str, photos: Sequence[int]) -> Figure:
        shown = [card(photo) for photo in photos]
        orders = [Order(f"{run.name}: CIDEr-D", [-changes.scores[run.name][photo] for photo in photos]) for run in runs]
        orders += [
            Order(f"{run.name}: place by {name}", [places[run.name][name][photo] for photo in photos])
            for name in by
            for run in runs
        ]
        body = cards.section(shown, pictures, columns, orders=orders) if shown else Markup("")
        return Figure(title, f"{drawn} {which}. {scored} {cards.legend(shown)}", body)

    fell = f"that score least by {last}" if len(runs) == 1 else f"whose CIDEr-D fell most from {first} to {last}"
    rose = f"whose CIDEr-D rose most from {first} to {last}"
    return [
        listed("Captions that got better", rose, changes.improved(_CHANGED)),
        listed("Where it fails", fell, changes.failed(_FAILED)),
    ]
