"""Items: the photos and clips that a user names by their files, by folders and by data files.

`open_path` is the one place that finds out what a path is, and whether a command takes what is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from capscore.errors import UserError
from capscore.files import is_folder
from tellapart.data import examples
from tellapart.data.examples import DataSet, Example
from tellapart.data.readers import folder

Kind = Literal["photos", "clips"]
ITEMS: tuple[Kind, ...] = ("photos", "clips")
KIND_OF: dict[str, Kind] = {"images": "photos", "videos": "clips"}  # by the key that a data file has them under


@dataclass(frozen=True)
class Opened:
    """What was found at a path."""

    kind: Kind
    name: str  # of the data set; nothing for a single file
    examples: list[Example]  # with files as the user would name them
    problems: list[str] = field(default_factory=list)  # a sentence for each problem
    is_data_file: bool = False


def open_path(path: str | Path, *, takes: Collection[Kind] = ITEMS, split: str | None = None) -> Opened:
    """A photo or clip, a folder of them, or a data file.

    takes  the kinds of items that the command can use
    split  only this part of a data file

    A file that is missing or damaged is an item all the same: that is found out when it is read, beside its name.
    """
    place = Path(path)
    if is_folder(place):
        dataset = folder.read(place)
        kind = _taken(path, dataset, takes)
        named = [replace(example, file=Path(path, str(example.id))) for example in dataset.examples]
        return Opened(kind, dataset.name, _part(path, named, split), dataset.problems)
    if is_data_file(path):
        dataset = examples.read(place)
        kind = _taken(path, dataset, takes)
        return Opened(
            kind,
            dataset.name,
            _part(path, dataset.examples, split, dataset.problems),
            dataset.problems,
            is_data_file=True,
        )
    return Opened("photos", "", [Example(str(path), place, "test")])  # "test", as in a folder


def _taken(path: str | Path, dataset: DataSet, takes: Collection[Kind]) -> Kind:
    """A folder of photos and clips counts as photos, for which the middle frame of a clip can stand."""
    kind = KIND_OF[dataset.kind]
    if kind not in takes:
        raise UserError(f"{path}: has {kind}, and this takes {' and '.join(takes)}.")
    return kind


def is_data_file(path: str | Path) -> bool:
    return str(path).endswith((".json", ".json.gz"))


def open_all(
    paths: Iterable[str | Path], *, takes: Collection[Kind] = ITEMS, split: str | None = None
) -> tuple[list[Opened], list[str]]:
    """What is at several paths, and a sentence for each problem; one that has nothing stops no other."""
    found, problems = list[Opened](), list[str]()
    for path in paths:
        try:
            opened = open_path(path, takes=takes, split=split)
        except UserError as error:  # an empty folder, a damaged data file
            problems.append(str(error))
        else:
            found.append(opened)
            problems += opened.problems
    return found, problems


@dataclass(frozen=True)
class Input:
    file: str  # as the user would name it
    id: int | str | None = None  # in the data file that it comes from


def gather(
    paths: Iterable[str], split: str | None = None, *, takes: Collection[Kind] = ITEMS
) -> tuple[list[Input], list[str]]:
    """The items in the order given, each once, and a sentence for each problem."""
    opened, problems = open_all(paths, takes=takes, split=split)
    found: dict[str, Input] = {}
    for one in opened:
        for example in one.examples:
            file = str(example.file) if one.name else str(example.id)  # a single file, as it was typed
            found.setdefault(file, Input(file, example.id if one.is_data_file else None))
    if not found:
        raise UserError(problems[0] if problems else "there is no photo to caption.")
    return list(found.values()), problems


def _part(path: str | Path, named: list[Example], split: str | None, problems: Sequence[str] = ()) -> list[Example]:
    chosen = [example for example in named if split in (None, example.split)]
    if split is not None and not named and problems:
        raise UserError(f"{path}: none of its records can be used; the first: {problems[0]}")
    if split is not None and not chosen:
        splits = ", ".join(sorted({repr(example.split) for example in named}))
        raise UserError(f"{path}: has no split {split!r}; it has {splits or 'no photos'}.")
    return chosen
