"""Items: the photos and clips that a user names by their files, by folders and by data files.

`open_path` is the one place that finds out what a path is, and whether a command takes what is there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from capscore.errors import UserError
from capscore.files import is_folder
from tellapart.data import examples
from tellapart.data.examples import Example
from tellapart.data.readers import folder
from tellapart.errors import BadPhoto

Kind = Literal["photos", "clips"]
ITEMS: tuple[Kind, ...] = ("photos", "clips")
KIND_OF: dict[str, Kind] = {"images": "photos", "videos": "clips"}  # by the key that a data file has them under


@dataclass(frozen=True)
class ItemSet:
    """The items at a path."""

    kind: Kind
    name: str  # of the data set; nothing for a single file
    examples: list[Example]  # with files as the user would name them
    problems: list[str] = field(default_factory=list)  # a sentence for each problem
    is_data_file: bool = False


def open_path(path: str | Path, *, takes: Collection[Kind] = ITEMS, split: str | None = None) -> ItemSet:
    """A photo or clip, a folder of them, or a data file.

    takes  the kinds of items that the command can use
    split  only this part of a data file

    A file that is missing or damaged is an item all the same: that is found out when it is read, beside its name.
    """
    place = Path(path)
    from_folder = is_folder(place)
    if from_folder:
        dataset = folder.read(place)
        dataset.examples = [replace(example, file=Path(path, str(example.id))) for example in dataset.examples]
    elif is_data_file(path):
        dataset = examples.read(place)
    else:
        return ItemSet("photos", "", [Example(str(path), place, "test")])  # "test", as in a folder
    kind = KIND_OF[dataset.kind]  # a folder of photos and clips counts as photos: the middle frame can stand for a clip
    if kind not in takes:
        raise UserError(f"{path}: has {kind}, and this takes {' and '.join(takes)}.")
    chosen = [example for example in dataset.examples if split in (None, example.split)]
    if split is not None and not dataset.examples and dataset.problems:  # not of a folder, which has some
        raise UserError(f"{path}: none of its records can be used; the first: {dataset.problems[0]}")
    if split is not None and not chosen:
        splits = ", ".join(sorted({repr(example.split) for example in dataset.examples}))
        raise UserError(f"{path}: has no split {split!r}; it has {splits or 'no photos'}.")
    return ItemSet(kind, dataset.name, chosen, dataset.problems, is_data_file=not from_folder)


def is_data_file(path: str | Path) -> bool:
    return str(path).endswith((".json", ".json.gz"))


def open_all(
    paths: Iterable[str | Path], *, takes: Collection[Kind] = ITEMS, split: str | None = None
) -> tuple[list[ItemSet], list[str]]:
    """The items at several paths, and a sentence for each problem; one that has nothing stops no other."""
    opened, problems = list[ItemSet](), list[str]()
    for path in paths:
        try:
            opened.append(open_path(path, takes=takes, split=split))
            problems += opened[-1].problems
        except UserError as error:  # an empty folder, a damaged data file
            problems.append(str(error))
    return opened, problems


@dataclass(frozen=True)
class Input:
    file: str  # as the user would name it
    id: int | str | None = None  # in the data file that it comes from


def gather(
    paths: Iterable[str], split: str | None = None, *, takes: Collection[Kind] = ITEMS
) -> tuple[list[Input], list[str]]:
    """The items in the order given, each once, and a sentence for each problem."""
    opened, problems = open_all(paths, takes=takes, split=split)
    inputs: dict[str, Input] = {}
    for place in opened:
        for example in place.examples:
            file = str(example.file) if place.name else str(example.id)  # a single file, as it was typed
            inputs.setdefault(file, Input(file, example.id if place.is_data_file else None))
    if not inputs:
        raise UserError(problems[0] if problems else "there is no photo to caption.")
    return list(inputs.values()), problems


_NAMED = 5  # of the items with the same reason


class Unusable:
    """Items that could not be used, named on the screen: the first few of a kind as they come, the others counted."""

    def __init__(self, report: Callable[[str], None]):
        self._report, self._counts, self._reasons = report, Counter[str](), dict[str, str]()

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, file: str, reason: str) -> None:
        kind = re.sub(r"\d+", "#", reason)  # "truncated (17 bytes ...": a number makes no other reason
        self._counts[kind] += 1
        self._reasons[kind] = reason
        if self._counts[kind] <= _NAMED:
            self._report(str(BadPhoto(file, reason)))

    def rest(self, hint: str = "") -> None:
        """Those that were not named; hint: where they are"""
        for kind, count in self._counts.items():
            if count == _NAMED + 1:
                self._report(f"1 more photo: {self._reasons[kind]}{hint}")
            elif count > _NAMED:
                self._report(f"{count - _NAMED:,} more photos: {self._reasons[kind]}{hint}")
