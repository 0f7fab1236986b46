"""One page of an evaluation: the grids with intervals and marks, then photos with every model's caption beside them.

A page for people who come to see captions opens with photos, those first that show best what a model adds.  Below are
photos that only one of two rows identifies (Fig. 2 of DiscriTune), and the words of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, zip_longest
from pathlib import Path

import numpy as np

from capscore import files
from capscore.errors import UserError
from capscore.printable import counted
from tellapart.data.media.thumbnails import LONG_SIDE
from tellapart.evaluation import cards as of_photos
from tellapart.evaluation import plots
from tellapart.evaluation import table as word_use
from tellapart.evaluation.attention import Picture
from tellapart.evaluation.attention import section as attended
from tellapart.evaluation.cards import FindRegions, Pictures, no_regions, photo_list, speakers
from tellapart.evaluation.compare import Run, over_steps
from tellapart.evaluation.grid import Differences, Grid
from tellapart.evaluation.local_reward import LocalReward, weights, word_rewards
from tellapart.evaluation.plots import Figure, Series
from tellapart.evaluation.table import (
    MARKS,
    all_columns,
    heading,
    in_short,
    left_out,
    legend,
    main_columns,
    notes,
    shown,
    verdict,
    which_to_believe,
)
from tellapart.html import abbreviation, escaped, page
from tellapart.metrics import descriptions
from tellapart.metrics.retrieval import recalls

EXAMPLES = 24
_EARNING = 200  # photos among which those are whose words' rewards are shown
_FEWEST = 50  # photos, at least, for a chart
_FIRST = (1, 2, 5, 10, 20, 50, 100)
_SEED = 0
_SMALL = "Below a figure: its 95 % interval; \N{GREEK CAPITAL LETTER DELTA}, the difference, with the same."


CaptionsByModel = dict[str, list[str]]  # model -> captions of the same photos


def write(
    grids: Sequence[Grid],
    differences: Sequence[Differences],
    out: Path,
    find_regions: FindRegions = no_regions,
    *,
    title: str = "Evaluation",
    subtitle: str = "",
    footer: str = "",
    examples: int = EXAMPLES,
    first: int = 0,
    trained: Sequence[Run] = (),
    attention: Sequence[Picture] = (),
) -> None:
    """The page in one step.

    examples  so many photos of each data set are drawn by chance
    first     photos stand before the tables: at first up to so many, which show best what the second model adds
    trained   those of the models whose training has a log
    attention pictures of what words attend to
    """
    pictures = Pictures()
    parts = [
        _grid(grid, found, pictures, find_regions, examples, first)
        for grid, found in zip(grids, differences, strict=True)
    ]
    parts += [attended(attention), _training(trained)]
    models = {name for grid in grids for name in grid.lines}
    subtitle = subtitle or f"{counted(len(models), 'model')} on {counted(len(grids), 'data set')}"
    style = plots.STYLE + plots.FIGURES_STYLE + _PAIRS + of_photos.TABLES + _STYLE + of_photos.STYLE + pictures.style
    files.replace(out, page(title, subtitle, "".join(parts), footer=footer, style=style, script=of_photos.script()))


def _grid(
    grid: Grid,
    differences: Differences,
    pictures: Pictures,
    find_regions: FindRegions,
    examples: int,
    first: int,
) -> str:
    photos = photo_list(grid, pictures, find_regions, examples, first)
    tables = _tables(grid, differences)
    parts = [
        f"<section>\n<h2>{escaped(grid.split.name)}</h2>\n",
        *([photos, tables] if first else [tables, photos]),
        _figures(grid, pictures),
        *map(_figure, galleries(grid, pictures)),
        *map(_figure, words(grid)),
        "</section>\n",
    ]
    return "".join(parts)


def _tables(grid: Grid, differences: Differences) -> str:
    """What was found in plain words, the table, what its columns mean, and which of them to believe."""
    intervals = grid.intervals()
    main, every = main_columns(grid), all_columns(grid)
    short = "".join(f"<p>{escaped(sentence)}</p>\n" for sentence in in_short(grid, main))
    believe = "".join(f"<p>{escaped(sentence)}</p>\n" for sentence in which_to_believe(grid, main))
    meanings = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(text)}</dd>\n" for name, text in legend(main).items())
    below = "".join(f"<p>{escaped(note)}</p>" for note in (*notes(grid, main), _SMALL, *left_out(grid)))
    everything = f"<summary>All {len(every)} measures</summary>\n{_turned(grid, differences, intervals, every)}"
    parts = [
        f'<h3>How well the captions do</h3>\n<div class="short">{short}</div>\n' if short else "",
        _table(grid, differences, intervals, main),
        f'<div class="short">{believe}</div>\n' if believe else "",
        f'<div class="notes">{below}</div>\n',
        f'<h4>What the columns mean</h4>\n<dl class="meanings">{meanings}</dl>\n' if meanings else "",
        f"<details>{everything}</details>\n",
        _recall(grid),
    ]
    return "".join(parts)


def summary(grid: Grid, differences: Differences) -> str:
    """The main table and how to read it, on its own: for a notebook, which has a style already."""
    main = main_columns(grid)
    below = "".join(f"<p>{escaped(note)}</p>" for note in (*which_to_believe(grid, main), *notes(grid, main), _SMALL))
    table = _table(grid, differences, grid.intervals(), main)
    return f"<style>{_BY_ITSELF}</style>\n<h3>{escaped(grid.split.name)}</h3>\n{table}{below}\n"


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
        f'<tr><th scope="row">{abbreviation(column, descriptions.explained(column))}</th>'
        + "".join(_cell(grid, differences, intervals, name, column) for name in grid.lines)
        + "</tr>\n"
        for column in columns
    )
    return f'<div class="wide"><table>\n<thead><tr><td></td>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def _heading(column: str) -> str:
    measure, by = heading(column)
    return abbreviation(measure, descriptions.explained(column)) + (f"<small>{escaped(by)}</small>" if by else "")


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


# Figures and training


def _figures(grid: Grid, pictures: Pictures) -> str:
    """What words earn and weigh, of some photos, drawn by chance."""
    names = [name for name in speakers(grid) if not grid.rows[name].captions.of_people]
    if not names:
        return ""
    found: list[Figure] = []
    with_references = [photo for photo in grid.measured if grid.split.photos[photo].captions]
    if with_references:
        local = LocalReward.of_references([grid.split.photos[photo].captions for photo in with_references])
        chosen, base = _some(with_references, _EARNING), grid.speaker(grid.against)
        two = list(dict.fromkeys([base if base in names else names[0], names[-1]]))
        photos = [grid.split.photos[photo] for photo in chosen]
        found = [
            word_rewards(local, photos, _captions(grid, two, chosen), pictures, {}),
            weights(local, {}),
        ]
    return "".join(map(_figure, found))


def _figure(figure: Figure) -> str:
    note = f'<p class="notes">{escaped(figure.note)}</p>\n' if figure.note else ""
    return f"<h3>{escaped(figure.title)}</h3>\n{note}{figure.body}"


def _training(trained: Sequence[Run]) -> str:
    """How those models went that are runs with a log."""
    found = "".join(map(_figure, over_steps(trained, {})))
    return f"<section>\n<h2>How they were trained</h2>\n{found}</section>\n" if found else ""


def _captions(grid: Grid, names: Sequence[str], photos: Sequence[int]) -> CaptionsByModel:
    return {name: [grid.rows[name].captions.of_photo[photo][0] for photo in photos] for name in names}


def _some(photos: Sequence[int], most: int) -> list[int]:
    """So many of them, drawn by a seed, in their order."""
    return sorted(np.random.default_rng(_SEED).permutation(photos)[:most].tolist())


_BY_ITSELF = ".sortable td small, .sortable th small { display: block; }"
_STYLE = """
h2::first-letter { text-transform: none; }
td small, th small { display: block; font-size: .72rem; }
section > .wide td, section > .wide th, details td { white-space: nowrap; }
.sortable thead th[tabindex] { cursor: pointer; }
.sortable th[aria-sort=descending]::after { content: "\\25BE"; }
.sortable th[aria-sort=ascending]::after { content: "\\25B4"; }
.better { color: var(--good); } .worse { color: var(--bad); } .other { color: var(--other); }
h4 { font-size: .9rem; font-weight: 600; margin: 1.2rem 0 .4rem; }
.short { margin: .8rem 0; max-width: 60rem; }
.meanings { display: grid; font-size: .85rem; gap: .25rem 1rem; grid-template-columns: max-content minmax(0, 1fr);
  max-width: 60rem; }
