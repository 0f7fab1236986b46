"""How the toy world looks: every object is a list of painted polygons, every place a small painter of textures.

Objects are data in their own box, x and y from -1 to 1 with y pointing down, so one function draws them all at any
size and tilt.  Everything is drawn four times too large and averaged down, which leaves clean edges.  Objects get a
dark outline and a shadow: a white fish in the snow must still be a fish.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi, sin

import numpy as np
from PIL import Image, ImageDraw

RGB = tuple[int, int, int]
Point = tuple[float, float]

SUPERSAMPLE = 4
INK: RGB = (28, 26, 32)
GLASS, WOOD, PAPER = "#cfe8f5", "#7a4a25", "#fbfbf6"

COLOURS: dict[str, RGB] = {
    "red": (222, 36, 36),
    "blue": (32, 70, 214),
    "green": (24, 200, 72),
    "yellow": (255, 222, 24),
    "black": (44, 42, 48),
    "white": (250, 250, 250),
}


@dataclass(frozen=True)
class Part:
    """One painted piece: a closed outline, or an open line when `stroke` gives its width."""

    points: tuple[Point, ...]
    paint: str = "main"  # "main", "dark" or "light" follow the object's colour; "ink" and "#rrggbb" do not
    stroke: float = 0.0


def _shape(paint: str, *xy: float) -> Part:
    return Part(tuple(zip(xy[::2], xy[1::2], strict=True)), paint)


def _line(paint: str, width: float, *xy: float) -> Part:
    return Part(tuple(zip(xy[::2], xy[1::2], strict=True)), paint, width)


def _oval(paint: str, x: float, y: float, rx: float, ry: float, start: float = 0, end: float = 360) -> Part:
    """An ellipse, or the part of it from `start` to `end` degrees (clockwise from the right, as the screen sees it)."""
    angles = np.radians(np.linspace(start, end, 33))
    return Part(tuple((x + rx * cos(a), y + ry * sin(a)) for a in angles), paint)


def _arc(paint: str, width: float, x: float, y: float, rx: float, ry: float, start: float, end: float) -> Part:
    return Part(_oval(paint, x, y, rx, ry, start, end).points, paint, width)


def _wheel(x: float) -> tuple[Part, Part]:
    return _oval("#26262a", x, 0.42, 0.27, 0.27), _oval("#c9c9cf", x, 0.42, 0.12, 0.12)


def _star_points() -> Part:
    tips = [(1.0 if i % 2 == 0 else 0.42, -pi / 2 + i * pi / 5) for i in range(10)]
    return Part(tuple((r * cos(a), 0.08 + r * sin(a)) for r, a in tips))


OBJECTS: dict[str, tuple[Part, ...]] = {
    "ball": (
        _oval("main", 0, 0, 0.92, 0.92),
        _arc("dark", 0.07, 0, -1.15, 1.0, 1.0, 42, 138),
        _arc("dark", 0.07, 0, 1.15, 1.0, 1.0, 222, 318),
        _oval("light", -0.36, -0.4, 0.2, 0.14),
    ),
    "house": (
        _shape("dark", 0.38, -0.95, 0.62, -0.95, 0.62, -0.3, 0.38, -0.3),
        _shape("main", -0.76, -0.12, 0.76, -0.12, 0.76, 0.95, -0.76, 0.95),
        _shape("dark", -1, -0.08, 0, -0.98, 1, -0.08),
        _shape(WOOD, -0.18, 0.3, 0.18, 0.3, 0.18, 0.95, -0.18, 0.95),
        _shape(GLASS, -0.6, 0.12, -0.3, 0.12, -0.3, 0.46, -0.6, 0.46),
        _shape(GLASS, 0.3, 0.12, 0.6, 0.12, 0.6, 0.46, 0.3, 0.46),
    ),
    "tree": (
        _shape(WOOD, -0.15, 0.1, 0.15, 0.1, 0.2, 1, -0.2, 1),
        _oval("main", -0.45, -0.02, 0.42, 0.38),
        _oval("main", 0.45, -0.02, 0.42, 0.38),
        _oval("main", 0, -0.48, 0.55, 0.52),
        _oval("light", -0.18, -0.66, 0.15, 0.1),
        _oval("dark", 0.22, -0.3, 0.13, 0.09),
        _oval("dark", -0.45, 0.08, 0.13, 0.09),
        _oval("dark", 0.5, 0.06, 0.13, 0.09),
    ),
    "car": (
        _shape("main", -0.62, -0.1, -0.36, -0.6, 0.34, -0.6, 0.66, -0.1),
        _shape(GLASS, -0.46, -0.12, -0.28, -0.48, -0.03, -0.48, -0.03, -0.12),
        _shape(GLASS, 0.07, -0.12, 0.07, -0.48, 0.28, -0.48, 0.48, -0.12),
        _shape("main", -1, 0, -0.92, -0.12, 0.8, -0.12, 0.98, 0.04, 1, 0.42, -1, 0.42),
        _line("dark", 0.05, 0.02, -0.08, 0.02, 0.36),
        _oval("#ffe9a0", 0.9, 0.1, 0.09, 0.08),
        *_wheel(-0.55),
        *_wheel(0.55),
    ),
    "boat": (
        _line(WOOD, 0.1, 0, -0.98, 0, 0.4),
        _shape("light", -0.1, -0.85, -0.1, 0.2, -0.82, 0.2),
        _shape("light", 0.1, -0.95, 0.1, 0.2, 0.74, 0.2),
        _shape("main", -1, 0.36, 1, 0.36, 0.66, 0.86, -0.62, 0.86),
        _line("dark", 0.07, -0.86, 0.52, 0.86, 0.52),
    ),
    "star": (_star_points(),),
    "fish": (
        _shape("dark", 0.4, 0, 1, -0.66, 0.84, 0, 1, 0.66),
        _shape("dark", -0.4, -0.44, 0.06, -0.96, 0.36, -0.34),
        _shape("dark", -0.3, 0.44, 0.02, 0.86, 0.24, 0.4),
        _oval("main", -0.24, 0, 0.76, 0.58),
        _arc("dark", 0.07, -0.72, 0, 0.36, 0.5, -62, 62),
        *(_arc("dark", 0.07, x, 0.04, 0.14, 0.3, -70, 70) for x in (-0.2, 0.06)),
        _oval(PAPER, -0.66, -0.14, 0.12, 0.12),
        _oval("ink", -0.68, -0.14, 0.055, 0.055),
    ),
    "cup": (
        _arc("ink", 0.3, 0.5, 0.05, 0.4, 0.42, -90, 90),
        _arc("main", 0.17, 0.5, 0.05, 0.4, 0.42, -90, 90),
        _shape("main", -0.75, -0.66, 0.5, -0.66, 0.42, 0.86, -0.67, 0.86),
        _oval("light", -0.125, -0.66, 0.625, 0.18),
        _oval("#5b3418", -0.125, -0.64, 0.5, 0.11),
        _line("light", 0.1, -0.55, -0.25, -0.51, 0.5),
    ),
    "cat": (
        _arc("ink", 0.26, 0.52, 0.46, 0.4, 0.44, -60, 90),
        _arc("main", 0.15, 0.52, 0.46, 0.4, 0.44, -60, 90),
        _oval("main", 0, 0.5, 0.56, 0.5),
        _shape("main", -0.56, -0.98, -0.6, -0.2, -0.06, -0.56),
        _shape("main", 0.56, -0.98, 0.6, -0.2, 0.06, -0.56),
        _oval("main", 0, -0.28, 0.62, 0.48),
        _oval("#b9e36a", -0.24, -0.34, 0.13, 0.14),
        _oval("#b9e36a", 0.24, -0.34, 0.13, 0.14),
        _oval("ink", -0.24, -0.34, 0.045, 0.12),
        _oval("ink", 0.24, -0.34, 0.045, 0.12),
        _shape("#f29aa8", -0.09, -0.14, 0.09, -0.14, 0, -0.03),
        *(_line("contrast", 0.04, s * 0.2, -0.04 + d, s * 0.85, -0.06 + 3 * d) for s in (-1, 1) for d in (-0.05, 0.05)),
        _oval("light", -0.2, 0.9, 0.2, 0.1),
        _oval("light", 0.2, 0.9, 0.2, 0.1),
    ),
    "kite": (
        _line("ink", 0.05, 0.0, 0.4, 0.14, 0.6, -0.06, 0.76, 0.14, 0.98),
        _shape("main", 0, -1, 0.8, -0.32, 0, 0.48, -0.8, -0.32),
        _shape("light", 0, -1, 0.8, -0.32, 0, -0.32),
        _shape("light", 0, -0.32, 0, 0.48, -0.8, -0.32),
        _shape("main", 0.13, 0.62, -0.1, 0.5, -0.1, 0.72, 0.36, 0.5, 0.36, 0.74),
        _shape("main", 0.06, 0.88, -0.18, 0.78, -0.18, 1.0, 0.3, 0.76, 0.3, 1.0),
    ),
    # The smaller objects: plain outlines, because they are about a quarter of the picture wide.
    "box": (
        _shape("main", -0.9, -0.4, 0.5, -0.4, 0.5, 0.95, -0.9, 0.95),
        _shape("light", -0.9, -0.4, -0.5, -0.85, 0.9, -0.85, 0.5, -0.4),
        _shape("dark", 0.5, -0.4, 0.9, -0.85, 0.9, 0.5, 0.5, 0.95),
    ),
    "bottle": (
        _shape("#8a6a4a", -0.24, -1, 0.24, -1, 0.24, -0.8, -0.24, -0.8),
        _shape("main", -0.2, -0.8, 0.2, -0.8, 0.2, -0.45, 0.6, -0.15, 0.6, 1, -0.6, 1, -0.6, -0.15, -0.2, -0.45),
        _line("light", 0.14, -0.36, 0.05, -0.36, 0.75),
    ),
    "heart": (
        Part(
            tuple(
                (0.98 * sin(t) ** 3, -0.06 * (13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t)))
                for t in np.linspace(0, 2 * pi, 48)
            )
        ),
    ),
    "mushroom": (
        _shape("#f3e6cf", -0.25, 0, 0.25, 0, 0.34, 1, -0.34, 1),
        _oval("main", 0, 0.12, 0.98, 1.0, 180, 360),
        _oval(PAPER, -0.42, -0.25, 0.15, 0.14),
        _oval(PAPER, 0.08, -0.6, 0.15, 0.12),
        _oval(PAPER, 0.5, -0.2, 0.15, 0.14),
    ),
    "flag": (
        _line("ink", 0.2, -0.8, -1, -0.8, 1),
        _shape("main", -0.76, -0.95, 0.98, -0.95, 0.62, -0.45, 0.98, 0.1, -0.76, 0.1),
    ),
}


@dataclass
class Brush:
    """Draws in fractions of the picture's side, so that painters need not know its size."""

    draw: ImageDraw.ImageDraw
    side: int

    def shape(self, points: list[Point], fill: RGB | tuple[int, int, int, int], outline: float = 0.0) -> None:
        self.draw.polygon([(x * self.side, y * self.side) for x, y in points], fill=fill)
        if outline:  # a closed line, because the polygon's own wide outline costs a mask of the whole picture
            self.line([*points, *points[:2]], INK, outline)

    def line(self, points: list[Point], fill: RGB, width: float) -> None:
        cornered = len(points) > 2 and (len(points) < 16 or width > 0.015)  # thin curves of many points show no corner
        pixels = [(x * self.side, y * self.side) for x, y in points]
        self.draw.line(pixels, fill=fill, width=max(1, round(width * self.side)), joint="curve" if cornered else None)

    def spot(self, x: float, y: float, rx: float, ry: float, fill: RGB | tuple[int, int, int, int]) -> None:
        side = self.side
        self.draw.ellipse(((x - rx) * side, (y - ry) * side, (x + rx) * side, (y + ry) * side), fill=fill)


