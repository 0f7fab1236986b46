"""Charts as SVG: readable as files of their own and inside a page, in light and in dark.

A chart is a text that begins with `<svg`; colours are variables, so that the page decides on them.  Every point
says what it is when it is pointed at (`<title>`).  Texts are escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tellapart.html import escaped

WIDTH, HEIGHT = 420, 270
COLOURS = 8  # different ones; later series have the same again, with dashed lines
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 18, 30, 42
_LETTER = 6.4  # the width of a letter, roughly
_LINE = 16  # the height of a line of text
_NAMESPACE = "http://www.w3.org/2000/svg"
_MANY = 40  # points beyond which only the line is drawn


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]
    colour: int  # runs keep theirs from chart to chart
    dashed: bool = False


@dataclass(frozen=True)
class Mark:
    """A vertical line at a value of x."""

    x: float
    name: str


def lines(
    title: str, series: Sequence[Series], *, x: str, words: Sequence[str] = (), marks: Sequence[Mark] = ()
) -> str:
    """Curves.  `x` says what goes to the right; where `words` are given they stand there instead, at 0, 1, 2 ...,
    and the curves above zero."""
    frame = _Frame([point for one in series for point in one.points], series, words)
    body = [frame.axes(x), *(frame.mark(mark, row) for row, mark in enumerate(marks))]
    for one in series:
        at = [frame.at(*point) for point in one.points]
        body.append(f'<polyline class="{_kind(one)}" points="{" ".join(f"{h:.1f},{v:.1f}" for h, v in at)}"/>')
        radius = 2.6 if len(at) <= _MANY else 0.01
        for (h, v), (value, height) in zip(at, one.points, strict=True):
            place = words[int(value)] if words else f"{x} {_number(value)}"
            body.append(_point(_kind(one), h, v, radius, f"{one.name}, {place}: {_number(height)}"))
    return frame.svg(title, body)


def standalone(chart: str) -> bytes:
    """A chart as a file."""
    head, tail = chart.split(">", 1)
    return f"{head}><style>{STYLE}</style>{tail}\n".encode()


def _point(kind: str, h: float, v: float, radius: float, text: str) -> str:
    return f'<circle class="{kind}" cx="{h:.1f}" cy="{v:.1f}" r="{radius}"><title>{escaped(text)}</title></circle>'


class _Frame:
    """From values to places on the paper."""

    def __init__(
        self,
        points: Sequence[tuple[float, float]],
        series: Sequence[Series],
        words: Sequence[str],
    ):
        self._series, self._words = series, words
        self._x = _scale([x for x, _ in points], exact=True)
        self._y = _scale([*(y for _, y in points), *([0.0] if words else [])], exact=False)
        self._legend = _rows(series)
        self._top = _TOP + _LINE * len(self._legend)
        below = min(90, 14 + max(map(len, words)) * 4.6) if words else _BOTTOM
        self._left = _LEFT
        self._foot = self._top + HEIGHT - _TOP - _BOTTOM
        self.height = self._foot + below

    def at(self, x: float, y: float) -> tuple[float, float]:
        h = self._left + (x - self._x[0]) / (self._x[1] - self._x[0]) * (WIDTH - self._left - _RIGHT)
        v = self._foot - (y - self._y[0]) / (self._y[1] - self._y[0]) * (self._foot - self._top)
        return h, v

    def axes(self, x: str) -> str:
        right, drawn = WIDTH - _RIGHT, []
        for value in _ticks(*self._y):
            _, v = self.at(0, value)
            drawn.append(f'<line class="grid" x1="{self._left}" x2="{right}" y1="{v:.1f}" y2="{v:.1f}"/>')
            drawn.append(
                f'<text class="tick" x="{self._left - 6}" y="{v + 4:.1f}" text-anchor="end">{_number(value)}</text>'
            )
        if self._words:
            for place, word in enumerate(self._words):
                h, _ = self.at(place, 0)
                turned = f'transform="translate({h + 4:.1f} {self._foot + 12:.1f}) rotate(-45)"'
                drawn.append(f'<text class="tick" text-anchor="end" {turned}>{escaped(word)}</text>')
            return "".join(drawn)
        for value in _ticks(*self._x):
            h, _ = self.at(value, 0)
            drawn.append(
                f'<text class="tick" x="{h:.1f}" y="{self._foot + 16}" text-anchor="middle">{_number(value)}</text>'
            )
        middle = (self._left + right) / 2
        drawn.append(f'<text class="tick" x="{middle}" y="{self._foot + 33}" text-anchor="middle">{escaped(x)}</text>')
        return "".join(drawn)

    def mark(self, mark: Mark, row: int) -> str:
        h, _ = self.at(min(max(mark.x, self._x[0]), self._x[1]), 0)
        line = f'<line class="mark" x1="{h:.1f}" x2="{h:.1f}" y1="{self._top}" y2="{self._foot}"/>'
        return (
            f'{line}<text class="tick" x="{h + 4:.1f}" y="{self._top + 12 + _LINE * row}">{escaped(mark.name)}</text>'
        )

    def svg(self, title: str, body: Sequence[str]) -> str:
        parts = [
            f'<svg class="chart" xmlns="{_NAMESPACE}" viewBox="0 0 {WIDTH} {self.height:.0f}" role="img">',
            f'<rect class="paper" width="{WIDTH}" height="{self.height:.0f}"/>',
            f'<text class="title" x="{self._left}" y="18">{escaped(title)}</text>',
        ]
        for row, entries in enumerate(self._legend):
            y = _TOP + 4 + _LINE * row
            for h, one in entries:
                parts.append(f'<line class="{_kind(one)}" x1="{h}" x2="{h + 14}" y1="{y - 4}" y2="{y - 4}"/>')
                parts.append(f'<text class="tick" x="{h + 19}" y="{y}">{escaped(one.name)}</text>')
        return "".join([*parts, *body, "</svg>"])


def _rows(series: Sequence[Series]) -> list[list[tuple[float, Series]]]:
    """The legend: in each row, names with the places where they begin."""
    rows: list[list[tuple[float, Series]]] = [[]]
    h = 12.0
    for one in series:
        wide = 34 + _LETTER * len(one.name)
        if rows[-1] and h + wide > WIDTH:
            rows.append([])
            h = 12.0
        rows[-1].append((h, one))
        h += wide
    return rows


def _kind(one: Series) -> str:
    return f"c{one.colour % COLOURS}" + (" dashed" if one.dashed or one.colour >= COLOURS else "")


def _scale(values: Sequence[float], *, exact: bool) -> tuple[float, float]:
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
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    """Up to four digits that count, without an exponent."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2g}"


