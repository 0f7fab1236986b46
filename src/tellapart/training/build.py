"""From a recipe to a run: the one place where a recipe is unpacked.  Everything below gets plain arguments."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from tellapart import models, numerics, recipe_files
from tellapart.captioners import CAPTIONERS, require_agreement
from tellapart.data import tokenizers
from tellapart.data.batches import BatchStream, CaptionedPhotos, Data
from tellapart.data.pairs import PairBatch, Pairs, ReadCaptions
from tellapart.data.tokenizers import Tokenizer, WordTokenizer
from tellapart.distributed import SINGLE, ProcessGroup
from tellapart.encoders import ENCODERS
from tellapart.models.parts import carry
from tellapart.models.retrievers import reader_of
from tellapart.objectives import StepInfo, StepResult
from tellapart.objectives.caption_weights import caption_weights
from tellapart.objectives.contrastive import contrastive_step, info_nce, max_violation
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.objectives.policy_gradient import PolicyGradient
from tellapart.recipe import EncoderConfig, Recipe
from tellapart.retrievers import RETRIEVERS
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import Term, registry
from tellapart.rewards.context import RewardContext, pooled_of
from tellapart.rewards.words import WordView
from tellapart.taggers import TAGGERS
from tellapart.training import run_folder
from tellapart.training.loop import Step, Validate, fit
from tellapart.training.objectives import OBJECTIVES
from tellapart.training.optimizer import MeanWeights, chance_of_own_words
from tellapart.training.preparation import (
    Preparation,
    Source,
    check,
    held_out,
    not_learned_from,
    prepare,
    split,
    use_vocabulary,
    views,
    visits,
    vocabulary,
    with_features,
)
from tellapart.training.run_folder import Stateful, TrainedRun
from tellapart.training.validation import Judge, Watch, validate, validate_retriever

PolicyStep = TypeVar("PolicyStep", bound=PolicyGradient)


def run(recipe: Recipe, out: Path, *, resume: bool = False, world: ProcessGroup = SINGLE) -> TrainedRun:
    """Train as the recipe says, into the folder `out`: alone, or as one of the processes of a world."""
    with ExitStack() as stack:
        with world.together():
            check(recipe)
            if recipe.threads:
                stack.callback(torch.set_num_threads, torch.get_num_threads())  # for who called, it stays as it was
                torch.set_num_threads(recipe.threads)
            numerics.keep_freed_memory()
            device = world.choose_device(recipe.device)
            dtype = world.on_main(partial(run_folder.number_type, recipe, out, resume, device))
            recipe = recipe_files.with_value(recipe, "dtype", dtype)
            prepared = prepare(recipe, device, resume=resume, world=world)
            if world.is_main:
                stack.enter_context(run_folder.held(out))
            resume = world.on_main(partial(run_folder.claim, recipe, out, resume))
            parts = OBJECTIVES[recipe.objective.name].build(recipe, prepared, out, resume, device, world)
            world.require_same("the photos and words", partial(_digest, parts))
            world.on_main(partial(run_folder.keep, recipe, out))
        if not world.is_main:
            # draws, such as those of dropout, are this process's own
            seed_everything(int(np.random.SeedSequence((recipe.seed, world.rank)).generate_state(1)[0]))
        position = fit(
            recipe,
            out,
            model=parts.network,
            step=parts.step,
            validate=parts.validate,
            stream=BatchStream(
                parts.data,
                recipe.batch_size,
                recipe.data.captions_per_photo,
                recipe.seed,
                share=(world.rank, world.size),
                by_length=recipe.data.by_length,
                visits=visits(recipe.data.repeat, prepared.selections, parts.data.examples),
                repeats=recipe.objective.name != "cross_entropy",
            ),
            device=device,
            resume=resume,
            keeps=parts.keeps,
            watch=parts.watch,
            mean=parts.mean,
            world=world,
        )
    return TrainedRun(out, recipe, position, parts.problems)


@dataclass
class Parts:
    """Parts of a run that differ between captioners, retrievers and other networks."""

    network: nn.Module
    step: Step
    validate: Validate
    data: Data[Any]
    problems: list[str]
    keeps: Mapping[str, Stateful] = field(default_factory=dict)
    watch: Watch | None = None
    mean: MeanWeights | None = None  # of the weights, where the step uses it


def _digest(parts: Parts) -> str:
    """A hash of what all processes must agree on: photos, captions, and the sizes of the network."""
    photos = [[str(example.id), *example.captions] for example in parts.data.examples]
    sizes = [[name, *tensor.shape] for name, tensor in parts.network.state_dict().items()]
    return hashlib.sha256(json.dumps([photos, sizes]).encode()).hexdigest()


def captioner_parts(
    recipe: Recipe, prepared: Preparation, out: Path, resume: bool, device: torch.device, world: ProcessGroup
) -> Parts:
    streams = prepared.streams
    training, judged_by, failed = _examples(recipe, prepared, world)
    tokenizer = _tokenizer(recipe, prepared, training, failed, out, resume)
    use_vocabulary([*training, *judged_by], tokenizer)

    seed_everything(recipe.seed)
    captioner, base = _captioner(recipe, prepared, tokenizer, device)
    if world.is_main:
        models.describe(out, recipe.captioner, captioner, tokenizer, streams.identities, base=base)
        carry(streams.parts, out)
    others = views(recipe.data.views, streams, Path(recipe.data.features), prepared.selections, training, world)
    photos = CaptionedPhotos(training, tokenizer, recipe.data.max_words, others)
    if prepared.base is None and len(photos):  # by two captions of two photos, of any words
        inputs = photos.inputs(np.arange(min(2, len(photos)))).to(device)
        words = torch.arange(4 * inputs.items_count, device=device).view(-1, 2) % len(tokenizer)
        tokens = torch.cat([torch.full((len(words), 1), tokenizer.bos, device=device), words], 1)
        require_agreement(CAPTIONERS.named(recipe.captioner), captioner, inputs, tokens)
    judge = partial(
        validate,
        captioner,
        CaptionedPhotos(judged_by, tokenizer, recipe.data.max_words),
        tokenizer,
        device,
        beam=recipe.validation.beam,
        max_words=recipe.data.max_words,
        metric=recipe.validation.metric,
        judges=world.sequentially(partial(judges, list(map(prepared.load, recipe.validation.judges)), judged_by)),
        world=world,
    )
    problems = [*prepared.problems, *failed]
    names = [dataset.name for dataset in prepared.selections]
    context = partial(reward_context, recipe, tokenizer, training, photos, names=names, load=prepared.load)
    if recipe.objective.name == "cross_entropy":
        weights = recipe.objective.caption_weights
        if weights.by != "none":
            photos.weights = world.sequentially(lambda: caption_weights(weights, context(torch.device("cpu"))))
        mean = MeanWeights(captioner, recipe.optim.ema_decay) if recipe.objective.distillation else None
        return Parts(captioner, objective(recipe, captioner, tokenizer, mean), judge, photos, problems, mean=mean)
    learn = policy_step(PolicyGradient, recipe, captioner, tokenizer, context(device, world=world))
    watch = Watch(recipe.validation.watch, photos=sum(len(examples) for _, examples in judged_by))
    return Parts(captioner, learn, judge, photos, problems, keeps={"objective": learn}, watch=watch)


def _captioner(
    recipe: Recipe, prepared: Preparation, tokenizer: Tokenizer, device: torch.device
) -> tuple[nn.Module, dict[str, Any]]:
    """The network to train; and a description of the model that it is trained over, if that is frozen."""
    if prepared.base is not None:
        base: Any = prepared.base.captioner
        models.make_trainable(base, recipe.lora)
        return base, models.describe_base(recipe.init_from, prepared.base, recipe.lora)
    captioner = models.build_captioner(
        recipe.captioner, recipe.model, vocab_size=len(tokenizer), feature_sizes=prepared.streams.feature_sizes
    ).to(device)
    if recipe.init_from:
        models.start_from(recipe.init_from, captioner, prepared.streams.identities)
    return captioner, {}


def _examples(recipe: Recipe, prepared: Preparation, world: ProcessGroup) -> tuple[list[Any], list[Any], list[str]]:
    """Training photos and those that the run is judged by, with features; and the photos that have none."""
    sources, failed = with_features(prepared.selections, prepared.streams, Path(recipe.data.features), world)
    training = split(sources, recipe.data.train_split, recipe.data.limit)
    return training, split(sources, recipe.data.val_split, held_out(recipe)), failed


def judges(retrievers: Sequence[Retriever], sources: Sequence[Any]) -> list[Judge]:
    """Retrievers that know the photos of these sources, by what they look like or by their references."""
    source = np.repeat(np.arange(len(sources)), [len(examples) for _, examples in sources])
    judging = []
    for retriever in retrievers:
        if retriever.sees == "photos":
            photos = retriever.embed_images(pooled_of(retriever, sources))
        else:
            photos = retriever.embed_references([example.captions for _, examples in sources for example in examples])
        judging.append(Judge(retriever, photos, source))
    return judging


def retriever_parts(
    recipe: Recipe, prepared: Preparation, out: Path, resume: bool, device: torch.device, world: ProcessGroup
) -> Parts:
    entry, streams = RETRIEVERS[recipe.retriever], prepared.streams
    training, judged_by, failed = _examples(recipe, prepared, world)
    reads_words = entry.reads == "words"
    tokenizer = _tokenizer(recipe, prepared, training, failed, out, resume) if reads_words else None
    settings = recipe.model | models.stream_sizes(streams.feature_sizes)
    settings |= {"vocab_size": len(tokenizer)} if tokenizer else {}

    seed_everything(recipe.seed)
    network = models.build(RETRIEVERS, "retriever", recipe.retriever, settings).to(device)
    if world.is_main:
        models.describe(out, recipe.retriever, network, tokenizer, streams.identities, "retriever")
        carry(streams.parts, out)
    reader = reader_of(recipe.retriever, tokenizer, device)

    def read(captions: Sequence[str]) -> ReadCaptions:
        cache = Path(recipe.data.features)
        return world.sequentially(partial(reader.prepare, captions, max_words=recipe.data.max_words, cache=cache))

    judge = partial(validate_retriever, network, Pairs(judged_by, read), device)  # type: ignore[arg-type]
    learn = retrieval_objective(recipe, network, world)
    return Parts(network, learn, judge, Pairs(training, read), [*prepared.problems, *failed])


def _tokenizer(
    recipe: Recipe, prepared: Preparation, training: Sequence[Source], failed: Sequence[str], out: Path, resume: bool
) -> Tokenizer:
    """The vocabulary of the run, of the model that it starts from, or the frequent words of the training captions."""
    if prepared.base is not None:
        return prepared.base.tokenizer
    if resume:
        return tokenizers.load(out)
    new_words = isinstance(prepared.tokenizer, WordTokenizer) and not recipe.init_from
    if prepared.tokenizer is not None and not (new_words and failed):
        return prepared.tokenizer
    return vocabulary(recipe, [example for _, examples in training for example in examples])


def reward_context(
    recipe: Recipe,
    tokenizer: Tokenizer,
    sources: Sequence[Source],
    photos: CaptionedPhotos,
    device: torch.device,
    *,
    names: Sequence[str],
    features: Path | None = None,
    load: Callable[[str], Retriever] | None = None,
    world: ProcessGroup = SINGLE,
) -> RewardContext:
    """The context of the recipe's rewards: see there.

    photos    those of the sources, with their captions
    features  the folder of the feature cache, if it is not the recipe's
    """
    return RewardContext(
        recipe.objective.rewards,
        sources,
        photos,
        WordView.of(tokenizer, (text for example in photos.examples for text in example.captions)),
        features=features or Path(recipe.data.features),
        device=device,
        names=names,
        world=world,
        load=load,
        detector=recipe.detector,
        left_out=partial(not_learned_from, recipe),
    )


def policy_step(
    kind: type[PolicyStep],
    recipe: Recipe,
    captioner: nn.Module,
    tokenizer: Tokenizer,
    context: RewardContext,
    *,
    wrap: Callable[[str, Term], Term] | None = None,
) -> PolicyStep:
    """The step of a policy gradient as a recipe describes it, for training and for timing.

    kind  PolicyGradient, or one that also measures itself
    wrap  replaces each reward, by its name (default: none)
    """
    is_compared = recipe.objective.policy.kl > 0
    return kind(
        captioner,
        tokenizer,
        registry.build(context, wrap),
        recipe.objective.policy,
        max_words=recipe.data.max_words,
        view=context.view,
        reference_policy=copy.deepcopy(captioner).eval().requires_grad_(False) if is_compared else None,
        total=context.world.sum,
        hide_regions=recipe.objective.hide_regions,
    )


def objective(recipe: Recipe, captioner: nn.Module, tokenizer: Tokenizer, mean: MeanWeights | None = None) -> Step:
    """The step of cross-entropy; the running mean of the weights is the captioner's teacher."""
    config = recipe.objective
    return lambda batch, moment: cross_entropy_step(
        captioner,  # type: ignore[arg-type]
        batch,
        bos=tokenizer.bos,
        label_smoothing=config.label_smoothing,
        hide_regions=config.hide_regions,
        own_words=chance_of_own_words(config.scheduled_sampling, moment.epoch, moment.progress),
        distillation=config.distillation,
        as_teacher=mean.in_place if mean else None,
    )


