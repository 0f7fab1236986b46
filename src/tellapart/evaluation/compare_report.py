"""The page of a comparison, with the figures of the GLD paper; each figure is a file of its own besides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tellapart import files
from tellapart.data.examples import Example
from tellapart.evaluation import cards as of_photos
from tellapart.evaluation import plots
from tellapart.evaluation.cards import Card, Columns, Order, Pictures, legend, section
from tellapart.evaluation.changes import Changes
from tellapart.evaluation.compare import Evaluation, Run, by_batch_size, caution, differences, facts, in_units
from tellapart.evaluation.local_reward import Earned, LocalReward
from tellapart.evaluation.plots import Mark, Series
from tellapart.evaluation.report import Looking, Places, card, nowhere, places_of
from tellapart.evaluation.run import Grid
from tellapart.evaluation.step_time import time_table
from tellapart.evaluation.trec import file_name
from tellapart.pages import LONG_SIDE, counted, escaped, page

_CHANGED = 12  # photos whose captions gained most
_FAILED = 8  # and lost most
_WORD_REWARDS = 3  # photos whose words' rewards are drawn


@dataclass
class Findings:
    """All that is shown; what is none has no section."""

    runs: list[Run]
    evaluations: list[Evaluation] = field(default_factory=list)
    changes: Changes | None = None
    grid: Grid | None = None  # of the photos of `changes`: how a retriever sees and hears them, if there is one
    looked: Looking = nowhere
    local: LocalReward | None = None
    plane: tuple[str, dict[str, NDArray[np.float64]]] | None = None  # the retriever, and run -> (P, 2)
    times: dict[str, dict[str, float]] = field(default_factory=dict)  # run -> part of a step -> milliseconds
    left_out: list[str] = field(default_factory=list)  # figures that could not be made, and why


def write(findings: Findings, out: Path) -> None:
    drawn: dict[str, str] = {}
    pictures = Pictures()
    sections = [
        _runs(findings.runs),
        _times(findings.runs, findings.times),
        _curves(findings.runs, drawn),
        _batch_sizes(findings.runs, findings.evaluations, drawn),
        _changed(findings, pictures),
        _word_rewards(findings.runs, findings.changes, findings.local, pictures, drawn),
        _weights(findings.local, drawn),
        _plane(findings.runs, findings.changes, findings.plane, drawn),
        "".join(f'<p class="notes">{escaped(sentence)}</p>\n' for sentence in findings.left_out),
    ]
    for name, chart in drawn.items():
        files.replace(out / "figures" / f"{file_name(name)}.svg", plots.standalone(chart))
    subtitle = ", ".join(run.name for run in findings.runs)
    body = "".join(sections)
    style = plots.STYLE + plots.LAYOUT + of_photos.TABLES + of_photos.STYLE + _STYLE + pictures.style
    made = page("Runs side by side", subtitle, body, style=style, script=of_photos.script())
    files.replace(out / "report.html", made)


def _section(title: str, note: str, body: str) -> str:
    """Nothing where there is nothing to show."""
    said = f'<p class="notes">{escaped(note)}</p>\n' if note else ""
    return f"<section>\n<h2>{escaped(title)}</h2>\n{said}{body}</section>\n" if body else ""


def _charts(charts: Mapping[str, str], drawn: dict[str, str]) -> str:
    """Charts side by side; `drawn` keeps them by name for the files."""
    drawn |= charts
    inside = "".join(f"<figure>{chart}</figure>\n" for chart in charts.values())
    return f'<div class="charts">\n{inside}</div>\n' if inside else ""


def _table(table: Mapping[str, Sequence[str]], names: Sequence[str], *, colours: Sequence[int]) -> str:
    """A column for each run."""
    both = zip(colours, names, strict=True)
    head = "".join(f'<th scope="col" dir="auto">{_dot(colour)}{escaped(name)}</th>' for colour, name in both)
    body = "".join(
        f'<tr><th scope="row">{escaped(key)}</th>{"".join(f"<td>{escaped(cell)}</td>" for cell in cells)}</tr>\n'
        for key, cells in table.items()
    )
    return f'<div class="wide"><table>\n<thead><tr><td></td>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def _dot(run: int) -> str:
    """A run's colour."""
    circle = f'<circle class="c{run % plots.COLOURS}" cx="5" cy="5" r="4"/>'
    return f'<svg class="chart dot-of" viewBox="0 0 10 10">{circle}</svg>'