_LIGHT = ("#2563b8", "#d2500c", "#23834f", "#9a35b0", "#a67708", "#0b8290", "#c02459", "#5b6670")
_DARK = ("#79aef2", "#f59a5f", "#6fcf9b", "#d694e6", "#e0bb55", "#5cc9d6", "#f287ad", "#aab5be")


def _colours(values: Sequence[str]) -> str:
    return " ".join(f"--c{number}: {value};" for number, value in enumerate(values))


STYLE = (
    f".chart {{ {_colours(_LIGHT)} --card: #fff; --ink: #23282d; --soft: #667078; --line: #e3e1db;"
    " font: 12px system-ui, sans-serif; }\n"
    f"@media (prefers-color-scheme: dark) {{ .chart {{ {_colours(_DARK)} --card: #1f2428; --ink: #e4e7e9;"
    " --soft: #98a2aa; --line: #2e353a; } }\n"
    ".chart text { fill: var(--ink); } .chart .title { font-size: 13px; font-weight: 600; }\n"
    ".chart .tick { fill: var(--soft); font-size: 11px; paint-order: stroke; stroke: var(--card);"
    " stroke-width: 3px; }\n.chart .paper { fill: var(--card); }\n"
    ".chart .grid { stroke: var(--line); } .chart .mark { stroke: var(--soft); stroke-dasharray: 2 3; }\n"
    ".chart polyline { fill: none; } .chart polyline, .chart line[class^=c] { stroke-width: 1.8; }\n"
    ".chart .dashed { stroke-dasharray: 5 4; } .chart .dot { fill-opacity: .65; stroke: none; }\n"
    + "".join(
        f".chart .c{n} {{ stroke: var(--c{n}); }} .chart circle.c{n} {{ fill: var(--c{n}); }}\n" for n in range(COLOURS)
    )
)


# Figures of pages


class Figure(NamedTuple):
    title: str
    note: str  # text
    body: str  # HTML


def side_by_side(charts: Mapping[str, str], drawn: dict[str, str]) -> str:
    """Charts in rows; `drawn` keeps them by name, for those who want files of them."""
    drawn |= charts
    inside = "".join(f"<figure>{chart}</figure>\n" for chart in charts.values())
    return f'<div class="charts">\n{inside}</div>\n' if inside else ""


def dot(speaker: int) -> str:
    """A speaker's colour."""
    circle = f'<circle class="c{speaker % COLOURS}" cx="5" cy="5" r="4"/>'
    return f'<svg class="chart dot-of" viewBox="0 0 10 10">{circle}</svg>'


FIGURES_STYLE = """
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.charts figure { min-width: 0; }
.chart { display: block; width: 100%; }
.dot-of { display: inline-block; height: .65em; margin-right: .4em; width: .65em; }
article .charts figure { border: 0; }
article .charts { grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
section > .charts:has(> figure:only-child) { grid-template-columns: minmax(0, 40rem); }
"""