def retrieval_objective(recipe: Recipe, network: nn.Module, world: ProcessGroup) -> Step:
    """The step of a retriever's objective."""
    config = recipe.objective

    def step(batch: PairBatch, moment: StepInfo) -> StepResult:
        hinge = partial(max_violation, margin=config.margin, hardest=moment.epoch >= config.all_negatives)
        loss = hinge if config.name == "max_violation" else info_nce
        return contrastive_step(network, batch, loss, world.join)  # type: ignore[arg-type]

    return step


def shrink(recipe: Recipe, kept: Iterable[str] = ()) -> Recipe:
    """The recipe with widths and steps for a test (`--tiny`): it shows that everything fits together.

    It starts from fresh weights, for those of another width do not fit.

    kept  fields that stay as they are: what somebody asked for beside --tiny
    """
    tagger = entry.network if (entry := OBJECTIVES.get(recipe.objective.name)) else ""
    name = tagger or recipe.retriever or recipe.captioner
    tiny: dict[str, int] = {}
    if recipe.retriever and not tagger:
        tiny = RETRIEVERS[name].tiny if name in RETRIEVERS else {}
    elif name in (table := TAGGERS if tagger else CAPTIONERS):
        tiny = import_module(table[name].module).TINY

    def shrunk(encoder: EncoderConfig) -> EncoderConfig:
        return replace(encoder, image_size=64, grid=2) if encoder.name in ENCODERS else encoder

    has_base = recipe.captioner == models.VISION_LANGUAGE
    small = replace(
        recipe,
        model=recipe.model | tiny,
        data=replace(recipe.data, limit=32, min_count=1),
        encoder=recipe.encoder if recipe.inputs else shrunk(recipe.encoder),
        inputs={name: shrunk(encoder) for name, encoder in recipe.inputs.items()},
        init_from=recipe.init_from if has_base else "",
        lora=recipe.lora if has_base else replace(recipe.lora, rank=0),
        batch_size=4,
        max_steps=10,
        log_steps=1,
    )
    values = recipe_files.flat(recipe_files.plain(recipe))
    for field_name in kept:
        small = recipe_files.with_value(small, field_name, values[field_name])
    return small


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
