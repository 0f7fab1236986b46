"""One page of an evaluation: the grids with intervals and marks, then photos with every model's caption beside them.

A page for people who come to see captions opens with photos, those first that show best what a model adds.  Below are
photos that only one of two rows identifies (Fig. 2 of DiscriTune), and the words of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from capscore import files
from capscore.errors import UserError
from capscore.printable import counted
from tellapart.data.media.thumbnails import LONG_SIDE
from tellapart.evaluation import cards, plots, table
from tellapart.evaluation.attention import Picture
from tellapart.evaluation.attention import section as attended
from tellapart.evaluation.cards import FindRegions, Pictures, no_regions, photo_list, shown_rows
from tellapart.evaluation.compare import Run, over_steps
from tellapart.evaluation.grid import Differences, Grid, first_of_each
from tellapart.evaluation.local_reward import LocalReward, weights, word_rewards
from tellapart.evaluation.plots import Figure, Series
from tellapart.html import render, render_page
from tellapart.metrics import descriptions
from tellapart.metrics.retrieval import recalls

EXAMPLES = 24
IDENTIFIED = 6  # photos of a gallery, as in the paper
_EARNING = 200  # photos among which those are whose words' rewards are shown
_FIRST = (1, 2, 5, 10, 20, 50, 100)
_SEED = 0
_SMALL = "Below a figure: its 95 % interval; \N{GREEK CAPITAL LETTER DELTA}, the difference, with the same."
_STYLES = (plots.STYLE, cards.TABLES, "evaluation/pages/report.css", cards.STYLE)


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
        {
            "name": grid.split.name,
            "photos": photo_list(grid, pictures, find_regions, examples, first),
            "tables": _tables(grid, of_grid),
            "figures": [*_figures(grid, pictures), *galleries(grid, pictures), *words(grid)],
        }
        for grid, of_grid in zip(grids, differences, strict=True)
    ]
    models = {name for grid in grids for name in grid.lines}
    page = render_page(
        "evaluation/pages/report.html",
        title=title,
        subtitle=subtitle or f"{counted(len(models), 'model')} on {counted(len(grids), 'data set')}",
        footer=footer,
        styles=_STYLES,
        more_style=pictures.style,
        scripts=[cards.SCRIPT],
        grids=parts,
        photos_first=first > 0,
        attention=attended(attention),
        training=over_steps(trained, {}),
    )
    files.replace(out, page)


class Column(NamedTuple):
    """A score, with its cell in each row; none where a row does not have it."""

    name: str
    measure: str
    by: str
    meaning: str
    cells: list[Cell | None]


class Cell(NamedTuple):
    value: float
    shown: str
    interval: str
    difference: str  # and its interval; empty where there is none
    difference_interval: str
    verdict: str


def _columns(grid: Grid, differences: Differences, names: Sequence[str]) -> list[Column]:
    intervals = grid.intervals()

    def cell(row: str, column: str) -> Cell | None:
        def ends(low: float, high: float) -> str:
            return f"{table.shown(column, low)} to {table.shown(column, high)}"

        value = grid.figures[row].scores.get(column)
        if value is None:
            return None
        difference = differences.get(row, {}).get(column)
        change = change_ends = ""
        if difference is not None:
            change = f"{'+' if difference.value > 0 else ''}{table.shown(column, difference.value)}"
            change_ends = ends(difference.low, difference.high)
        verdict = table.verdict(column, difference)
        return Cell(value, table.shown(column, value), ends(*intervals[row][column]), change, change_ends, verdict)

    return [
        Column(name, *table.heading(name), descriptions.explained(name), [cell(row, name) for row in grid.lines])
        for name in names
    ]


def _tables(grid: Grid, differences: Differences) -> Markup:
    """The results in plain words, the table, the meaning of its columns, and which of them to believe."""
    main, every = table.main_columns(grid), table.all_columns(grid)
    return render(
        "evaluation/pages/tables.html",
        rows=grid.lines,
        columns=_columns(grid, differences, main),
        every=_columns(grid, differences, every),
        marks=table.MARKS,
        short=table.in_short(grid, main),
        believe=table.which_to_believe(grid, main),
        notes=[*table.notes(grid, main), _SMALL, *table.left_out(grid)],
        meanings=table.legend(main),
        recall=_recall(grid),
    )


def summary(grid: Grid, differences: Differences) -> str:
    """The main table and how to read it, on its own: for a notebook, which has a style already."""
    main = table.main_columns(grid)
    return render(
        "evaluation/pages/summary.html",
        name=grid.split.name,
        rows=grid.lines,
        columns=_columns(grid, differences, main),
        marks=table.MARKS,
        notes=[*table.which_to_believe(grid, main), *table.notes(grid, main), _SMALL],
    )


def _recall(grid: Grid) -> Markup:
    """For each retriever, how many photos are among its first K."""
    count = len(grid.split.photos)
    first = [k for k in _FIRST if k < count]
    charts = {}
    for by in grid.retrievers if first else ():
        series = []
        for colour, line in enumerate(grid.lines):
            runs = [grid.rows[name].retrieved[by] for name in grid.runs.get(line, [line])]
            scores = [recalls(run.ranks, run.targets, count, "R", by, at=first).corpus().values() for run in runs]
            means = (100 * sum(values) / len(runs) for values in zip(*scores, strict=True))
            series.append(Series(line, list(enumerate(means)), colour))
        charts[by] = plots.lines(f"% of photos among the first K by {by}", series, x="K", words=list(map(str, first)))
    return plots.side_by_side(charts, {})


def _figures(grid: Grid, pictures: Pictures) -> list[Figure]:
    """Rewards and weights of words, of some photos drawn by chance."""
    names = [name for name in shown_rows(grid) if not grid.rows[name].captions.of_people]
    with_references = [photo for photo in grid.measured if grid.split.photos[photo].captions]
    if not names or not with_references:
        return []
    local = LocalReward.of_references([grid.split.photos[photo].captions for photo in with_references])
    chosen = sorted(np.random.default_rng(_SEED).permutation(with_references)[:_EARNING].tolist())
    base = grid.row_of(grid.against)
    captions = {
        name: [grid.rows[name].captions.first(photo) for photo in chosen]
        for name in dict.fromkeys([base if base in names else names[0], names[-1]])
    }
    photos = [grid.split.photos[photo] for photo in chosen]
    return [word_rewards(local, photos, captions, pictures, {}), weights(local, {})]


# What tells caption files apart


def identified_by_one(grid: Grid, name: str, other: str, by: str) -> list[tuple[int, int]]:
    """Photos that a retriever finds first by one row's (first) caption and not by the other's, each with the photo
    that the other's picks."""
    retrieved = (grid.rows[row].retrieved[by] for row in (name, other))  # a photo stands behind those that tie with it
    picked, instead = (first_of_each(of_row.targets, of_row.best[:, 0]) for of_row in retrieved)
    return [(photo, instead[photo]) for photo in grid.measured if picked[photo] == photo != instead[photo]]