def draw_object(brush: Brush, name: str, colour: str, at: Point, half: float, tilt: float, mirrored: bool) -> None:
    """Paint one object: `at` its centre, `half` its half-width (fractions of the side), `tilt` in radians."""
    paints = _paints(COLOURS[colour])
    flip = -1.0 if mirrored else 1.0

    def place(points: tuple[Point, ...]) -> list[Point]:
        c, s = half * cos(tilt), half * sin(tilt)
        return [(at[0] + c * flip * x - s * y, at[1] + s * flip * x + c * y) for x, y in points]

    foot = half * max(y for part in OBJECTS[name] for _, y in part.points)
    brush.spot(at[0] + 0.12 * half, at[1] + foot, 0.85 * half, 0.17 * half, (0, 0, 0, 80))
    for part in OBJECTS[name]:
        fill = paints.get(part.paint) or _rgb(part.paint)
        if part.stroke:
            brush.line(place(part.points), fill, part.stroke * half)
        else:
            brush.shape(place(part.points), fill, outline=max(0.009, 0.045 * half))


def _paints(main: RGB) -> dict[str, RGB]:
    brightness = sum(main) / 3
    return {
        "main": main,
        "dark": _mix(main, (0, 0, 0), 0.3) if brightness > 60 else _mix(main, (255, 255, 255), 0.22),
        "light": _mix(main, (255, 255, 255), 0.5 if brightness > 60 else 0.3),
        "contrast": INK if brightness > 60 else (235, 235, 235),
        "ink": INK,
    }


