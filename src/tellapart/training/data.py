"""The data that a recipe names: examples of each file with their features, those of a split, and which are left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capscore.errors import UserError
from tellapart.data import examples as data_files
from tellapart.data.examples import Example, Exclusion
from tellapart.data.items import ITEMS, KIND_OF, Kind
from tellapart.data.media.clips import named_as_clip
from tellapart.data.stored import StoredFeatures, Stores
from tellapart.data.streams import ATTRIBUTES, BOXES, REGIONS, RELATIONS
from tellapart.data.tokenizers import Tokenizer
from tellapart.detectors.loading import load as load_detector
from tellapart.detectors.regions import DetectedRegions
from tellapart.distributed import SINGLE, ProcessGroup
from tellapart.encoders import ENCODERS, PhotoEncoder
from tellapart.encoders.frames import FrameEncoder
from tellapart.encoders.in_view import in_view
from tellapart.features.attributes import AttributeSource, AttributeStore
from tellapart.features.boxes import BesideRegions, BoxesOf, RelationsOf
from tellapart.features.extracted import FeatureStore, extract
from tellapart.features.imported import ImportedFeatures, features_of, find
from tellapart.models.attributes import load as load_attributes
from tellapart.models.parts import load_encoder
from tellapart.recipe import Recipe
from tellapart.rewards import registry
from tellapart.training.validation import reads_references

Source = tuple[Stores, list[Example]]  # examples of a data file, with their features if photos are seen
Origin = PhotoEncoder | ImportedFeatures | BesideRegions | AttributeSource
Encoders = Mapping[str, Origin]  # what each stream comes from


def encoders_of(recipe: Recipe, device: torch.device) -> Encoders:
    """What the recipe's streams come from: encoders, or features that were imported."""
    streams, load = recipe.streams, cache(load_detector)
    found: dict[str, Origin] = {
        name: encoder_of(recipe, name, device, load) for name in streams if name not in (BOXES, RELATIONS)
    }
    for name in streams.keys() & {BOXES, RELATIONS}:
        regions = found.get(REGIONS)
        if regions is None or isinstance(regions, BesideRegions | AttributeSource) or streams[name] != streams[REGIONS]:
            raise UserError(f"inputs.{name}: {name} belong to the regions, so both must have the same source.")
        if name == RELATIONS:
            if not isinstance(regions, ImportedFeatures):
                raise UserError("inputs.relations: only imported features have them (`tellapart features --from`).")
            found[RELATIONS] = RelationsOf(regions)
            continue
        if (
            not isinstance(regions, ImportedFeatures)
            and regions.regions != regions.config.cells + regions.config.detected
        ):
            raise UserError(f"inputs.boxes: the regions of {regions.config.name} are not the cells of a grid.")
        found[BOXES] = BoxesOf(regions)
    return {name: found[name] for name in streams}


def encoder_of(recipe: Recipe, stream: str, device: torch.device, load: Callable[[str], Any] = load_detector) -> Origin:
    """What one stream comes from, unless it is boxes or relations, which belong to regions."""
    config, root = recipe.streams[stream], Path(recipe.data.features)
    # a captioner of a plugin may take features of an encoder by this name as well
    make = load_attributes if stream == ATTRIBUTES and config.name not in ENCODERS else load_encoder
    encoder = find(root, config.name) or make(config, device)
    if config.detected and isinstance(encoder, ImportedFeatures):
        raise UserError(f"inputs.{stream}.detected: the regions of {config.name} were imported, and have boxes.")
    return DetectedRegions(encoder, load(recipe.detector)) if config.detected else encoder  # type: ignore[arg-type]


def kinds_taken(encoders: Encoders) -> tuple[Kind, ...]:
    """The kinds of items that all of them take; imported features may be of any."""
    takes = [
        getattr(encoder, "takes", ITEMS) for encoder in encoders.values() if not isinstance(encoder, ImportedFeatures)
    ]
    every: tuple[Kind, ...] = ITEMS if encoders else ()
    return tuple(kind for kind in every if all(kind in one for one in takes))


def feature_sizes(encoders: Encoders) -> dict[str, int]:
    """D of each stream."""
    return {name: encoder.feature_size for name, encoder in encoders.items()}


