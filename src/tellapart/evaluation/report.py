"""One page of an evaluation: the grids with intervals and marks, then photos with every model's caption beside them.

Which photos are shown is drawn by a seed, and nobody chooses; those whose ranks changed most have their own section.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tellapart import files
from tellapart.data.tokenizers import split_words
from tellapart.errors import UserError
from tellapart.evaluation import cards as of_photos
from tellapart.evaluation import figures, plots
from tellapart.evaluation.cards import Card, Columns, Kind, Line, Looked, Order, Pictures, legend, section
from tellapart.evaluation.figures import Figure
from tellapart.evaluation.local_reward import LocalReward
from tellapart.evaluation.plots import Series
from tellapart.evaluation.run import Differences, Grid, Row
from tellapart.evaluation.runs import Run
from tellapart.evaluation.table import MARKS, all_columns, heading, left_out, main_columns, notes, shown, verdict
from tellapart.metrics.retrieval import recalls
from tellapart.pages import counted, escaped, page
from tellapart.progress import Progress

EXAMPLES = 24
CHANGES = 4  # photos whose rank rose most, and as many whose rank fell most, for each model
_EARNING = 200  # photos among which those are whose words' rewards are shown
_MAPPED = 1000  # captions on a map
_FEWEST = 50  # photos that are worth one
_FIRST = (1, 2, 5, 10, 20, 50, 100)
_SEED = 0
_SMALL = "Below a figure: its 95 % interval; \N{GREEK CAPITAL LETTER DELTA}, the difference, with the same."


Looking = Callable[[str, Path, str], Looked | None]  # speaker, photo, caption -> what its words rest on
Said = dict[str, list[str]]  # speaker -> captions of the same photos
Plane = Callable[[Said], tuple[str, dict[str, NDArray[np.float64]]]]  # -> a retriever's name, where captions lie for it


def nowhere(_speaker: str, _photo: Path, _caption: str) -> None:
    """Of captions whose captioner is not at hand."""


def write(
    grids: Sequence[Grid],
    differences: Sequence[Differences],
    out: Path,
    looked: Looking = nowhere,
    plane: Plane | None = None,
    *,
    title: str = "Evaluation",
    footer: str = "",
    examples: int = EXAMPLES,
    trained: Sequence[Run] = (),
) -> None:
    """The page in one step.

    examples  so many photos of each data set are drawn by chance
    trained   those of the models whose training has a log
    """
    pictures = Pictures()
    parts = [
        _grid(grid, found, pictures, looked, plane, examples) for grid, found in zip(grids, differences, strict=True)
    ]
    parts.append(_training(trained))
    models = {name for grid in grids for name in grid.lines}
    subtitle = f"{counted(len(models), 'model')} on {counted(len(grids), 'data set')}"
    style = plots.STYLE + figures.STYLE + of_photos.TABLES + _STYLE + of_photos.STYLE + pictures.style
    files.replace(out, page(title, subtitle, "".join(parts), footer=footer, style=style, script=of_photos.script()))


def _grid(
    grid: Grid,
    differences: Differences,
    pictures: Pictures,
    looked: Looking,
    plane: Plane | None,
    examples: int,
) -> str:
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
        _recall(grid),
        _examples(grid, pictures, looked, examples),
        _figures(grid, pictures, plane),
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
    table = f'<table class="sortable">\n<thead><tr><td></td>{head}</tr></thead>\n<tbody>{body}</tbody></table>'
    return f'<div class="wide">{table}</div>\n'


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
    return f'<td class="{mark}" data-value="{value:.6g}">{figure}<small>{small}</small></td>'


def _recall(grid: Grid) -> str:
    """For each retriever, how many photos are among its first K."""
    count = len(grid.split.photos)
    first = [k for k in _FIRST if k < count]
    charts = []
    for by in grid.retrievers if first else ():
        series = []
        for colour, line in enumerate(grid.lines):
            runs = [grid.rows[name].found[by] for name in grid.runs.get(line, [line])]
            found = [recalls(run.ranks, run.own, count, "R", by, at=first).corpus().values() for run in runs]
            means = (100 * sum(values) / len(runs) for values in zip(*found, strict=True))
            series.append(Series(line, list(enumerate(means)), colour))
        title = f"% of photos among the first K by {by}"
        charts.append(f"<figure>{plots.lines(title, series, x='K', words=list(map(str, first)))}</figure>\n")
    return f'<div class="charts">\n{"".join(charts)}</div>\n' if charts else ""


# Photos


def _examples(grid: Grid, pictures: Pictures, looked: Looking, examples: int) -> str:
    """Those drawn by chance, and for each speaker those whose places changed most from the base's."""
    count = min(examples, len(grid.measured))
    drawn = set(np.random.default_rng(_SEED).choice(grid.measured, count, replace=False).tolist())
    base, names = grid.speaker(grid.against), speakers(grid)
    places = {name: places_of(grid.rows[name]) for name in names}
    by = list(grid.retrievers)[-1] if grid.retrievers else ""  # by custom the judge, which chose and rewarded nothing
    ours = [name for name in names if not grid.rows[name].said.of_people]
    changed = {name: _changes(places[name][by], places[base][by]) for name in ours if by and name != base}
    photos = sorted(drawn.union(*changed.values()))

    wanted = {(photo, name) for photo in drawn for name in ours}
    wanted |= {(photo, one) for name, own in changed.items() for photo in own for one in (name, base)}
    cards = _cards(grid, photos, places, looked, wanted)
    kinds = []
    if len(drawn) < len(photos):
        chance = f"{counted(count, 'photo')} drawn by chance"
        kinds.append(Kind(chance, frozenset(map(photos.index, drawn)), at_first=True))
    kinds += [Kind(name, frozenset(map(photos.index, own))) for name, own in _groups(grid, photos).items()]
    orders = []
    for name, most in changed.items():
        now, before = (np.array([places[one][by][photo] for photo in photos]) for one in (name, base))
        found, rise = np.flatnonzero((now == 1) & (before > 1)), np.log(before / now)
        kinds += [
            Kind(f"{name}: the largest changes of rank against {base}, by {by}", frozenset(map(photos.index, most))),
            Kind(f"found by {by} through {name}, not through {base}", frozenset(found.tolist())),
        ]
        orders += [
            Order(f"{name}: rank risen most, by {by}", (-rise).tolist()),
            Order(f"{name}: rank fallen most, by {by}", rise.tolist()),
        ]
    orders += [Order(f"{name}: rank, by {by}", [places[name][by][photo] for photo in photos]) for name in names if by]

    among = counted(len(grid.split.photos), "photo")
    place = f" Behind a caption is its photo's place among the {among} by each retriever, 1 if it is found."
    note = escaped(legend(cards) + (place if by else ""))
    columns = Columns(list(grid.retrievers), frozenset(grid.retrievers), "place by" if by else "")
    listed = section(cards, pictures, columns, orders=orders, kinds=kinds)
    return f'<h3>Photos</h3>\n<p class="notes">{note}</p>\n{listed}'


