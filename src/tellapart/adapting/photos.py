"""The photos that a captioner is adapted to: each picture once, and a part of them held out by what they show."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capscore.errors import UserError
from tellapart.data.examples import Example
from tellapart.data.items import open_all
from tellapart.data.media.identity import identify
from tellapart.errors import BadPhoto
from tellapart.parallel import ordered_map

TRAIN, HELD_OUT = "train", "val"
LEAST_TRAINING = 16  # photos, the smallest batch that tells photos apart
LEAST_HELD_OUT = 8
MOST_HELD_OUT = 400

Name = str | os.PathLike[str]


@dataclass(frozen=True)
class Photos:
    """name      of the data set
    examples  different photos without captions, in the splits TRAIN and HELD_OUT
    hashes    of their pictures
    copies    photos that were left out because another one has the same picture
    problems  a sentence for each photo that could not be read
    """

    name: str
    examples: list[Example]
    hashes: list[str]
    copies: int
    problems: list[str]

    def of(self, split: str) -> list[Example]:
        return [example for example in self.examples if example.split == split]

    def some(self, most: int) -> Photos:
        """At most so many photos, by the ends of their hashes, in the order of the data."""
        order = sorted(range(len(self.examples)), key=lambda place: self.hashes[place][::-1])
        places = sorted(order[:most])
        return divided(
            replace(self, examples=[self.examples[i] for i in places], hashes=[self.hashes[i] for i in places])
        )


def find(named: Name | Sequence[Name]) -> Photos:
    """Of folders, data files, whose captions are not read, or photos."""
    paths = [os.fspath(path) for path in ([named] if isinstance(named, str | os.PathLike) else named)]
    opened, problems = open_all(paths)
    files = {str(example.file): example for part in opened for example in part.examples}
    if not files:
        raise UserError(problems[0] if problems else "there is no photo to learn from.")
    different: dict[str, Example] = {}
    for file, picture in zip(files, ordered_map(_picture, files), strict=True):
        if isinstance(picture, BadPhoto):
            problems.append(str(picture))
        else:
            different.setdefault(picture, Example(str(len(different)), Path(file).absolute()))
    if len(different) == 1 and len(files) > 1:
        raise UserError(f"{paths[0]}: all {len(files)} photos are copies of one; there is nothing to tell apart.")
    name = next((part.name for part in opened if part.name), "photos")
    bad = len(problems) - sum(len(part.problems) for part in opened)
    copies = len(files) - len(different) - bad
    return divided(Photos(name, list(different.values()), list(different), copies, problems))


def _picture(file: str) -> str | BadPhoto:
    try:
        return identify(file).picture
    except BadPhoto as error:
        return error


def divided(photos: Photos) -> Photos:
    """Held out is the half whose pictures have the lower hashes, at most MOST_HELD_OUT: content alone decides."""
    order = sorted(range(len(photos.hashes)), key=photos.hashes.__getitem__)
    held_out = set(order[: min(len(order) // 2, MOST_HELD_OUT)])
    examples = [
        replace(example, split=HELD_OUT if place in held_out else TRAIN)
        for place, example in enumerate(photos.examples)
    ]
    return replace(photos, examples=examples)


def require_enough(training: int, held_out: int, where: str) -> None:
    if training < LEAST_TRAINING or held_out < LEAST_HELD_OUT:
        raise UserError(
            f"{where}: {training + held_out} different photos can be used, {training} to learn from and {held_out} "
            f"held out; a batch needs {LEAST_TRAINING} photos, so {2 * LEAST_TRAINING} are needed in all."
        )
