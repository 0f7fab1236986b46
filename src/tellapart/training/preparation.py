"""The beginning of a run: the data that its recipe names, with features, and all that can be wrong with either.

A wrong name in the last line of a recipe should not cost the hour that its photos take: everything is checked before
features are computed, and before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from capscore import meteor
from capscore.errors import UserError
from capscore.objects import CLASSES
from tellapart import models, recipe_files
from tellapart.captioners import CAPTIONERS, language_models
from tellapart.data import examples as data_files
from tellapart.data import tokenizers
from tellapart.data.examples import Example, Exclusion
from tellapart.data.items import KIND_OF, Kind
from tellapart.data.media.clips import named_as_clip
from tellapart.data.store import StoredFeatures, Stores
from tellapart.data.streams import ATTRIBUTES, BOXES, REGIONS, RELATIONS
from tellapart.data.tokenizers import Tokenizer, WordTokenizer
from tellapart.detectors import KINDS
from tellapart.detectors import load as load_detector
from tellapart.distributed import SINGLE, ProcessGroup
from tellapart.features.sources import Encoded, Sources, StreamSource
from tellapart.metrics import descriptions
from tellapart.models import VISION_LANGUAGE
from tellapart.models.retrievers import load as load_retriever
from tellapart.models.sources import of_stream, of_streams
from tellapart.recipe import EncoderConfig, Recipe
from tellapart.retrievers import MINILM, RETRIEVERS, readers
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import registry
from tellapart.rewards.context import text_retriever_of
from tellapart.taggers import TAGGERS
from tellapart.training.objectives import OBJECTIVES, Network
from tellapart.training.validation import (
    LAST,
    METRICS,
    RETRIEVAL_METRICS,
    lacks,
    measure_of,
    measured,
    reads_references,
)

Source = tuple[Stores, list[Example]]  # examples of a data file, with their features if photos are seen


def check(recipe: Recipe) -> None:
    """Refuses what the tables of networks, objectives, rewards and measures do not have, before data are read."""
    recipe_files.check_ranges(recipe)
    recipe.check_fields()
    if recipe.retriever and recipe.retriever not in RETRIEVERS:
        raise UserError(f"there is no retriever {recipe.retriever!r}; there are {', '.join(RETRIEVERS)}.")
    objective = OBJECTIVES.get(recipe.objective.name)
    kind: Network = "retriever" if recipe.retriever else "captioner"
    if objective is not None and objective.trains == "network":
        kind = "network"
    if objective is None or objective.trains != kind:
        learns = " or ".join(name for name, other in OBJECTIVES.items() if other.trains == kind)
        raise UserError(f"objective.name: a {kind} learns by {learns}, not by {recipe.objective.name}.")
    if kind == "retriever":
        models.check_settings(RETRIEVERS, "retriever", recipe.retriever, recipe.model)
    elif recipe.captioner == VISION_LANGUAGE and kind == "captioner":
        if not recipe.init_from:
            raise UserError("init_from: a vision_language captioner starts from a folder or hub id of transformers.")
        if recipe.model or recipe.inputs or recipe.encoder != EncoderConfig():
            raise UserError("model, encoder and inputs of a vision_language captioner are those of init_from.")
    elif kind == "captioner":
        models.check_settings(CAPTIONERS, "captioner", recipe.captioner, recipe.model)
    elif objective.network:
        models.refuse_sizes(recipe.model)
        models.check_settings(TAGGERS, "network", objective.network, recipe.model)
    _check_metric(recipe.validation.metric, RETRIEVAL_METRICS if kind == "retriever" else objective.metrics, kind)
    if recipe.objective.name == "policy_gradient":
        registry.check(recipe.objective.rewards)
        if "detector" in registry.needs_of(recipe.objective.rewards) and not recipe.detector:
            raise UserError(f"objective.rewards.weights: objects needs a detector, which --detector names: {KINDS}.")
    detected = [name for name, source in recipe.streams.items() if source.detected]
    if detected and not recipe.detector:
        raise UserError(f"inputs.{detected[0]}.detected: boxes need a detector, which --detector names: {KINDS}.")
    by_text = recipe.retriever and RETRIEVERS[recipe.retriever].sees == "references"
    if by_text and recipe.data.captions_per_photo != 2:
        raise UserError(
            f"data.captions_per_photo must be 2: {recipe.retriever} brings two captions of a photo together."
        )


def _check_metric(metric: str, reported: Sequence[str], kind: Network) -> None:
    """Refuses a metric that cannot choose the best checkpoint; a captioner's may be any score of the measure table."""
    if metric == LAST or metric in (METRICS if kind == "captioner" else reported):
        return
    measure = measure_of(metric) if kind == "captioner" else None
    if measure is None or lacks(measure):
        metrics = measured() if kind == "captioner" else [*reported, LAST]
        raise UserError(f"validation.metric: there is no {metric!r} here; there are {', '.join(metrics)}.")
    if why := measure.missing():
        raise UserError(f"validation.metric: {metric} cannot be computed: {why}")


