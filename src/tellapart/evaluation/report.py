"""One page of an evaluation: the grids with intervals and marks, then photos with every model's caption beside them.

Which photos are shown is drawn by a seed, and nobody chooses; those whose ranks changed most have their own section.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tellapart import files
from tellapart.errors import BadPhoto
from tellapart.evaluation.run import Differences, Grid, Row
from tellapart.evaluation.table import MARKS, all_columns, heading, left_out, main_columns, notes, shown, verdict
from tellapart.pages import counted, escaped, page, thumbnail

EXAMPLES = 24
CHANGES = 4  # photos whose rank rose most, and as many whose rank fell most, for each model
_SEED = 0
_SMALL = "Below a figure: its 95 % interval; \N{GREEK CAPITAL LETTER DELTA}, the difference, with the same."


def write(grids: Sequence[Grid], differences: Sequence[Differences], out: Path) -> None:
    """The page in one step."""
    parts = [_grid(grid, found) for grid, found in zip(grids, differences, strict=True)]
    models = {name for grid in grids for name in grid.lines}
    subtitle = f"{counted(len(models), 'model')} on {counted(len(grids), 'data set')}"
    files.replace(out, page("Evaluation", subtitle, "".join(parts), style=_STYLE))


def _grid(grid: Grid, differences: Differences) -> str:
    intervals = grid.intervals()
    main = main_columns(grid)
    every = all_columns(grid)
    everything = f"<summary>All {len(every)} measures</summary>\n{_turned(grid, differences, intervals, every)}"
    legend = "".join(f"<p>{escaped(note)}</p>" for note in (*notes(grid, main), _SMALL, *left_out(grid)))
    parts = [
        f"<section>\n<h2>{escaped(grid.split.name)}</h2>\n",
        _table(grid, differences, intervals, main),
        f'<div class="notes">{legend}</div>\n',
        f"<details>{everything}</details>\n",
        _examples(grid),
        "</section>\n",
    ]
    return "".join(parts)


Intervals = dict[str, dict[str, tuple[float, float]]]


def _table(grid: Grid, differences: Differences, intervals: Intervals, columns: Sequence[str]) -> str:
    """A row for each model."""
    head = "".join(f'<th scope="col">{_heading(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row" dir="auto">{escaped(name)}</th>'
        + "".join(_cell(grid, differences, intervals, name, column) for column in columns)
        + "</tr>\n"
        for name in grid.lines
    )
    return f'<div class="wide"><table>\n<thead><tr><td></td>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def _turned(grid: Grid, differences: Differences, intervals: Intervals, columns: Sequence[str]) -> str:
    """A row for each measure: there are more of them than a page is wide."""
    head = "".join(f'<th scope="col" dir="auto">{escaped(name)}</th>' for name in grid.lines)
    body = "".join(
        f'<tr><th scope="row">{escaped(column)}</th>'
        + "".join(_cell(grid, differences, intervals, name, column) for name in grid.lines)
        + "</tr>\n"
        for column in columns
    )
    return f'<div class="wide"><table>\n<thead><tr><td></td>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def _heading(column: str) -> str:
    measure, by = heading(column)
    return f"{escaped(measure)}<small>{escaped(by)}</small>" if by else escaped(measure)


def _cell(grid: Grid, differences: Differences, intervals: Intervals, name: str, column: str) -> str:
    value = grid.figures[name].scores.get(column)
    if value is None:
        return "<td></td>"
    low, high = intervals[name][column]
    difference = differences.get(name, {}).get(column)
    mark = verdict(column, difference)
    small = f"{shown(column, low)} to {shown(column, high)}"
    if difference is not None:
        ends = f"{shown(column, difference.low)} to {shown(column, difference.high)}"
        sign = "+" if difference.value > 0 else ""
        small += f"<br>Δ {sign}{shown(column, difference.value)}<br>{ends}"
    figure = f"<b>{shown(column, value)}</b>{MARKS[mark] if mark else ''}"
    return f'<td class="{mark}">{figure}<small>{small}</small></td>'


# Photos


def _examples(grid: Grid) -> str:
    draw = np.random.default_rng(_SEED)
    count = min(EXAMPLES, len(grid.measured))
    drawn = sorted(draw.choice(grid.measured, count, replace=False).tolist())
    base = grid.speaker(grid.against)
    shown_rows = list(dict.fromkeys([*(grid.speaker(line) for line in grid.lines), base]))
    places = {name: _places(grid.rows[name]) for name in shown_rows}
    among = counted(len(grid.split.photos), "photo")
    note = f"Beside a caption is its photo's place among the {among} by each retriever, 1 if it is found."
    parts = [
        f'<h3>{count} photos, drawn by chance</h3>\n<p class="notes">{note}</p>\n',
        *(_photo(grid, photo, places) for photo in drawn),
    ]
    for name in shown_rows:
        if name == base or grid.rows[name].said.of_people or not grid.retrievers:
            continue
        by = next(iter(grid.retrievers))
        if chosen := _changes(places[name][by], places[base][by]):
            title = f"{name}: the largest changes of rank against {base}, by {by}"
            parts += [f"<h3>{escaped(title)}</h3>\n", *(_photo(grid, photo, places) for photo in chosen)]
    return "".join(parts)


def _changes(ours: dict[int, int], theirs: dict[int, int]) -> list[int]:
    """Photos whose place rose most, then those whose place fell most; from 1 to 10 is as much as from 10 to 100."""
    change = {photo: math.log(theirs[photo] / place) for photo, place in ours.items() if theirs[photo] != place}
    order = sorted(change, key=lambda photo: -change[photo])
    risen = [photo for photo in order[:CHANGES] if change[photo] > 0]
    fallen = [photo for photo in order[: -CHANGES - 1 : -1] if change[photo] < 0]
    return risen + fallen


Places = dict[str, dict[int, int]]  # retriever -> photo -> the place, from 1, that its (first) caption gives it


def _places(row: Row) -> Places:
    found = {}
    for retriever, by in row.found.items():
        photos, first = np.unique(by.own, return_index=True)
        found[retriever] = dict(zip(photos.tolist(), (by.ranks[first] + 1).tolist(), strict=True))
    return found


def _photo(grid: Grid, photo: int, places: dict[str, Places]) -> str:
    alike = int(grid.look_alike[photo])
    figures = [_figure(grid, photo, "")] + ([_figure(grid, alike, "looks most like it")] if alike >= 0 else [])
    head = "".join(f'<th scope="col">{escaped(retriever)}</th>' for retriever in grid.retrievers)
    lines = []
    for name in places:
        found = [places[name][retriever][photo] for retriever in grid.retrievers]
        cells = "".join(f'<td class="{"found" if place == 1 else ""}">{place}</td>' for place in found)
        said = escaped(grid.rows[name].said.of_photo[photo][0])
        lines.append(
            f'<tr><th scope="row" dir="auto">{escaped(name)}</th><td class="said" dir="auto">{said}</td>{cells}</tr>\n'
        )
    table = f'<table>\n<thead><tr><td></td><td class="said">place by</td>{head}</tr></thead>\n{"".join(lines)}</table>'
    return f'<article>\n<div class="photos">{"".join(figures)}</div>\n<div class="wide">{table}</div>\n</article>\n'


def _figure(grid: Grid, photo: int, note: str) -> str:
    file = grid.split.photos[photo].file
    try:
        width, height, url = thumbnail(file)
        picture = f'<img src="{url}" width="{width}" height="{height}" alt="{escaped(file.name)}">'
    except BadPhoto as error:
        picture = f'<span class="none">no picture: {escaped(error.reason)}</span>'
    below = f"<figcaption>{escaped(note)}</figcaption>" if note else ""
    return f"<figure>{picture}{below}</figure>"


_STYLE = """
:root { --good: #1a7a4c; --bad: #b3372f; --other: #8a6a12; }
@media (prefers-color-scheme: dark) { :root { --good: #62c795; --bad: #ef8a80; --other: #d8b75a; } }
body { max-width: 80rem; overflow-wrap: normal; }
h2::first-letter { text-transform: none; }
h3 { font-size: 1.05rem; font-weight: 600; margin: 2rem 0 .8rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .45rem .6rem; text-align: right; vertical-align: top;
  white-space: nowrap; }
th { font-weight: 600; }
thead th { vertical-align: bottom; }
tr th:first-child { text-align: left; }
td small, th small { display: block; font-size: .72rem; }
.better { color: var(--good); } .worse { color: var(--bad); } .other { color: var(--other); }
.notes { color: var(--soft); font-size: .82rem; margin: .8rem 0; }
details { margin: 1rem 0; } summary { cursor: pointer; margin-bottom: .6rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; display: grid; gap: 1rem;
  grid-template-columns: 21rem minmax(0, 1fr); margin-bottom: 1rem; padding: .8rem; }
.photos { align-items: start; display: grid; gap: .6rem; grid-template-columns: 1fr 1fr; }
figure { background: none; border: 0; border-radius: 0; }
figure img { border-radius: .3rem; height: auto; max-height: 11rem; object-fit: contain; }
figcaption { color: var(--soft); font-size: .75rem; padding: .3rem 0 0; text-align: center; }
article table { font-size: .9rem; width: 100%; }
article tr:last-child th, article tr:last-child td { border-bottom: 0; }
td.said { overflow-wrap: anywhere; text-align: left; white-space: normal; width: 100%; min-width: 7rem; }
article thead th, article thead td { color: var(--soft); font-size: .75rem; font-weight: 400; }
article thead td.said { text-align: right; vertical-align: bottom; }
.found { color: var(--good); font-weight: 650; }
@media (max-width: 48rem) { article { grid-template-columns: 1fr; } th, td { padding: .4rem .35rem; }
  article th:first-child { overflow-wrap: anywhere; white-space: normal; min-width: 4.5rem; }
  section > .wide th:first-child, details th:first-child { background: var(--paper); left: 0; position: sticky; } }
"""