def _mix(colour: RGB, other: RGB, share: float) -> RGB:
    r, g, b = (round(x + (y - x) * share) for x, y in zip(colour, other, strict=True))
    return r, g, b


def _rgb(code: str) -> RGB:
    return int(code[1:3], 16), int(code[3:5], 16), int(code[5:7], 16)


def _grass(brush: Brush, rng: np.random.Generator) -> None:
    greens: tuple[RGB, ...] = ((46, 104, 36), (126, 176, 66), (60, 122, 44))
    for i, (x, y, lean, tall) in enumerate(rng.random((240, 4)).tolist()):
        brush.line([(x, y), (x + 0.05 * (lean - 0.5), y - 0.04 - 0.05 * tall)], greens[i % 3], 0.011)


def _sand(brush: Brush, rng: np.random.Generator) -> None:
    for row, phase in enumerate(rng.random(7).tolist()):
        wave = [(i / 24, 0.07 + row / 7 + 0.018 * sin(6 * (i / 12 + phase) * pi / 3)) for i in range(25)]
        brush.line(wave, (201, 168, 108), 0.014)
    for i, (x, y, r) in enumerate(rng.random((170, 3)).tolist()):
        brush.spot(x, y, 0.004 + 0.005 * r, 0.004 + 0.005 * r, ((170, 134, 82), (252, 238, 200))[i % 2])