.meanings dt { font-weight: 600; overflow-wrap: anywhere; } .meanings dd { color: var(--soft); }
details { margin: 1rem 0; } summary { cursor: pointer; margin-bottom: .6rem; }
@media (max-width: 48rem) {
  .meanings { gap: 0; grid-template-columns: minmax(0, 1fr); } .meanings dd { margin-bottom: .4rem; }
  section > .wide th:first-child, details th:first-child { background: var(--paper); left: 0; position: sticky; } }
"""


SHOWN = 6  # photos of a gallery, as in the paper


def identified_by_one(grid: Grid, one: str, other: str, by: str) -> list[tuple[int, int]]:
    """Photos that a retriever finds first by one speaker's (first) caption and not by the other's, each with the photo
    that the other's picks."""
    firsts = {}
    for name in (one, other):
        found = grid.rows[name].found[by]
        photos, first = np.unique(found.own, return_index=True)
        picked = found.best[first, 0]  # the own photo stands behind those that tie with it
        firsts[name] = dict(zip(photos.tolist(), picked.tolist(), strict=True))
    return [
        (photo, firsts[other][photo])
        for photo in grid.measured
        if firsts[one][photo] == photo and firsts[other][photo] != photo
    ]


def galleries(grid: Grid, pictures: Pictures) -> list[Figure]:
    """Of the row that others are compared with, and each of these; both ways, so that no side is flattered."""
    if not grid.retrievers:
        return []
    by, base = list(grid.retrievers)[-1], grid.speaker(grid.against)  # the last is by custom the judge
    figures = []
    for name in speakers(grid):
        for one, other in permutations((name, base)) if name != base else ():
            found = identified_by_one(grid, one, other, by)
            if found:
                figures.append(_gallery(grid, pictures, found, one, other, by))
    return figures