def _groups(grid: Grid, photos: Sequence[int]) -> dict[str, list[int]]:
    """Photos that the data set itself puts together, by the key `group` of its records."""
    found: dict[str, list[int]] = {}
    for photo in photos:
        if name := grid.split.photos[photo].extra.get("group"):
            found.setdefault(str(name), []).append(photo)
    return found


def _cards(
    grid: Grid,
    photos: Sequence[int],
    places: Mapping[str, Places],
    looked: Looking,
    wanted: set[tuple[int, str]],
) -> list[Card]:
    """wanted  photos and speakers of whose words is shown what they rest on: it takes time"""
    files = {(grid.split.photos[photo].file, name) for photo, name in wanted}
    with Progress("what words rest on", len(files), unit="caption") as bar:

        def look(name: str, file: Path, caption: str) -> Looked | None:
            if (file, name) not in files:
                return None
            bar.advance()
            return looked(name, file, caption)

        return [card(grid, photo, places, look) for photo in photos]


def _figures(grid: Grid, pictures: Pictures, plane: Plane | None) -> str:
    """What words earn and weigh, and where captions lie; of some photos, drawn by chance."""
    names = [name for name in speakers(grid) if not grid.rows[name].said.of_people]
    if not names:
        return ""
    found: list[Figure] = []
    told = [photo for photo in grid.measured if grid.split.photos[photo].captions]
    if told:
        local = LocalReward.of_references([grid.split.photos[photo].captions for photo in told])
        chosen, base = _some(told, _EARNING), grid.speaker(grid.against)
        two = list(dict.fromkeys([base if base in names else names[0], names[-1]]))
        photos = [grid.split.photos[photo] for photo in chosen]
        found = [
            figures.word_rewards(local, photos, _said(grid, two, chosen), pictures, {}),
            figures.weights(local, {}),
        ]
    if plane is not None and len(grid.measured) >= _FEWEST:
        said = _said(grid, names, _some(grid.measured, max(_FEWEST, _MAPPED // len(names))))
        with suppress(UserError):  # what it needs is installed apart, and captions may be too few or too alike
            found.append(figures.plane(*plane(said), said, {}))
    return "".join(map(_figure, found))


def _figure(figure: Figure) -> str:
    note = f'<p class="notes">{escaped(figure.note)}</p>\n' if figure.note else ""
    return f"<h3>{escaped(figure.title)}</h3>\n{note}{figure.body}"


def _training(trained: Sequence[Run]) -> str:
    """How those models went that are runs with a log."""
    found = "".join(map(_figure, figures.over_steps(trained, {})))
    return f"<section>\n<h2>How they were trained</h2>\n{found}</section>\n" if found else ""


def _said(grid: Grid, names: Sequence[str], photos: Sequence[int]) -> Said:
    return {name: [grid.rows[name].said.of_photo[photo][0] for photo in photos] for name in names}


def _some(photos: Sequence[int], most: int) -> list[int]:
    """So many of them, drawn by a seed, in their order."""
    return sorted(np.random.default_rng(_SEED).permutation(photos)[:most].tolist())


def speakers(grid: Grid) -> list[str]:
    """The rows whose captions are shown: of a recipe, one run."""
    return list(dict.fromkeys([*map(grid.speaker, grid.lines), grid.speaker(grid.against)]))


def card(grid: Grid, photo: int, places: Mapping[str, Places], looked: Looking) -> Card:
    """A photo of a grid: what the speakers that have places say of it, and not of its look-alikes."""
    here = grid.split.photos[photo]
    alike = [other for other in grid.look_alikes[photo].tolist() if other >= 0]
    lines = []
    for name, of_retrievers in places.items():
        said = grid.rows[name].said.of_photo
        elsewhere = frozenset(word for other in alike for text in said.get(other, [])[:1] for word in split_words(text))
        figures = {by: float(own[photo]) for by, own in of_retrievers.items()}
        lines.append(Line(name, said[photo][0], elsewhere, figures, looked(name, here.file, said[photo][0])))
    return Card(here.file, [grid.split.photos[other].file for other in alike], lines, here.captions)


def _changes(ours: dict[int, int], theirs: dict[int, int]) -> list[int]:
    """Photos whose place rose most, then those whose place fell most; from 1 to 10 is as much as from 10 to 100."""
    change = {photo: math.log(theirs[photo] / place) for photo, place in ours.items() if theirs[photo] != place}
    order = sorted(change, key=lambda photo: -change[photo])
    risen = [photo for photo in order[:CHANGES] if change[photo] > 0]
    fallen = [photo for photo in order[: -CHANGES - 1 : -1] if change[photo] < 0]
    return risen + fallen


Places = dict[str, dict[int, int]]  # retriever -> photo -> the place, from 1, that its (first) caption gives it


def places_of(row: Row) -> Places:
    found = {}
    for retriever, by in row.found.items():
        photos, first = np.unique(by.own, return_index=True)
        found[retriever] = dict(zip(photos.tolist(), (by.ranks[first] + 1).tolist(), strict=True))
    return found


_STYLE = """
h2::first-letter { text-transform: none; }
td small, th small { display: block; font-size: .72rem; }
section > .wide td, section > .wide th, details td { white-space: nowrap; }
.sortable thead th[tabindex] { cursor: pointer; }
.sortable th[aria-sort=descending]::after { content: "\\25BE"; }
.sortable th[aria-sort=ascending]::after { content: "\\25B4"; }
.better { color: var(--good); } .worse { color: var(--bad); } .other { color: var(--other); }
details { margin: 1rem 0; } summary { cursor: pointer; margin-bottom: .6rem; }
@media (max-width: 48rem) {
  section > .wide th:first-child, details th:first-child { background: var(--paper); left: 0; position: sticky; } }
"""
