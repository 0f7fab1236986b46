"""Charts as SVG: readable as files of their own and inside a page, in light and in dark.

Here is what stands where; pages/chart.svg draws it.  Colours are variables, so that the page decides on them.  Every
point says what it is when it is pointed at (`<title>`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from tellapart.html import read, render

WIDTH, HEIGHT = 420, 270
COLOURS = 8  # different ones; later series have the same again, with dashed lines
STYLE = "evaluation/pages/chart.css"
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 18, 30, 42
_LETTER = 6.4  # the width of a letter, roughly
_LINE = 16  # the height of a line of text
_MANY = 40  # points beyond which only the line is drawn


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]
    colour: int  # runs keep theirs from chart to chart
    dashed: bool = False

    @property
    def kind(self) -> str:
        """Its classes."""
        return f"c{self.colour % COLOURS}" + (" dashed" if self.dashed or self.colour >= COLOURS else "")


class Mark(NamedTuple):
    """A vertical line at a value of x."""

    x: float
    name: str


class Figure(NamedTuple):
    """A part of a page."""

    title: str
    note: str
    body: Markup


def lines(
    title: str, series: Sequence[Series], *, x: str, words: Sequence[str] = (), marks: Sequence[Mark] = ()
) -> Markup:
    """Curves.  `x` says what goes to the right; where `words` are given they stand there instead, at 0, 1, 2 ...,
    and the curves above zero."""
    points = [point for curve in series for point in curve.points]
    left, right = _axis([h for h, _ in points], exact=True)
    low, high = _axis([*(v for _, v in points), *([0.0] if words else [])], exact=False)
    legend = _legend(series)
    top = _TOP + _LINE * len(legend)
    foot = top + HEIGHT - _TOP - _BOTTOM
    below = min(90, 14 + max(map(len, words)) * 4.6) if words else _BOTTOM

    def across(value: float) -> float:
        return _LEFT + (value - left) / (right - left) * (WIDTH - _LEFT - _RIGHT)

    def down(value: float) -> float:
        return foot - (value - low) / (high - low) * (foot - top)

    def place(value: float) -> str:
        return words[int(value)] if words else f"{x} {_number(value)}"

    return render(
        "evaluation/pages/chart.svg",
        title=title,
        x=x,
        width=WIDTH,
        height=round(foot + below),
        left=_LEFT,
        right=WIDTH - _RIGHT,
        top=top,
        foot=foot,
        legend=[(_TOP + 4 + _LINE * row, entries) for row, entries in enumerate(legend)],
        rows=[(down(value), _number(value)) for value in _ticks(low, high)],
        columns=[] if words else [(across(value), _number(value)) for value in _ticks(left, right)],
        words=[(across(n), word) for n, word in enumerate(words)],
        marks=[
            (across(min(max(mark.x, left), right)), top + 12 + _LINE * row, mark.name) for row, mark in enumerate(marks)
        ],
        curves=[
            (
                curve,
                2.6 if len(curve.points) <= _MANY else 0.01,
                [(across(h), down(v), f"{curve.name}, {place(h)}: {_number(v)}") for h, v in curve.points],
            )
            for curve in series
        ],
    )


def standalone(chart: str) -> bytes:
    """A chart as a file."""
    head, tail = chart.split(">", 1)
    return f"{head}><style>{read(STYLE)}</style>{tail}\n".encode()


def side_by_side(charts: Mapping[str, Markup], drawn: dict[str, Markup]) -> Markup:
    """Charts in rows; `drawn` keeps them by name, for those who want files of them."""
    drawn |= charts
    figures = Markup("").join(Markup("<figure>{}</figure>\n").format(chart) for chart in charts.values())
    return Markup('<div class="charts">\n{}</div>\n').format(figures) if charts else Markup("")


def dot(number: int) -> Markup:
    """The colour of a run."""
    circle = f'<circle class="c{number % COLOURS}" cx="5" cy="5" r="4"/>'
    return Markup(f'<svg class="chart dot-of" viewBox="0 0 10 10">{circle}</svg>')


def _legend(series: Sequence[Series]) -> list[list[tuple[float, Series]]]:
    """In each row, series with the places where their names begin."""
    rows: list[list[tuple[float, Series]]] = [[]]
    h = 12.0
    for curve in series:
        wide = 34 + _LETTER * len(curve.name)
        if rows[-1] and h + wide > WIDTH:
            rows.append([])
            h = 12.0
        rows[-1].append((h, curve))
        h += wide
    return rows


def _axis(values: Sequence[float], *, exact: bool) -> tuple[float, float]:
    """From where to where an axis goes: around the values, and at least a little."""
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    if exact:
        return low, high
    step = _step(low, high)
    return math.floor(low / step) * step, math.ceil(high / step) * step


def _step(low: float, high: float) -> float:
    """1, 2 or 5 times a power of ten, for about five steps."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def _ticks(low: float, high: float) -> list[float]:
    step = _step(low, high)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    """Up to four digits that count, without an exponent."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2g}"
