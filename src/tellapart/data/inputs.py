"""What a user names on the command line: photos, folders of photos and data files, as one list of photos."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tellapart.data import examples
from tellapart.data.readers import folder
from tellapart.errors import UserError
from tellapart.files import is_folder


@dataclass(frozen=True)
class Input:
    file: str  # as the user would name it
    id: int | str | None = None  # in the data file that it comes from


def gather(paths: Iterable[str], split: str | None = None) -> tuple[list[Input], list[str]]:
    """The photos in the order given, each once, and a sentence for whatever could not be used.

    `split` takes only that part of a data file.

    A file that is missing or is no photo stays in the list: that is found out when it is opened, beside its name.
    """
    found: dict[str, Input] = {}
    problems: list[str] = []
    for path in paths:
        try:
            for photo in _below(path, split, problems):
                found.setdefault(photo.file, photo)
        except UserError as error:  # an empty folder, a damaged data file: the others go on
            problems.append(str(error))
    if not found:
        raise UserError(problems[0] if problems else "there is no photo to caption.")
    return list(found.values()), problems


def _below(path: str, split: str | None, problems: list[str]) -> Iterator[Input]:
    if is_folder(Path(path)):
        dataset = folder.read(Path(path))
        problems += dataset.problems
        yield from (Input(str(Path(path, str(example.id)))) for example in dataset.examples)
    elif path.endswith((".json", ".json.gz")):
        dataset = examples.read(path)
        if dataset.kind != "images":
            raise UserError(f"{path}: has {dataset.kind}, and only photos can be captioned.")
        problems += dataset.problems
        chosen = dataset.examples if split is None else dataset.split(split)
        if split is not None and not chosen:
            there = ", ".join(sorted({repr(example.split) for example in dataset.examples}))
            raise UserError(f"{path}: has no split {split!r}; it has {there}.")
        yield from (Input(str(example.file), example.id) for example in chosen)
    else:
        yield Input(path)