def _snow(brush: Brush, rng: np.random.Generator) -> None:
    for x, y, r in rng.random((7, 3)).tolist():
        brush.spot(x, y + 0.025, 0.13 + 0.08 * r, 0.05 + 0.02 * r, (192, 208, 234))
        brush.spot(x, y, 0.13 + 0.08 * r, 0.05 + 0.02 * r, (241, 245, 251))
    for x, y, r in rng.random((60, 3)).tolist():
        brush.spot(x + 0.006, y + 0.006, 0.008 + 0.006 * r, 0.008 + 0.006 * r, (172, 192, 224))
        brush.spot(x, y, 0.008 + 0.006 * r, 0.008 + 0.006 * r, (255, 255, 255))


def _water(brush: Brush, rng: np.random.Generator) -> None:
    blues: tuple[RGB, ...] = ((150, 214, 240), (30, 110, 160), (200, 236, 248))
    for i, (x, y, length) in enumerate(rng.random((60, 3)).tolist()):
        reach = 0.1 + 0.1 * length
        wave = [(x - reach / 2 + reach * t / 16, y + 0.012 * sin(pi * t / 4)) for t in range(17)]
        brush.line(wave, blues[i % 3], 0.014)


def _road(brush: Brush, rng: np.random.Generator) -> None:
    for i, (x, y) in enumerate(rng.random((220, 2)).tolist()):
        brush.spot(x, y, 0.005, 0.005, ((88, 88, 92), (142, 142, 146))[i % 2])
    shift, slope = rng.random(2).tolist()
    slope = 0.06 * (slope - 0.5)
    for start in (-0.25, 0.05, 0.35, 0.65, 0.95):  # the broken line between the lanes
        left, right = start + 0.25 * shift, start + 0.25 * shift + 0.17
        brush.line([(left, 0.12 + slope * left), (right, 0.12 + slope * right)], (245, 214, 70), 0.04)
    brush.line([(-0.1, 0.93 - slope), (1.1, 0.93 + slope)], (240, 240, 236), 0.035)


