"""The data that a recipe names: examples of each file with their features, those of a split, and which are left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from capscore.errors import UserError
from tellapart.data import examples as data_files
from tellapart.data.examples import Example, Exclusion
from tellapart.data.items import KIND_OF, Kind
from tellapart.data.media.clips import named_as_clip
from tellapart.data.store import StoredFeatures, Stores
from tellapart.data.tokenizers import Tokenizer
from tellapart.distributed import SINGLE, ProcessGroup
from tellapart.features.sources import Sources, StreamSource
from tellapart.models.sources import of_streams
from tellapart.recipe import Recipe
from tellapart.rewards import registry
from tellapart.training.objectives import OBJECTIVES
from tellapart.training.validation import reads_references

Source = tuple[Stores, list[Example]]  # examples of a data file, with their features if photos are seen


def sources_of(recipe: Recipe, device: torch.device) -> Sources:
    """The sources of the recipe's streams."""
    # A tagger of clips takes frames in their order, and so as many of a photo.
    once = not OBJECTIVES[recipe.objective.name].network
    return of_streams(recipe.streams, Path(recipe.data.features), recipe.detector, device, photos_once=once)


@dataclass(frozen=True)
class Chosen:
    """What a recipe takes of a data file."""

    file: str
    name: str  # of the data set
    training: list[Example]
    held_out: list[Example]


def choose(recipe: Recipe, *, takes: Collection[Kind]) -> tuple[list[Chosen], list[str]]:
    """Of every data file what is learned from and what the run is judged by; and records that cannot be used.

    All that can be wrong with data files is found here, before any photo is read.

    takes  the kinds of items that are learned from; without any only captions count, and records need no file
    """
    if not recipe.data.files:
        raise UserError("the recipe names no data: give --data DATA.json, or data.files in the recipe.")
    if shared := set(recipe.data.train_split.split("+")) & set(recipe.data.val_split.split("+")):
        raise UserError(
            f"data.train_split and data.val_split share {min(shared)!r}; a run is judged by photos it has not seen."
        )
    found, problems, called = list[Chosen](), list[str](), dict[str, str]()
    left_out = Exclusion.of_files(recipe.data.exclude)
    # Captions that a photo must have: none where only its look counts, two where they are brought together.
    fewest = 0 if learns_without_captions(recipe) else 1 if takes else 2
    for file in recipe.data.files:
        dataset = data_files.read(Path(file), needs_files=bool(takes))
        if dataset.name in called and takes:
            raise UserError(
                f"{file} and {called[dataset.name]} are both called {dataset.name!r} and would share a feature cache; "
                'change "dataset" in one of them.'
            )
        called[dataset.name] = file
        kind = KIND_OF[dataset.kind]
        if takes and kind not in takes:
            raise UserError(f"{file} has {kind}; this recipe's encoders take {' and '.join(takes)}.")
        problems += dataset.problems
        training, validation = (
            [
                example
                for example in _first(
                    [e for e in in_split(dataset.examples, name) if not left_out.has(e, dataset.name)], limit
                )
                if len(example.captions) >= fewest
            ]
            for name, limit in ((recipe.data.train_split, recipe.data.limit), (recipe.data.val_split, held_out(recipe)))
        )
        if not training and not validation:
            if not dataset.examples and dataset.problems:
                raise UserError(f"{file}: none of its records can be used; the first: {dataset.problems[0]}")
            raise UserError(
                f"{file} has no photos{('', ' with captions', ' with two captions')[fewest]} in the splits "
                f"{recipe.data.train_split!r} and {recipe.data.val_split!r} (its splits: "
                f"{', '.join(sorted({e.split for e in dataset.examples}))})."
            )
        found.append(Chosen(file, dataset.name, training, validation))
    if unknown := recipe.data.repeat.keys() - {one.name for one in found}:
        known = ", ".join(repr(one.name) for one in found)
        raise UserError(f"data.repeat: no data set is called {min(unknown)!r}; there are {known}.")
    what = "a photo with captions" if fewest else "a photo"
    _require(recipe.data.train_split, [chosen.training for chosen in found], what)
    _require(recipe.data.val_split, [chosen.held_out for chosen in found], what)
    return found, problems


def learns_without_captions(recipe: Recipe) -> bool:
    """Whether neither the rewards nor what picks the best checkpoint read captions of the photos (DiscriTune)."""
    objective, policy = recipe.objective, recipe.objective.policy
    return (
        objective.name == "policy_gradient"
        and not policy.references
        and policy.baseline != "references"
        and "references" not in registry.needs_of(objective.rewards)
        and not reads_references(recipe.validation.metric)
    )


