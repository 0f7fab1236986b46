"""Everything that can be wrong with a run is found here: before features are computed, and before anything is written.

A wrong name in the last line of a recipe should not cost the hour that its photos take.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path

import torch

from capscore import meteor
from capscore.errors import UserError
from capscore.objects import CLASSES
from tellapart import models
from tellapart.captioners import language_models
from tellapart.data import tokenizers
from tellapart.data.examples import Example
from tellapart.data.streams import ATTRIBUTES, BOXES, REGIONS, RELATIONS
from tellapart.data.tokenizers import Tokenizer, WordTokenizer
from tellapart.detectors import load as load_detector
from tellapart.distributed import SINGLE, ProcessGroup
from tellapart.features.sources import Encoded, Sources
from tellapart.metrics import descriptions
from tellapart.models import VISION_LANGUAGE
from tellapart.models.retrievers import load as load_retriever
from tellapart.models.sources import of_stream
from tellapart.recipe import Recipe
from tellapart.retrievers import MINILM, RETRIEVERS, readers
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import registry
from tellapart.rewards.context import text_retriever_of
from tellapart.training.checks import check
from tellapart.training.data import Chosen, choose, sources_of
from tellapart.training.objectives import OBJECTIVES

_SOME_WORDS = 10  # a vocabulary's size, to see whether a network can be built


@dataclass(frozen=True)
class Prepared:
    """What a run begins with."""

    streams: Sources  # none where only captions are learned from
    chosen: list[Chosen]
    problems: list[str]  # records of data files that cannot be used
    tokenizer: Tokenizer | None  # none where the run has one already, or needs none
    load: Callable[[str], Retriever]  # each retriever is loaded once
    base: models.Model | None = None  # what a run trains over, where that is frozen in part


def prepare(recipe: Recipe, device: torch.device, *, resume: bool = False, world: ProcessGroup = SINGLE) -> Prepared:
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
        chosen, problems = choose(recipe, takes=streams.takes)
        new = entry.reads == "words" and not resume
        return Prepared(streams, chosen, problems, _vocabulary(recipe, chosen) if new else None, load)
    if recipe.lora.rank or recipe.captioner == VISION_LANGUAGE:
        base = models.load_trainable(recipe.init_from, device)
        streams = Sources({REGIONS: Encoded(base.encoder)}) if base.encoder else sources_of(recipe, device)
        if base.inputs != streams.identities:
            raise UserError(
                f"init_from: {recipe.init_from} learned from features of another encoder than the recipe's."
            )
        chosen, problems = choose(recipe, takes=streams.takes)
        world.sequentially(partial(_require_retrievers, recipe, chosen, load))
        return Prepared(streams, chosen, problems, base.tokenizer, load, base)
    streams = sources_of(recipe, device)
    if OBJECTIVES[recipe.objective.name].trains == "network":
        if recipe.objective.sentence_weight:
            world.sequentially(partial(text_retriever_of, recipe.objective.rewards, load))
        chosen, problems = choose(recipe, takes=streams.takes)
        return Prepared(streams, chosen, problems, None, load)
    _require_buildable(recipe, streams.feature_sizes)
    tokenizer = _begins_with(recipe, streams) if recipe.init_from else None
    chosen, problems = choose(recipe, takes=streams.takes)
    world.sequentially(partial(_require_retrievers, recipe, chosen, load))
    if tokenizer is None and recipe.data.tokenizer:
        tokenizer = tokenizers.of_language_model(Path(recipe.data.tokenizer))
    elif tokenizer is None and (language_model := recipe.model.get("language_model")):
        tokenizer = language_models.tokenizer(str(language_model))
    if tokenizer is None and not resume:
        tokenizer = _vocabulary(recipe, chosen)
    return Prepared(streams, chosen, problems, tokenizer, load)


def require_installed(recipe: Recipe, made: Collection[str], loaded: set[tuple[object, ...]]) -> None:
    """Refuses a recipe whose encoders, detectors, sentence encoder or METEOR are not on this machine.

    made    what earlier stages of a chain will make, by its names in the recipe
    loaded  encoders that were there, which are not loaded again
    """
    for stream, one in recipe.streams.items():
        encoder = (stream == ATTRIBUTES, one, recipe.data.features, recipe.detector)
        if one.name not in made and stream not in (BOXES, RELATIONS) and encoder not in loaded:
            of_stream(stream, one, Path(recipe.data.features), recipe.detector, torch.device("cpu"))
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


def _vocabulary(recipe: Recipe, chosen: Iterable[Chosen]) -> WordTokenizer:
    return vocabulary(recipe, chain.from_iterable(one.training for one in chosen))


def _require_buildable(recipe: Recipe, sizes: Mapping[str, int]) -> None:
    """Whether there is such a network with such settings; built without memory for its weights."""
    with torch.device("meta"):
        if recipe.retriever:
            models.refuse_sizes(recipe.model)
            settings = {"vocab_size": _SOME_WORDS, **models.stream_sizes(sizes)}
            models.build(RETRIEVERS, "retriever", recipe.retriever, recipe.model | settings)
        else:
            models.build_captioner(recipe.captioner, recipe.model, vocab_size=_SOME_WORDS, feature_sizes=sizes)


def _begins_with(recipe: Recipe, streams: Sources) -> Tokenizer:
    """The vocabulary of the model that a run starts from, whose weights must fit."""
    tokenizer = tokenizers.load(models.find(recipe.init_from))
    captioner = models.build_captioner(
        recipe.captioner, recipe.model, vocab_size=len(tokenizer), feature_sizes=streams.feature_sizes
    )
    models.start_from(recipe.init_from, captioner, streams.identities)
    return tokenizer


def _require_retrievers(recipe: Recipe, chosen: Iterable[Chosen], load: Callable[[str], Retriever]) -> None:
    """Those that give rewards, and those that judge; and the detector, if a reward asks it."""
    if recipe.objective.caption_weights.by == "cider_between" and recipe.objective.name == "cross_entropy":
        load(recipe.objective.rewards.image_retriever)
    if recipe.objective.name == "policy_gradient":
        registry.require(recipe.objective.rewards, [one.name for one in chosen], load)
        if "detector" in registry.needs_of(recipe.objective.rewards):
            load_detector(recipe.detector, CLASSES)
    for name in recipe.validation.judges:
        load(name)