def galleries(grid: Grid, pictures: Pictures) -> list[Figure]:
    """Galleries of the row that others are compared with and each of these; both ways, so that no side is flattered."""

    def side(photo: int, row: str, captioned: int, what: str) -> tuple[Markup, str, str, str]:
        picture = pictures.show(grid.split.photos[photo].file, LONG_SIDE)
        return picture, what, row, grid.rows[row].captions.first(captioned)

    if not grid.retrievers:
        return []
    by, base = list(grid.retrievers)[-1], grid.row_of(grid.against)  # the last is by custom the judge
    pairs = [pair for name in shown_rows(grid) if name != base for pair in permutations((name, base))]
    figures = []
    for name, other in pairs:
        if not (identified := identified_by_one(grid, name, other, by)):
            continue
        drawn = sorted(np.random.default_rng(_SEED).permutation(len(identified))[:IDENTIFIED].tolist())

        pairs_shown = [
            (side(photo, name, photo, "the photo"), side(picked, other, photo, "picked instead"))
            for photo, picked in (identified[place] for place in drawn)
        ]
        of = f"{len(drawn)} of " if len(drawn) < len(identified) else ""
        note = (
            f"{of}{counted(len(identified), 'photo')} that {by} finds by the caption of {name} and not by that of "
            f"{other}, drawn by chance. Left the photo, right the one that {by} picked by the caption of {other}."
        )
        body = render("evaluation/pages/gallery.html", pairs=pairs_shown)
        figures.append(Figure(f"Identified by {name} only, not by {other}", note, body))
    return figures


def words(grid: Grid) -> list[Figure]:
    """The adjectives and nouns of each row's captions, where spaCy is installed and there are rows to compare."""
    if len(grid.lines) < 2:
        return []
    try:
        associations = table.words_of_grid(grid)
    except UserError:  # it is installed apart
        return []
    note = "By local mutual information, highest first; below a word, how often it occurs in those captions."
    return [
        Figure(
            f"{table.KINDS[kind].capitalize()} most associated with each row",
            note,
            render("evaluation/pages/words.html", rows=list(by_model), lines=list(zip_longest(*by_model.values()))),
        )
        for kind, by_model in associations.items()
    ]