def sources_of(recipe: Recipe, device: torch.device) -> Sources:
    """The sources of the recipe's streams."""
    # A tagger of clips takes frames in their order, and so as many of a photo.
    once = not OBJECTIVES[recipe.objective.name].network
    return of_streams(recipe.streams, Path(recipe.data.features), recipe.detector, device, photos_once=once)


@dataclass(frozen=True)
class Selection:
    """The examples of a data file that a recipe takes."""

    file: str
    name: str  # of the data set
    training: list[Example]
    held_out: list[Example]


def select(recipe: Recipe, *, takes: Collection[Kind]) -> tuple[list[Selection], list[str]]:
    """The training and held-out examples of every data file, and records that cannot be used.

    takes  the kinds of items that are learned from; without any only captions count, and records need no file
    """
    if not recipe.data.files:
        raise UserError("the recipe names no data: give --data DATA.json, or data.files in the recipe.")
    if shared := set(recipe.data.train_split.split("+")) & set(recipe.data.val_split.split("+")):
        raise UserError(
            f"data.train_split and data.val_split share {min(shared)!r}; a run is judged by photos it has not seen."
        )
    selections, problems, file_of = list[Selection](), list[str](), dict[str, str]()
    excluded = Exclusion.of_files(recipe.data.exclude)
    splits = ((recipe.data.train_split, recipe.data.limit), (recipe.data.val_split, held_out(recipe)))
    # Captions that a photo must have: none where only its look counts, two where they are brought together.
    fewest = 0 if learns_without_captions(recipe) else 1 if takes else 2
    for file in recipe.data.files:
        dataset = data_files.read(Path(file), needs_files=bool(takes))
        if dataset.name in file_of and takes:
            raise UserError(
                f"{file} and {file_of[dataset.name]} are both called {dataset.name!r} and would share a feature cache; "
                'change "dataset" in one of them.'
            )
        file_of[dataset.name] = file
        kind = KIND_OF[dataset.kind]
        if takes and kind not in takes:
            raise UserError(f"{file} has {kind}; this recipe's encoders take {' and '.join(takes)}.")
        problems += dataset.problems
        parts = list[list[Example]]()
        for split_name, limit in splits:
            examples = [e for e in in_split(dataset.examples, split_name) if not excluded.has(e, dataset.name)]
            parts.append([example for example in _first(examples, limit) if len(example.captions) >= fewest])
        training, validation = parts
        if not training and not validation:
            if not dataset.examples and dataset.problems:
                raise UserError(f"{file}: none of its records can be used; the first: {dataset.problems[0]}")
            raise UserError(
                f"{file} has no photos{('', ' with captions', ' with two captions')[fewest]} in the splits "
                f"{recipe.data.train_split!r} and {recipe.data.val_split!r} (its splits: "
                f"{', '.join(sorted({e.split for e in dataset.examples}))})."
            )
        selections.append(Selection(file, dataset.name, training, validation))
    if unknown := recipe.data.repeat.keys() - file_of.keys():
        names = ", ".join(map(repr, file_of))
        raise UserError(f"data.repeat: no data set is called {min(unknown)!r}; there are {names}.")
    what = "a photo with captions" if fewest else "a photo"
    _require(recipe.data.train_split, [selection.training for selection in selections], what)
    _require(recipe.data.val_split, [selection.held_out for selection in selections], what)
    return selections, problems


def learns_without_captions(recipe: Recipe) -> bool:
    """True where neither the rewards nor the choice of the best checkpoint read captions of the photos (DiscriTune)."""
    objective, policy = recipe.objective, recipe.objective.policy
    return (
        objective.name == "policy_gradient"
        and not policy.references
        and policy.baseline != "references"
        and "references" not in registry.needs_of(objective.rewards)
        and not reads_references(recipe.validation.metric)
    )


def with_features(
    selections: Sequence[Selection], streams: Sources, root: Path, world: ProcessGroup = SINGLE
) -> tuple[list[Source], list[str]]:
    """The examples of every data file with their features; those that have none are left out and named.

    streams  none where only captions count
    root     the folder of the feature cache
    """
    sources, problems = list[Source](), list[str]()
    for selection in selections:
        wanted = [*selection.training, *selection.held_out]
        any_clip = any(named_as_clip(example.file) for example in wanted)
        stores, failed = Stores(), dict[str, str]()
        for name, stream in streams.items():
            source = stream if any_clip else stream.of_photos()
            result = world.sequentially(partial(source.extract, wanted, root, selection.name))
            stores[name] = result.store
            failed |= result.failed
        problems += [f"{selection.file}: image {id_}: {reason}" for id_, reason in failed.items()]
        sources.append((stores, [example for example in wanted if stores.have(example)]))
    return sources, problems