def _gallery(grid: Grid, pictures: Pictures, found: list[tuple[int, int]], one: str, other: str, by: str) -> Figure:
    drawn = np.random.default_rng(_SEED).permutation(len(found))[:SHOWN]
    cells = []
    for photo, picked in (found[place] for place in sorted(drawn.tolist())):
        right, wrong = (grid.rows[name].captions.of_photo[photo][0] for name in (one, other))
        shown = (
            (photo, one, right, "the photo"),
            (picked, other, wrong, "picked instead"),
        )
        sides = "".join(
            f"<figure>{pictures.show(grid.split.photos[place].file, LONG_SIDE)}<figcaption><small>{what}</small> "
            f'<span dir="auto"><b>{escaped(name)}</b>: {escaped(text)}</span></figcaption></figure>'
            for place, name, text, what in shown
        )
        cells.append(f'<div class="pair">{sides}</div>\n')
    of = f"{len(cells)} of " if len(cells) < len(found) else ""
    note = (
        f"{of}{counted(len(found), 'photo')} that {by} finds by the caption of {one} and not by that of {other}, drawn "
        f"by chance. Left the photo, right the one that {by} picked by the caption of {other}."
    )
    body = f'<div class="pairs">\n{"".join(cells)}</div>\n'
    return Figure(f"Identified by {one} only, not by {other}", note, body)


def words(grid: Grid) -> list[Figure]:
    """The adjectives and nouns of each row's captions, where spaCy is installed and there are rows to compare."""
    if len(grid.lines) < 2:
        return []
    try:
        found = word_use.words_of_grid(grid)
    except UserError:  # it is installed apart
        return []
    figures = []
    for kind, by_model in found.items():
        head = "".join(f'<th scope="col" dir="auto">{escaped(name)}</th>' for name in by_model)
        rows = zip_longest(*by_model.values())
        cells = (
            "".join(f"<td>{escaped(one.word)} <small>{one.times}</small></td>" if one else "<td></td>" for one in row)
            for row in rows
        )
        body = "".join(f"<tr>{row}</tr>\n" for row in cells)
        title = f"{word_use.KINDS[kind].capitalize()} most associated with each row"
        note = "By local mutual information, highest first; below a word, how often it occurs in those captions."
        table = f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'
        figures.append(Figure(title, note, table))
    return figures


_PAIRS = """
.pairs { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); }
.pair { display: grid; gap: .5rem; grid-template-columns: 1fr 1fr; }
.pair .picture { aspect-ratio: 1; background-size: cover; }
"""