# Recipes and logs


def _runs(runs: Sequence[Run]) -> str:
    names = [run.name for run in runs]
    note = f"Validations: the last, and the best with its step; times 100, but for loss and length. {caution(runs)}"
    colours = range(len(runs))
    parts = [_table(facts(runs), names, colours=colours)]
    if differ := differences(runs):
        parts.append(f"<h3>Where the recipes differ</h3>\n{_table(differ, names, colours=colours)}")
    return _section("Runs", note, "".join(parts))


def _times(runs: Sequence[Run], times: Mapping[str, Mapping[str, float]]) -> str:
    if not times:
        return ""
    colours = [number for number, run in enumerate(runs) if run.name in times]
    note = "Milliseconds for a batch, the median of a few, measured here and now; without the optimiser."
    return _section("Time per part of a step", note, _table(time_table(times), list(times), colours=colours))


def _curves(runs: Sequence[Run], drawn: dict[str, str]) -> str:
    def validations(run: Run) -> dict[str, list[tuple[int, float]]]:
        return {
            name: [(step, in_units(name, value)) for step, value in curve] for name, curve in run.validations.items()
        }

    def rewards(run: Run) -> dict[str, list[tuple[int, float]]]:
        return {name: curve for name, curve in run.training.items() if name.split("/")[0] == "reward"}

    return _section(
        "Validation over steps", caution(runs), _charts(_over_steps(runs, validations, "validation"), drawn)
    ) + _section(
        "Rewards over steps",
        "Of the captions that are learned from, before any weight; reward is the weighted sum.",
        _charts(_over_steps(runs, rewards, "training"), drawn),
    )


def _over_steps(
    runs: Sequence[Run], of: Callable[[Run], Mapping[str, Sequence[tuple[float, float]]]], prefix: str
) -> dict[str, str]:
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


def _batch_sizes(runs: Sequence[Run], evaluations: Sequence[Evaluation], drawn: dict[str, str]) -> str:
    charts = {
        f"batch_size.{data}.{score}": plots.lines(
            f"{score}, {data}",
            [Series(label, points, n) for n, (label, points) in enumerate(of_labels.items())],
            x="batch size",
        )
        for (data, score), of_labels in by_batch_size(runs, evaluations).items()
    }
    return _section("Recall against batch size", "Times 100.", _charts(charts, drawn))


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
    bare = card(grid, photo, places, findings.looked)
    lines = [
        replace(
            line,
            colour=_dot(number),
            figures={"CIDEr-D": 100 * float(changes.scores[line.name][photo]), **line.figures},
        )
        for number, line in enumerate(bare.lines)
    ]
    return replace(bare, lines=lines)


def _plane(
    runs: Sequence[Run],
    changes: Changes | None,
    plane: tuple[str, dict[str, NDArray[np.float64]]] | None,
    drawn: dict[str, str],
) -> str:
    if changes is None or plane is None:
        return ""
    retriever, layout = plane
    series = [Series(run.name, list(map(tuple, layout[run.name].tolist())), n) for n, run in enumerate(runs)]
    chart = plots.scatter("Captions as a listener hears them", series, [changes.said[run.name] for run in runs])
    note = (
        f"t-SNE of the captions as {retriever} embeds them: captions that say alike lie together, and many on one spot "
        "tell no photo apart. Directions and distances across the map mean nothing."
    )
    return _section("Map of the captions", note, _charts({"captions": chart}, drawn))