def identities(encoders: Encoders) -> dict[str, dict[str, Any]]:
    """What the features of each stream must share to be used together."""
    return {name: encoder.identity for name, encoder in encoders.items()}


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
    chosen: Sequence[Chosen],
    encoders: Encoders,
    root: Path,
    world: ProcessGroup = SINGLE,
    *,
    photos_once: bool = True,
) -> tuple[list[Source], list[str]]:
    """The examples of every data file with their features; those that have none are left out and named.

    encoders     none where only captions count
    root         the folder of the feature cache
    photos_once  a photo has the rows of one frame, not of as many alike as a clip has
    """
    sources, problems = list[Source](), list[str]()
    for one in chosen:
        wanted = [*one.training, *one.held_out]
        stores, failed = Stores(), dict[str, str]()
        for name, encoder in encoders.items():
            source = encoder.regions if isinstance(encoder, BesideRegions) else encoder
            source = _for_photos(source, wanted) if photos_once else source
            result = world.sequentially(partial(features_of, wanted, source, root, one.name))
            stores[name] = encoder.stored(result.store) if isinstance(encoder, BesideRegions) else result.store
            failed |= result.failed
        problems += [f"{one.file}: image {id_}: {reason}" for id_, reason in failed.items()]
        sources.append((stores, [example for example in wanted if stores.have(example)]))
    return sources, problems


def _for_photos(encoder: Any, examples: Sequence[Example]) -> Any:
    """An encoder of frames as it is, or that of its photos where no example is a clip."""
    if not isinstance(encoder, FrameEncoder) or any(named_as_clip(example.file) for example in examples):
        return encoder
    return encoder.of_photos


def use_vocabulary(sources: Sequence[Source], tokenizer: Tokenizer) -> None:
    """Attributes get the ids that their words have in a captioner's vocabulary."""
    for stores, _ in sources:
        for store in stores.values():
            if isinstance(store, AttributeStore):
                store.use(tokenizer)


def gather(recipe: Recipe, encoders: Encoders, world: ProcessGroup = SINGLE) -> tuple[list[Source], list[str]]:
    """Both at once: the examples that a recipe takes, with features, and what could not be used."""
    chosen, problems = choose(recipe, takes=kinds_taken(encoders))
    sources, more = with_features(chosen, encoders, Path(recipe.data.features), world)
    return sources, problems + more


def visits(recipe: Recipe, chosen: Sequence[Chosen], examples: Sequence[Example]) -> NDArray[np.int64]:
    """The places of the examples in an epoch: once each, or as often as the recipe repeats their data set."""
    times = recipe.data.repeat
    set_of = {id(example): one.name for one in chosen for example in one.training}
    return np.repeat(np.arange(len(examples)), [times.get(set_of.get(id(one), ""), 1) for one in examples])


def views(
    recipe: Recipe, encoders: Encoders, training: Sequence[Source], world: ProcessGroup = SINGLE
) -> list[list[Stores]]:
    """Of each source of training photos, the stores with other views of them, made now where they are missing."""
    if not recipe.data.views:
        return []
    for encoder in encoders.values():
        if isinstance(encoder, ImportedFeatures):
            raise UserError(
                f"data.views: features of {encoder.name} were imported; there is no encoder to see views with."
            )
    return [
        [
            Stores(
                (name, _views_of(stores[name], examples, encoder, number, world)) for name, encoder in encoders.items()
            )
            for number in range(1, recipe.data.views + 1)
        ]
        for stores, examples in training
    ]


def _views_of(
    store: StoredFeatures,
    examples: Sequence[Example],
    encoder: Origin,
    number: int,
    world: ProcessGroup,
) -> StoredFeatures:
    if isinstance(encoder, BesideRegions | AttributeSource):  # the cells of a grid, and the words of the whole photo
        return store
    if isinstance(encoder, FrameEncoder) and store.shape[0] != encoder.regions:
        encoder = encoder.of_photos
    return world.sequentially(partial(_view, store, examples, in_view(encoder, number)))  # type: ignore[arg-type]


def _view(store: FeatureStore, examples: Sequence[Example], encoder: PhotoEncoder) -> StoredFeatures:
    result = extract(examples, encoder, store.folder.with_name(f"{store.folder.name}-view{encoder.fit.view}"))
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
