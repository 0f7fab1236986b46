"""From photos, folders and data files to look-alike groups."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tellapart import files
from tellapart.data import examples as schema
from tellapart.data.examples import Example
from tellapart.data.readers import folder
from tellapart.errors import UserError
from tellapart.neighbours.groups import By, Groups, Photo, Rule
from tellapart.neighbours.mining import Captions, mine
from tellapart.neighbours.search import Metric
from tellapart.neighbours.vectors import Source, source

DUPLICATES_ABOVE = 0.95

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def look_alikes(
    photos: Paths,
    k: int = 5,
    *,
    by: By = "image",
    metric: Metric = "cosine",
    retriever: str | None = None,
    split: str | None = None,
    duplicates_above: float = DUPLICATES_ABOVE,
) -> Groups:
    """The k photos that look most like each photo; photos, folders of photos or data files.

    `retriever` is the name of a retriever or of an encoder.  Photos that cannot be read are in `Groups.failed`.
    """
    collection = collect(photos, split)
    rule = Rule(by, metric, k, duplicates_above)
    return group(collection, source(retriever), rule)


@dataclass
class Collection:
    examples: list[Example]
    problems: list[str] = field(default_factory=list)  # a sentence for whatever could not be used


def collect(paths: Paths, split: str | None = None) -> Collection:
    """The photos in the order given, each once; `split` takes only that part."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    collection = Collection([])
    found: dict[tuple[str, int | str], Example] = {}
    for path in map(Path, paths):
        try:
            for example in _below(path, split, collection.problems):
                found.setdefault((str(example.file), example.id), example)
        except UserError as error:  # an empty folder, a damaged data file: the others go on
            collection.problems.append(str(error))
    if not found:
        raise UserError(collection.problems[0] if collection.problems else "there are no photos to compare.")
    collection.examples = list(found.values())
    return collection


def _below(path: Path, split: str | None, problems: list[str]) -> list[Example]:
    if files.is_folder(path):
        dataset = folder.read(path)
        named = [replace(example, file=path / str(example.id)) for example in dataset.examples]  # as the user would
    elif path.name.endswith((".json", ".json.gz")):
        dataset = schema.read(path)
        if dataset.kind != "images":
            raise UserError(f"{path}: has {dataset.kind}, and only photos can be compared.")
        named = dataset.examples
    else:
        return [Example(str(path), path, "test")]  # as in a folder
    problems += dataset.problems
    chosen = [example for example in named if split in (None, example.split)]
    if not chosen and split is not None:
        there = ", ".join(sorted({repr(example.split) for example in named}))
        raise UserError(f"{path}: has no split {split!r}; it has {there or 'no photos'}.")
    return chosen


def group(collection: Collection, vectors: Source, rule: Rule) -> Groups:
    """The collection's groups by these vectors; the rule gets their name."""
    if rule.by == "image" and not vectors.sees_photos:
        raise UserError(f"{vectors.name} knows photos by their captions only; it can mine --by caption.")
    if rule.by == "caption" and not any(example.captions for example in collection.examples):
        raise UserError("no photo has a caption, so none can be found by caption; use --by image.")
    rule = replace(rule, retriever=vectors.name, retriever_sha256=vectors.sha256)
    if rule.by == "caption":
        vectors.of_captions([])  # one that reads none says so before it has looked at all photos
    if not vectors.sees_photos:  # vectors of captions do not tell which photos are nearly the same
        rule = replace(rule, duplicates_above=1.0)
    known = vectors.of_photos(collection.examples)
    examples = [collection.examples[position] for position in known.positions]
    photos = [Photo(str(e.file), h, e.id, e.split) for e, h in zip(examples, known.sha256, strict=True)]
    captions = None
    if rule.by == "caption":
        of_photo = np.repeat(np.arange(len(examples)), [len(example.captions) for example in examples])
        captions = Captions(vectors.of_captions([text for example in examples for text in example.captions]), of_photo)
    groups = mine(photos, known.vectors, rule, captions, looks=known.looks)
    groups.failed = known.failed
    return groups
