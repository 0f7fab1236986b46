"""A toy world of moving shapes: which shape it is, which way it goes, and which colour it turns, in short clips.

Each is seen at another range.  A single frame shows the shape, if it is seen sharply: all shapes have the same area.
The way is seen between frames close together only: the shape leaves at one side and returns at the other, and is where
it was after every PERIOD frames.  The order of the two colours is seen between frames far apart: both are shown for
about half of a clip, and the turn itself lasts no time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from tellapart.data.examples import DataSet, Example, write

SHAPES = {"circle": 6.5, "square": 5.5, "triangle": 8.0}  # half of the height: all cover about 145 pixels
WAYS = {"left": (-1, 0), "right": (1, 0), "rises": (0, -1), "falls": (0, 1)}
COLOURS = {"red": (220, 40, 40), "blue": (50, 80, 230)}
SIZE, FRAMES, SPEED = 32, 24, 8  # pixels a side; of a clip; pixels a frame
PERIOD = SIZE // SPEED
RGB = NDArray[np.uint8]  # (H, W, 3)


@dataclass(frozen=True)
class Scene:
    """The facts of one clip."""

    shape: str
    way: str
    turns: str  # the colour at the end

    def caption(self, number: int = 0) -> str:
        """Some people say all (0, 1), some only a part of it (2, 3)."""
        moves = self.way if self.way in ("rises", "falls") else f"moves {self.way}"
        turns = f"turns {self.turns}"
        return f"{('a', 'the')[number % 2]} {self.shape} {(f'{moves} and {turns}', turns, moves)[max(number - 1, 0)]}"


SCENES = tuple(Scene(*facts) for facts in product(SHAPES, WAYS, COLOURS))


def render(scene: Scene, seed: int) -> list[RGB]:
    """The frames; a seed decides where the shape starts and when it turns."""
    rng = random.Random(f"{scene} {seed}")
    x, y, turn = rng.randrange(SIZE), rng.randrange(SIZE), rng.randrange(FRAMES * 2 // 5, FRAMES * 3 // 5 + 1)
    (before,) = COLOURS.keys() - {scene.turns}
    across, down = WAYS[scene.way]
    still = {name: _drawn(scene.shape, COLOURS[name]) for name in COLOURS}
    frames = []
    for time in range(FRAMES):
        shift = (y + down * SPEED * time, x + across * SPEED * time)
        frames.append(np.roll(still[before if time < turn else scene.turns], shift, axis=(0, 1)))
    return frames


def facts_in(caption: str) -> tuple[str | None, str | None, str | None]:
    """What a caption says of shape, way and colour."""
    words = caption.split()
    shape, way = (next((word for word in words if word in known), None) for known in (SHAPES, WAYS))
    return shape, way, next((word for word in words if word in COLOURS), None)


def save(frames: Sequence[RGB], file: Path) -> None:
    """Without loss."""
    import av

    with av.open(str(file), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = frames[0].shape[1], frames[0].shape[0], "bgr0"
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def make(folder: Path, each: dict[str, int], captions: Sequence[int] = (0, 1)) -> DataSet:
    """A data set of clips, with `clips.json`, in a folder.

    each      of a split, the clips of each of the 24 scenes
    captions  their numbers
    """
    folder.mkdir(parents=True, exist_ok=True)
    examples, seed = list[Example](), 0
    for split, count in each.items():
        for scene in [scene for scene in SCENES for _ in range(count)]:
            seed += 1
            file = folder / f"{seed}.mkv"
            save(render(scene, seed), file)
            texts = tuple(map(scene.caption, captions))
            examples.append(Example(str(seed), file, split, texts, {"scene": asdict(scene)}))
    dataset = DataSet("moving_shapes", examples, kind="videos")
    write(dataset, folder / "clips.json")
    return dataset


def _drawn(shape: str, colour: tuple[int, int, int]) -> RGB:
    image = Image.new("RGB", (SIZE, SIZE), (235, 235, 225))
    brush, middle, half = ImageDraw.Draw(image), SIZE / 2, SHAPES[shape]
    low, high = middle - half, middle + half
    if shape == "circle":
        brush.ellipse((low, low, high, high), fill=colour)
    elif shape == "square":
        brush.rectangle((low, low, high, high), fill=colour)
    else:
        brush.polygon([(middle, low), (low, high), (high, high)], fill=colour)
    return np.asarray(image)