def _floor(brush: Brush, rng: np.random.Generator) -> None:
    browns: tuple[RGB, ...] = ((172, 108, 58), (152, 92, 46), (186, 122, 70))
    planks, top = 6, -0.1 * float(rng.random())
    for row in range(planks + 1):
        high, low = top + row / planks, top + (row + 1) / planks
        brush.shape([(0, high), (1, high), (1, low), (0, low)], browns[row % 3])
        for y, x, length in rng.random((4, 3)).tolist():
            grain = high + (0.15 + 0.7 * y) / planks
            brush.line([(x - 0.2 * length, grain), (x + 0.2 * length, grain)], (132, 78, 38), 0.006)
        brush.line([(0, low), (1, low)], (84, 46, 20), 0.012)
        for joint in (rng.random() * 0.5, 0.5 + rng.random() * 0.5):
            brush.line([(joint, high), (joint, low)], (84, 46, 20), 0.01)


PLACES: dict[str, tuple[RGB, Callable[[Brush, np.random.Generator], None]]] = {
    "grass": ((84, 146, 54), _grass),
    "sand": ((228, 202, 144), _sand),
    "snow": ((226, 233, 244), _snow),
    "water": ((64, 156, 206), _water),
    "road": ((114, 114, 118), _road),
    "floor": ((172, 108, 58), _floor),
}


@dataclass(frozen=True)
class Layout:
    """Where things stand: the salient object on one side, its companions above each other on the other."""

    centre: Point
    half: float
    companions: tuple[Point, ...]
    companion_half: float


def lay_out(count: int, rng: np.random.Generator) -> Layout:
    half, companion_half = float(rng.uniform(0.215, 0.25)), float(rng.uniform(0.115, 0.135))
    centre = (0.285 + float(rng.uniform(-0.03, 0.03)), 0.5 + float(rng.uniform(-0.18, 0.18)))
    rows = sorted(rng.permutation([0.19, 0.5, 0.81])[:count].tolist())
    spots = [
        (0.79 + dx, y + dy) for y, (dx, dy) in zip(rows, rng.uniform(-0.03, 0.03, (count, 2)).tolist(), strict=True)
    ]
    if rng.random() < 0.5:
        centre, spots = (1 - centre[0], centre[1]), [(1 - x, y) for x, y in spots]
    return Layout(centre, half, tuple(spots), companion_half)


def light(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Another hour of the day: brightness, warmth, a side the light comes from, and the grain of a sensor."""
    pixels = np.asarray(image, dtype=np.float32)
    gain = (rng.uniform(0.86, 1.06) * (1 + rng.uniform(-0.035, 0.035) * np.array([1, 0, -1]))).astype(np.float32)
    across, down = rng.uniform(-0.06, 0.06, 2).tolist()
    ramp = np.linspace(-1, 1, len(pixels), dtype=np.float32)
    shade = 1 + across * ramp[None, :, None] + down * ramp[:, None, None]
    grain = 3 * rng.standard_normal((*pixels.shape[:2], 1), dtype=np.float32)
    return Image.fromarray(np.clip(pixels * gain * shade + grain, 0, 255).astype(np.uint8))


def draw_scene(
    salient: tuple[str, str], place: str, companion: tuple[str, str], count: int, size: int, rng: np.random.Generator
) -> Image.Image:
    """One photo of the toy world; `salient` and `companion` are (noun, colour)."""
    base, texture = PLACES[place]
    image = Image.new("RGB", (size * SUPERSAMPLE, size * SUPERSAMPLE), base)
    brush = Brush(ImageDraw.Draw(image, "RGBA"), size * SUPERSAMPLE)
    texture(brush, rng)
    layout = lay_out(count, rng)

    def put(thing: tuple[str, str], at: Point, half: float) -> None:
        draw_object(brush, *thing, at, half, float(rng.uniform(-0.12, 0.12)), bool(rng.random() < 0.5))

    put(salient, layout.centre, layout.half)
    for at in layout.companions:
        put(companion, at, layout.companion_half)
    return light(image.reduce(SUPERSAMPLE), rng)
