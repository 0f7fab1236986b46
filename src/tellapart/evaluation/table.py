"""A grid for a person at a terminal: rows are models, figures times 100, marks where a row differs from another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tellapart.evaluation.run import Differences, Grid
from tellapart.metrics import retrieval, scoring
from tellapart.metrics.bootstrap import Difference
from tellapart.printable import printable

SIGNIFICANT = 0.05
MARKS = {"better": "+", "worse": "-", "other": "*"}
_TEXT = ("Rep", "BadEnd", "Prec", "CIDEr-D", "UniCap", "AvgLen")
_LESS_IS_BETTER = ("Rep", "BadEnd", "Stutter", "Odd", "CIDErBtw", "mBLEU-1", "mBLEU-2", "mBLEU-3", "mBLEU-4")
_NEITHER = ("AvgLen",)


def main_columns(grid: Grid) -> list[str]:
    """What every table of distinctiveness has side by side: over-fitting to one retriever shows beside the others."""
    there = all_columns(grid)
    names = [(name, retrieval.parse(name)) for name in there]
    firsts = [name for name, parsed in names if parsed and parsed.k == 1]
    return [*firsts, *(name for name in _TEXT if name in there)]


def all_columns(grid: Grid) -> list[str]:
    """Every score that some row has: by retrieval first."""
    there = list(dict.fromkeys(name for scores in grid.scores.values() for name in scores))
    return sorted(there, key=lambda name: retrieval.parse(name) is None)


def verdict(name: str, difference: Difference | None) -> Literal["", "better", "worse", "other"]:
    """What a difference says, if it says something."""
    if difference is None or difference.p >= SIGNIFICANT or difference.value == 0:
        return ""
    if name in _NEITHER:
        return "other"
    return "better" if (difference.value > 0) != (name in _LESS_IS_BETTER) else "worse"


def shown(name: str, value: float) -> str:
    """A figure as people read it."""
    parsed = retrieval.parse(name)
    if parsed and parsed.kind.startswith("GEG"):
        return f"{100 * value:.2f}"
    if parsed or scoring.in_percent(name):
        return f"{100 * value:.1f}"
    return f"{value:.0f}" if name == "Vocabulary" else f"{value:.1f}"


def heading(name: str) -> tuple[str, str]:
    """A score's name in two lines: the measure, and by whom."""
    parsed = retrieval.parse(name)
    if parsed is None or not parsed.retriever:
        return printable(name), ""
    return printable(name.removesuffix(f"[{parsed.retriever}]")), printable(parsed.retriever)


def table(grid: Grid, differences: Differences, *, columns: Sequence[str], width: int = 100) -> str:
    """The columns below each other in as many parts as the width asks for."""
    names = list(map(printable, grid.lines))
    first = max(map(len, names))
    cells = {column: list(_cells(grid, differences, column)) for column in columns}
    parts: list[list[str]] = [[]]
    left = width - first
    for column in columns:
        wide = _wide(column, cells[column])
        if parts[-1] and wide > left:
            parts.append([])
            left = width - first
        parts[-1].append(column)
        left -= wide
    return "\n\n".join(_part(names, first, part, cells) for part in parts)


def _wide(column: str, cells: Sequence[str]) -> int:
    return 2 + max(*(len(line) + 1 for line in heading(column)), *map(len, cells))


def _part(names: list[str], first: int, columns: list[str], cells: dict[str, list[str]]) -> str:
    """Figures end a place before their column does: there stands the mark, and nothing in the heading."""
    columns_of_text = [[f"{line} " for line in heading(column)] + cells[column] for column in columns]
    lines = []
    for row, name in enumerate(["", "", *names]):
        texts = zip(columns, columns_of_text, strict=True)
        figures = "".join(text[row].rjust(_wide(column, cells[column])) for column, text in texts)
        lines.append(f"{name:<{first}}{figures}".rstrip())
    return "\n".join(line for line in lines if line)


def _cells(grid: Grid, differences: Differences, column: str) -> Iterator[str]:
    """A figure and a place for the mark."""
    for name in grid.lines:
        value = grid.figures[name].scores.get(column)
        mark = verdict(column, differences.get(name, {}).get(column))
        yield "   " if value is None else shown(column, value) + (MARKS[mark] if mark else " ")


def notes(grid: Grid, columns: Sequence[str]) -> list[str]:
    """What one has to know to read the table."""
    every = len(grid.measured) == len(grid.split.photos)
    photos = f"{len(grid.split.photos)} photos" if every else f"{len(grid.measured)} of {len(grid.split.photos)} photos"
    lines = [f"{grid.split.name}: {photos}; figures times 100, but for lengths and counts."]
    if grid.lines != [grid.against]:
        lines.append(
            f"{MARKS['better']} better, {MARKS['worse']} worse, {MARKS['other']} other than {grid.against}: "
            f"paired bootstrap of the photos, p < {SIGNIFICANT:g}, each figure by itself."
        )
    lines += [f"{name}: the mean of {', '.join(runs)}." for name, runs in grid.runs.items()]
    if any(name.startswith("TT ") for name in columns):
        lines.append("TT is independent only of captions that no MiniLM-based retriever rewarded or chose.")
    if any(row.said.of_people for row in grid.rows.values()):
        lines.append(
            "human: in text the first reference against the others, so with one reference fewer than the models;"
            " in retrieval all."
        )
    return lines


def left_out(grid: Grid) -> list[str]:
    """A sentence for each reason why measures could not be taken."""
    names: dict[str, list[str]] = {}
    for name, why in grid.skipped.items():
        names.setdefault(why, []).append(name)
    return [f"{', '.join(those)} {'is' if len(those) == 1 else 'are'} left out: {why}" for why, those in names.items()]