# The local discriminative reward


def _weights(local: LocalReward | None, drawn: dict[str, str]) -> str:
    if local is None:
        return ""
    weights = local.weights()
    series = []
    for one in weights:
        centres = ((one.edges[1:] + one.edges[:-1]) / 2).tolist()
        series.append(
            Series(f"n = {one.order}", list(zip(centres, (100 * one.shares).tolist(), strict=True)), one.order + 3)
        )
    marks = [Mark(local.config.word_threshold, "η, words"), Mark(local.config.threshold, "λ, n-grams")]
    chart = plots.lines("Share of n-grams (%) by weight", series, x="TF-IDF weight", marks=marks)
    lines = "".join(
        f'<tr><th scope="row">n = {one.order}</th>'
        + "".join(f'<td class="said">{escaped(text)} <small>{weight:.2f}</small></td>' for weight, text in one.examples)
        + "</tr>\n"
        for one in weights
    )
    examples = f'<h3>Frequent ones, from light to heavy</h3>\n<div class="wide"><table>\n{lines}</table></div>\n'
    note = f"By the training references and the vocabulary of {local.run.name}. {_whose(local)}"
    return _section("What n-grams weigh", note, _charts({"weights": chart}, drawn) + examples)


def _whose(local: LocalReward) -> str:
    config = local.config
    used = "are those of its reward" if local.is_used else "are those of its recipe, whose reward does not use them"
    return f"The thresholds λ = {config.threshold:.3g} and η = {config.word_threshold:.3g} {used}."


def _word_rewards(
    runs: Sequence[Run],
    changes: Changes | None,
    local: LocalReward | None,
    pictures: Pictures,
    drawn: dict[str, str],
) -> str:
    if changes is None or local is None:
        return ""
    references = [photo.captions for photo in changes.photos]
    earned = {run.name: local.earned(changes.said[run.name], references) for run in runs}
    last = earned[runs[-1].name]
    parts = []
    for photo in sorted(range(len(last)), key=lambda photo: -last[photo].most)[:_WORD_REWARDS]:
        charts = dict(_earned(runs, changes.photos[photo], [earned[run.name][photo] for run in runs]))
        picture = f'<div class="photos">{pictures.show(changes.photos[photo].file, LONG_SIDE)}</div>'
        parts.append(f"<article>\n{picture}{_charts(charts, drawn)}</article>\n")
    note = (
        "What LD, the local discriminative reward, gives each word of a caption; dashed: CIDEr-D, which all words get. "
        f"Shown are the photos where a word of {runs[-1].name} gets most; by the vocabulary of {local.run.name}. "
        f"{_whose(local)}"
    )
    return _section("What words earn", note, "".join(parts))


def _earned(runs: Sequence[Run], photo: Example, earned: Sequence[Earned]) -> Iterable[tuple[str, str]]:
    for number, (run, own) in enumerate(zip(runs, earned, strict=True)):
        if own.words:
            each = [(float(place), value) for place, value in enumerate(own.each)]
            flat = [(float(place), own.sentence) for place in range(len(each))]
            series = [Series("LD", each, number), Series("CIDEr-D", flat, number, dashed=True)]
            yield f"words.{photo.id}.{run.name}", plots.lines(run.name, series, x="word", words=own.words)


_STYLE = """
tbody tr:last-child > * { border-bottom: 0; }
tr th:first-child { padding-left: 0; }
section > .wide th:first-child { background: var(--paper); left: 0; position: sticky; }
section > .wide td { max-width: 18rem; overflow-wrap: break-word; }
.dot-of { display: inline-block; height: .65em; margin-right: .4em; width: .65em; }
article .charts figure { border: 0; }
article .charts { grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
section > .charts:has(> figure:only-child) { grid-template-columns: minmax(0, 40rem); }
@media (max-width: 48rem) {
  section > .wide td { max-width: 9rem; min-width: 7rem; overflow-wrap: anywhere; } }
"""
