"""The data that a recipe names: examples of each file with their features, those of a split, and who is left out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tellapart.data import examples as data_files
from tellapart.data.examples import Example
from tellapart.data.features import FeatureStore, StoredFeatures, extract
from tellapart.data.regions import Elsewhere, features_of, find
from tellapart.data.tokenizers import split_words
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.in_view import InView
from tellapart.encoders.loading import load as load_encoder
from tellapart.errors import UserError
from tellapart.recipe import Recipe
from tellapart.training.distributed import ALONE, World

Source = tuple[StoredFeatures | None, list[Example]]  # examples of a data file, with their features if photos are seen


def seen_by(recipe: Recipe, device: torch.device) -> PhotoEncoder | Elsewhere:
    """What the recipe's features come from: an encoder, or elsewhere."""
    return find(Path(recipe.data.features), recipe.encoder.name) or load_encoder(recipe.encoder, device)


def gather(
    recipe: Recipe, encoder: PhotoEncoder | Elsewhere | None, world: World = ALONE
) -> tuple[list[Source], list[str]]:
    """The examples of every data file, with their features; those that have none are left out and named.

    Without an encoder only captions count, and records need no photo.
    """
    if not recipe.data.files:
        raise UserError("the recipe names no data: give --data DATA.json, or data.files in the recipe.")
    if shared := set(recipe.data.train_split.split("+")) & set(recipe.data.val_split.split("+")):
        raise UserError(
            f"data.train_split and data.val_split share {min(shared)!r}; a run is judged by photos it has not seen."
        )
    sources, problems, called = list[Source](), [], dict[str, str]()
    left_out = Without(recipe.data.without)
    for file in recipe.data.files:
        dataset = data_files.read(Path(file), needs_files=encoder is not None)
        if dataset.name in called and encoder is not None:
            raise UserError(
                f"{file} and {called[dataset.name]} are both called {dataset.name!r} and would share a feature cache; "
                'change "dataset" in one of them.'
            )
        called[dataset.name] = file
        if dataset.kind != "images" and encoder is not None:
            raise UserError(f"{file} has {dataset.kind}; this recipe learns from photos.")
        problems += dataset.problems
        fewest = 1 if encoder else 2  # captions, so that two can be brought together
        wanted = [
            example
            for name, limit in ((recipe.data.train_split, recipe.data.limit), (recipe.data.val_split, held_out(recipe)))
            for example in _first(
                [e for e in in_split(dataset.examples, name) if not left_out.has(e, dataset.name)], limit
            )
            if len(example.captions) >= fewest
        ]
        if not wanted:
            raise UserError(
                f"{file} has no photos with {'captions' if encoder else 'two captions'} in the splits "
                f"{recipe.data.train_split!r} and {recipe.data.val_split!r} (its splits: "
                f"{', '.join(sorted({e.split for e in dataset.examples}))})."
            )
        if encoder is None:
            sources.append((None, wanted))
            continue
        root = Path(recipe.data.features)
        result = world.in_turn(partial(features_of, wanted, encoder, root, dataset.name))
        problems += [f"{file}: image {id_}: {reason}" for id_, reason in result.failed.items()]
        sources.append((result.store, [example for example in wanted if example in result.store]))
    return sources, problems


def data_set_names(recipe: Recipe) -> list[str]:
    """Of the data files, in their order."""
    return [data_files.read(Path(file), needs_files=False).name for file in recipe.data.files]


def views(
    recipe: Recipe, encoder: PhotoEncoder | Elsewhere, training: Sequence[Any], world: World = ALONE
) -> list[list[StoredFeatures]]:
    """Of each source of training photos, the stores with other views of them, made now where they are missing."""
    if not recipe.data.views:
        return []
    if isinstance(encoder, Elsewhere):
        raise UserError(f"data.views: features of {encoder.name} were imported; there is no encoder to see views with.")
    return [
        [
            world.in_turn(partial(_view, store, examples, InView(encoder, number)))
            for number in range(1, recipe.data.views + 1)
        ]
        for store, examples in training
    ]


def _view(store: FeatureStore, examples: Sequence[Example], encoder: InView) -> StoredFeatures:
    result = extract(examples, encoder, store.folder.with_name(f"{store.folder.name}-view{encoder.fit.view}"))
    for id_, reason in result.failed.items():
        raise UserError(f"data.views: image {id_}: {reason}.")
    return result.store


class Without:
    """Photos that a run must not learn from, such as those that another one is judged by.

    The same photo is known by its id in a data set of the same name, or by its file's name; and, because data sets
    name their photos differently, by two captions that they share.
    """

    def __init__(self, files: Sequence[str]):
        sets = [data_files.read(Path(file), needs_files=False) for file in files]
        self._names = {
            name for dataset in sets for example in dataset.examples for name in _names(example, dataset.name)
        }
        self._captions = {_same(text) for dataset in sets for example in dataset.examples for text in example.captions}

    def has(self, example: Example, dataset: str) -> bool:
        if not self._names.isdisjoint(_names(example, dataset)):
            return True
        captions = set(map(_same, example.captions))
        return len(captions & self._captions) >= min(2, max(len(captions), 1))


def _names(example: Example, dataset: str) -> set[str]:
    names = {f"{dataset}:{example.id}"} | ({example.file.stem} if example.file.name else set())
    return names | ({Path(example.id).stem} if isinstance(example.id, str) else set())


def _same(caption: str) -> str:
    return " ".join(split_words(caption))


def held_out(recipe: Recipe) -> int:
    """How many photos of a data file's validation split are used at most; 0: all."""
    return min((limit for limit in (recipe.validation.photos, recipe.data.limit) if limit), default=0)


def in_split(examples: Sequence[Example], name: str) -> list[Example]:
    """The examples of a split, or of several that are joined by "+"."""
    names = set(name.split("+"))
    return [example for example in examples if example.split in names]


def split(sources: Sequence[Source], name: str, limit: int) -> list[Any]:
    chosen = [(store, _first(in_split(examples, name), limit)) for store, examples in sources]
    if not any(examples for _, examples in chosen):
        raise UserError(f"no data file has a photo with captions and features in the split {name!r}.")
    return chosen


def _first(examples: list[Example], limit: int) -> list[Example]:
    return examples[:limit] if limit else examples