def with_features(
    chosen: Sequence[Chosen], streams: Sources, root: Path, world: ProcessGroup = SINGLE
) -> tuple[list[Source], list[str]]:
    """The examples of every data file with their features; those that have none are left out and named.

    streams  none where only captions count
    root     the folder of the feature cache
    """
    sources, problems = list[Source](), list[str]()
    for one in chosen:
        wanted = [*one.training, *one.held_out]
        any_clip = any(named_as_clip(example.file) for example in wanted)
        stores, failed = Stores(), dict[str, str]()
        for name, stream in streams.items():
            source = stream if any_clip else stream.of_photos()
            result = world.sequentially(partial(source.extract, wanted, root, one.name))
            stores[name] = result.store
            failed |= result.failed
        problems += [f"{one.file}: image {id_}: {reason}" for id_, reason in failed.items()]
        sources.append((stores, [example for example in wanted if stores.have(example)]))
    return sources, problems


def use_vocabulary(sources: Sequence[Source], tokenizer: Tokenizer) -> None:
    """Attributes get the ids that their words have in a captioner's vocabulary."""
    for stores, _ in sources:
        for store in stores.values():
            store.use(tokenizer)


def gather(recipe: Recipe, streams: Sources, world: ProcessGroup = SINGLE) -> tuple[list[Source], list[str]]:
    """Both at once: the examples that a recipe takes, with features, and what could not be used."""
    chosen, problems = choose(recipe, takes=streams.takes)
    sources, more = with_features(chosen, streams, Path(recipe.data.features), world)
    return sources, problems + more


def visits(recipe: Recipe, chosen: Sequence[Chosen], examples: Sequence[Example]) -> NDArray[np.int64]:
    """The places of the examples in an epoch: once each, or as often as the recipe repeats their data set."""
    times = recipe.data.repeat
    set_of = {id(example): one.name for one in chosen for example in one.training}
    return np.repeat(np.arange(len(examples)), [times.get(set_of.get(id(one), ""), 1) for one in examples])


def views(
    count: int,
    streams: Sources,
    root: Path,
    chosen: Sequence[Chosen],
    training: Sequence[Source],
    world: ProcessGroup = SINGLE,
) -> list[list[Stores]]:
    """Of each source of training photos, the stores with so many other views, made now where they are missing.

    root    the folder of the feature cache
    chosen  the data sets of the sources
    """
    shown = [{name: stream.view(number) for name, stream in streams.items()} for number in range(1, count + 1)]
    return [
        [
            Stores(
                (name, _view(source, stores[name], examples, root, one.name, world)) for name, source in view.items()
            )
            for view in shown
        ]
        for one, (stores, examples) in zip(chosen, training, strict=True)
        if count
    ]


def _view(
    source: StreamSource,
    whole: StoredFeatures,
    examples: Sequence[Example],
    root: Path,
    dataset: str,
    world: ProcessGroup,
) -> StoredFeatures:
    if whole.identity == source.identity:  # words and the cells of a grid, which are the same in all views
        return whole
    source = source if whole.identity.get("frames") == source.identity.get("frames") else source.of_photos()
    result = world.sequentially(partial(source.extract, examples, root, dataset))
    for id_, reason in result.failed.items():
        raise UserError(f"data.views: image {id_}: {reason}.")
    return result.store


def not_learned_from(recipe: Recipe) -> list[Exclusion]:
    """What no part of a run may learn from: the files that it excludes, and its own validation and test photos."""
    training = set(recipe.data.train_split.split("+"))
    return [
        Exclusion.of_files(recipe.data.exclude),
        Exclusion.of_files(recipe.data.files, lambda example: example.split not in training),
    ]


def held_out(recipe: Recipe) -> int:
    """How many photos of a data file's validation split are used at most; 0: all."""
    return min((limit for limit in (recipe.validation.photos, recipe.data.limit) if limit), default=0)


def in_split(examples: Sequence[Example], name: str) -> list[Example]:
    """The examples of a split, or of several that are joined by "+"."""
    names = set(name.split("+"))
    return [example for example in examples if example.split in names]


def split(sources: Sequence[Source], name: str, limit: int) -> list[Source]:
    chosen = [(store, _first(in_split(examples, name), limit)) for store, examples in sources]
    _require(name, [examples for _, examples in chosen], "a photo with captions and features")
    return chosen


def _require(split: str, examples: Sequence[list[Example]], what: str) -> None:
    if not any(examples):
        raise UserError(f"no data file has {what} in the split {split!r}.")


def _first(examples: list[Example], limit: int) -> list[Example]:
    return examples[:limit] if limit else examples
