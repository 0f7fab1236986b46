"""The page of a comparison, with the figures of the GLD paper; each figure is a file of its own besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from capscore import files
from capscore.printable import counted
from tellapart.evaluation.changes import Changes
from tellapart.evaluation.compare import Evaluation, by_batch_size, differences, facts
from tellapart.evaluation.grid import Grid
from tellapart.evaluation.local_reward import LocalReward
from tellapart.evaluation.pages import cards as of_photos
from tellapart.evaluation.pages import figures, plots
from tellapart.evaluation.pages.attention import FOLDER, Picture, file_names
from tellapart.evaluation.pages.attention import section as attended
from tellapart.evaluation.pages.cards import Card, Columns, Order, Pictures, legend, section
from tellapart.evaluation.pages.figures import dot, side_by_side
from tellapart.evaluation.pages.photo_cards import FindRegions, Places, card, no_regions, places_of
from tellapart.evaluation.pages.plots import Series
from tellapart.evaluation.training_runs import Run, caution
from tellapart.evaluation.trec import file_name
from tellapart.html import escaped, page

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


def write(findings: Findings, out: Path) -> None:
    drawn: dict[str, str] = {}
    pictures = Pictures()
    sections = [
        _runs(findings.runs),
        *(_section(*one) for one in figures.over_steps(findings.runs, drawn)),
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
    style = plots.STYLE + figures.STYLE + of_photos.TABLES + of_photos.STYLE + _STYLE + pictures.style
    made = page("Runs side by side", subtitle, body, style=style, script=of_photos.script())
    files.replace(out / "report.html", made)


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
        found.append(figures.word_rewards(local, changes.photos, changes.captions, pictures, drawn))
    if local is not None:
        found.append(figures.weights(local, drawn))
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