def use_vocabulary(sources: Sequence[Source], tokenizer: Tokenizer) -> None:
    """Attributes get the ids that their words have in a captioner's vocabulary."""
    for stores, _ in sources:
        for store in stores.values():
            store.use(tokenizer)


def visits(
    repeat: Mapping[str, int], selections: Sequence[Selection], examples: Sequence[Example]
) -> NDArray[np.int64]:
    """The places of the examples in an epoch: once each, or as often as their data set is repeated."""
    set_of = {id(example): selection.name for selection in selections for example in selection.training}
    return np.repeat(np.arange(len(examples)), [repeat.get(set_of.get(id(example), ""), 1) for example in examples])


def views(
    count: int,
    streams: Sources,
    root: Path,
    selections: Sequence[Selection],
    training: Sequence[Source],
    world: ProcessGroup = SINGLE,
) -> list[list[Stores]]:
    """Of each source of training photos, the stores with so many other views, made now where they are missing.

    root        the folder of the feature cache
    selections  the data sets of the sources
    """
    shown = [{name: stream.view(number) for name, stream in streams.items()} for number in range(1, count + 1)]
    return [
        [
            Stores(
                (name, _view(source, stores[name], examples, root, selection.name, world))
                for name, source in view.items()
            )
            for view in shown
        ]
        for selection, (stores, examples) in zip(selections, training, strict=True)
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
    """The photos that no part of a run may learn from: excluded ones, and its own of validation and test."""
    training = set(recipe.data.train_split.split("+"))
    return [
        Exclusion.of_files(recipe.data.exclude),
        Exclusion.of_files(recipe.data.files, lambda example: example.split not in training),
    ]


def held_out(recipe: Recipe) -> int:
    """The most photos of a data file's validation split that are used; 0: all."""
    return min((limit for limit in (recipe.validation.photos, recipe.data.limit) if limit), default=0)


def in_split(examples: Sequence[Example], name: str) -> list[Example]:
    """The examples of a split, or of several that are joined by "+"."""
    names = set(name.split("+"))
    return [example for example in examples if example.split in names]


def split(sources: Sequence[Source], name: str, limit: int) -> list[Source]:
    parts = [(stores, _first(in_split(examples, name), limit)) for stores, examples in sources]
    _require(name, [examples for _, examples in parts], "a photo with captions and features")
    return parts


def _require(split: str, examples: Sequence[list[Example]], what: str) -> None:
    if not any(examples):
        raise UserError(f"no data file has {what} in the split {split!r}.")


def _first(examples: list[Example], limit: int) -> list[Example]:
    return examples[:limit] if limit else examples


_SOME_WORDS = 10  # a vocabulary's size, to see whether a network can be built


@dataclass(frozen=True)
class Preparation:
    """The data, sources and models that a run begins with."""

    streams: Sources  # none where only captions are learned from
    selections: list[Selection]
    problems: list[str]  # records of data files that cannot be used
    tokenizer: Tokenizer | None  # none where the run has one already, or needs none
    load: Callable[[str], Retriever]  # each retriever is loaded once
    base: models.Model | None = None  # what a run trains over, where that is frozen in part


def prepare(recipe: Recipe, device: torch.device, *, resume: bool = False, world: ProcessGroup = SINGLE) -> Preparation:
    """Reads what the recipe names, and refuses what does not fit together.

    resume  the run may have a vocabulary of its own
    """
    check(recipe)
    if (info := descriptions.of(recipe.validation.metric)) is not None and info.higher_is_better is None:
        raise UserError(
            f"validation.metric: {recipe.validation.metric} is neither better nor worse when it grows; "
            "it cannot say which checkpoint is the best."
        )
    load = cache(partial(load_retriever, device=str(device)))
    if recipe.retriever:
        entry = RETRIEVERS[recipe.retriever]
        if entry.reads == "sentences" and (lack := readers.lacks()) is not None:
            raise UserError(lack)
        streams = sources_of(recipe, device) if entry.sees == "photos" else Sources()
        _require_buildable(recipe, streams.feature_sizes)
        selections, problems = select(recipe, takes=streams.takes)
        new = entry.reads == "words" and not resume
        return Preparation(streams, selections, problems, _vocabulary(recipe, selections) if new else None, load)
    if recipe.lora.rank or recipe.captioner == VISION_LANGUAGE:
        base = models.load_trainable(recipe.init_from, device)
        streams = Sources({REGIONS: Encoded(base.encoder)}) if base.encoder else sources_of(recipe, device)
        if base.inputs != streams.identities:
            raise UserError(
                f"init_from: {recipe.init_from} learned from features of another encoder than the recipe's."
            )
        selections, problems = select(recipe, takes=streams.takes)
        world.sequentially(partial(_require_retrievers, recipe, selections, load))
        return Preparation(streams, selections, problems, base.tokenizer, load, base)
    streams = sources_of(recipe, device)
    if OBJECTIVES[recipe.objective.name].trains == "network":
        if recipe.objective.sentence_weight:
            world.sequentially(partial(text_retriever_of, recipe.objective.rewards, load))
        selections, problems = select(recipe, takes=streams.takes)
        return Preparation(streams, selections, problems, None, load)
    _require_buildable(recipe, streams.feature_sizes)
    tokenizer: Tokenizer | None = None
    if recipe.init_from:  # the vocabulary of the model that the run starts from, whose weights must fit
        tokenizer, sizes = tokenizers.load(models.find(recipe.init_from)), streams.feature_sizes
        started = models.build_captioner(recipe.captioner, recipe.model, vocab_size=len(tokenizer), feature_sizes=sizes)
        models.start_from(recipe.init_from, started, streams.identities)
    selections, problems = select(recipe, takes=streams.takes)
    world.sequentially(partial(_require_retrievers, recipe, selections, load))
    if tokenizer is None and recipe.data.tokenizer:
        tokenizer = tokenizers.of_language_model(Path(recipe.data.tokenizer))
    elif tokenizer is None and (language_model := recipe.model.get("language_model")):
        tokenizer = language_models.tokenizer(str(language_model))
    if tokenizer is None and not resume:
        tokenizer = _vocabulary(recipe, selections)
    return Preparation(streams, selections, problems, tokenizer, load)


def require_installed(recipe: Recipe, made: Collection[str], loaded: set[tuple[object, ...]]) -> None:
    """Refuses a recipe whose encoders, detectors, sentence encoder or METEOR are not on this machine.

    made    what earlier stages of a chain will make, by its names in the recipe
    loaded  encoders that were there, which are not loaded again
    """
    for stream, config in recipe.streams.items():
        encoder = (stream == ATTRIBUTES, config, recipe.data.features, recipe.detector)
        if config.name not in made and stream not in (BOXES, RELATIONS) and encoder not in loaded:
            of_stream(stream, config, Path(recipe.data.features), recipe.detector, torch.device("cpu"))
            loaded.add(encoder)
    rewards, weights = recipe.objective.rewards, recipe.objective.caption_weights
    retriever = RETRIEVERS.get(recipe.retriever)
    reads_sentences = retriever is not None and retriever.reads == "sentences"
    lacks = list[str | None]()
    if reads_sentences or MINILM in (rewards.text_retriever, *recipe.validation.judges):
        lacks.append(readers.lacks())
    if "meteor" in rewards.weights or (weights.by == "leave_one_out" and weights.metric == "METEOR"):
        lacks.append(meteor.available())
    for lack in filter(None, lacks):
        raise UserError(lack)


def vocabulary(recipe: Recipe, examples: Iterable[Example]) -> WordTokenizer:
    """The frequent words of captions."""
    tokenizer = WordTokenizer.build(
        (caption for example in examples for caption in example.captions), recipe.data.min_count
    )
    if len(tokenizer) == len(tokenizer.specials):
        raise UserError(f"data.min_count: no word of the training captions occurs {recipe.data.min_count} times.")
    return tokenizer


def _vocabulary(recipe: Recipe, selections: Iterable[Selection]) -> WordTokenizer:
    return vocabulary(recipe, chain.from_iterable(selection.training for selection in selections))


def _require_buildable(recipe: Recipe, sizes: Mapping[str, int]) -> None:
    """Refuses a network that there is not, or settings that it cannot have; built without memory for its weights."""
    with torch.device("meta"):
        if recipe.retriever:
            models.refuse_sizes(recipe.model)
            settings = {"vocab_size": _SOME_WORDS, **models.stream_sizes(sizes)}
            models.build(RETRIEVERS, "retriever", recipe.retriever, recipe.model | settings)
        else:
            models.build_captioner(recipe.captioner, recipe.model, vocab_size=_SOME_WORDS, feature_sizes=sizes)


def _require_retrievers(recipe: Recipe, selections: Iterable[Selection], load: Callable[[str], Retriever]) -> None:
    """Those that give rewards, and those that judge; and the detector, if a reward asks it."""
    if recipe.objective.caption_weights.by == "cider_between" and recipe.objective.name == "cross_entropy":
        load(recipe.objective.rewards.image_retriever)
    if recipe.objective.name == "policy_gradient":
        registry.require(recipe.objective.rewards, [selection.name for selection in selections], load)
        if "detector" in registry.needs_of(recipe.objective.rewards):
            load_detector(recipe.detector, CLASSES)
    for name in recipe.validation.judges:
        load(name)
