"""From a recipe to a run: the one place where a recipe is unpacked.  Everything below gets plain arguments."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tellapart import files, models
from tellapart.captioners import CAPTIONERS
from tellapart.data import tokenizers
from tellapart.data.batches import Batch, BatchStream, CaptionedPhotos, Data
from tellapart.data.pairs import PairBatch, Pairs, Prepared
from tellapart.data.tokenizers import Tokenizer, WordTokenizer
from tellapart.encoders import ENCODERS
from tellapart.errors import UserError
from tellapart.objectives import Moment, StepResult
from tellapart.objectives.contrastive import contrastive_step, info_nce, max_violation
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.objectives.policy_gradient import PolicyGradient
from tellapart.recipe import Recipe
from tellapart.retrievers import RETRIEVERS
from tellapart.retrievers.loading import load as load_retriever
from tellapart.retrievers.loading import reader_of
from tellapart.rewards.words import WordView
from tellapart.training import rewards
from tellapart.training.checkpoint import Keeps
from tellapart.training.checks import check
from tellapart.training.distributed import ALONE, World
from tellapart.training.gathering import Source, data_set_names, gather, held_out, seen_by, split, views
from tellapart.training.judges import Judge
from tellapart.training.loop import Position, Step, Validate, fit
from tellapart.training.retrieval_validation import validate as validate_retriever
from tellapart.training.run_folder import claim
from tellapart.training.schedule import chance_of_own_words
from tellapart.training.validation import validate
from tellapart.training.watch import Watch


@dataclass
class Outcome:
    position: Position
    problems: list[str] = field(default_factory=list)  # photos and captions that could not be used


def run(recipe: Recipe, out: Path, *, resume: bool = False, world: World = ALONE) -> Outcome:
    """Train as the recipe says, into the folder `out`: alone, or as one of the processes of a world."""
    with ExitStack() as held:
        with world.together():
            check(recipe)
            if world.is_first:
                held.enter_context(files.held(out, "another process is training in this folder."))
            resume = world.from_first(partial(claim, recipe, out, resume))
            if recipe.threads:
                torch.set_num_threads(recipe.threads)
            device = world.choose_device(recipe.device)
            build_parts = _retriever_parts if recipe.retriever else _captioner_parts
            parts = build_parts(recipe, out, resume, device, world)
            world.require_same("the photos and words", partial(_digest, parts))
        if not world.is_first:
            seed_everything(own_seed(recipe.seed, world.rank))
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
            ),
            device=device,
            resume=resume,
            keeps=parts.keeps,
            watch=parts.watch,
            world=world,
        )
    return Outcome(position, parts.problems)


@dataclass
class Parts:
    """What the loop needs of a captioner or a retriever."""

    network: torch.nn.Module
    step: Step
    validate: Validate
    data: Data[Any]
    problems: list[str]
    keeps: Mapping[str, Keeps] = field(default_factory=dict)
    watch: Watch | None = None


def _digest(parts: Parts) -> str:
    """What all processes must agree on: which photos there are, with which captions, and the sizes of the network."""
    photos = [[str(example.id), *example.captions] for example in parts.data.examples]
    sizes = [[name, *tensor.shape] for name, tensor in parts.network.state_dict().items()]
    return hashlib.sha256(json.dumps([photos, sizes]).encode()).hexdigest()


def _captioner_parts(recipe: Recipe, out: Path, resume: bool, device: torch.device, world: World) -> Parts:
    encoder = seen_by(recipe, device)
    sources, problems = gather(recipe, encoder, world)
    training = split(sources, recipe.data.train_split, recipe.data.limit)
    judged_by = split(sources, recipe.data.val_split, held_out(recipe))
    tokenizer = find_tokenizer(recipe, training, out, resume)

    seed_everything(recipe.seed)
    captioner = models.build_captioner(
        recipe.captioner, recipe.model, vocab_size=len(tokenizer), feature_size=encoder.feature_size
    ).to(device)
    if recipe.init_from:
        models.start_from(recipe.init_from, captioner, encoder.identity)
    if world.is_first:
        models.describe(out, recipe.captioner, captioner, tokenizer, encoder.identity)
    photos = CaptionedPhotos(training, tokenizer, recipe.data.max_words, views(recipe, encoder, training, world))
    judge = partial(
        validate,
        captioner,
        CaptionedPhotos(judged_by, tokenizer, recipe.data.max_words),
        tokenizer,
        device,
        beam=recipe.validation.beam,
        max_words=recipe.data.max_words,
        judges=world.in_turn(partial(judges, recipe.validation.judges, judged_by, device)),
        world=world,
    )
    if recipe.objective.name == "cross_entropy":
        return Parts(captioner, objective(recipe, captioner, tokenizer), judge, photos, problems)
    cache = Path(recipe.data.features)
    names = data_set_names(recipe) if recipe.objective.rewards.factors else ()
    view = WordView.of(tokenizer, (text for example in photos.examples for text in example.captions))
    material = rewards.Material(
        recipe.objective.rewards, training, photos, view, features=cache, device=device, names=names, world=world
    )
    learn = PolicyGradient(
        captioner,
        tokenizer,
        rewards.build(material),
        recipe.objective.policy,
        max_words=recipe.data.max_words,
        view=view,
        before=frozen(captioner) if recipe.objective.policy.kl else None,
        total=world.sum,
        hide_regions=recipe.objective.hide_regions,
    )
    return Parts(
        captioner, learn, judge, photos, problems, keeps={"objective": learn}, watch=Watch(recipe.validation.watch)
    )


def frozen(captioner: torch.nn.Module) -> torch.nn.Module:
    """A copy that stays as it is."""
    return copy.deepcopy(captioner).eval().requires_grad_(False)


def judges(names: Sequence[str], sources: Sequence[Any], device: torch.device) -> list[Judge]:
    """Retrievers that know the photos of these sources, by what they look like or by their references."""
    source = np.repeat(np.arange(len(sources)), [len(examples) for _, examples in sources])
    found = []
    for name in names:
        retriever = load_retriever(name, device=str(device))
        if retriever.sees == "photos":
            photos = retriever.embed_images(rewards.pooled_of(retriever, sources))
        else:
            photos = retriever.embed_references([example.captions for _, examples in sources for example in examples])
        found.append(Judge(retriever, photos, source))
    return found


def _retriever_parts(recipe: Recipe, out: Path, resume: bool, device: torch.device, world: World) -> Parts:
    entry = RETRIEVERS[recipe.retriever]
    encoder = seen_by(recipe, device) if entry.sees == "photos" else None
    sources, problems = gather(recipe, encoder, world)
    training = split(sources, recipe.data.train_split, recipe.data.limit)
    judged_by = split(sources, recipe.data.val_split, held_out(recipe))
    tokenizer = find_tokenizer(recipe, training, out, resume) if entry.reads == "words" else None
    models.refuse_sizes(recipe.model)
    settings = recipe.model | ({"feature_size": encoder.feature_size} if encoder else {})
    settings |= {"vocab_size": len(tokenizer)} if tokenizer else {}

    seed_everything(recipe.seed)
    network = models.build(RETRIEVERS, "retriever", recipe.retriever, settings).to(device)
    if world.is_first:
        models.describe(out, recipe.retriever, network, tokenizer, encoder.identity if encoder else {}, "retriever")
    reader = reader_of(recipe.retriever, tokenizer, device)

    def prepare(captions: Sequence[str]) -> Prepared:
        cache = Path(recipe.data.features)
        return world.in_turn(partial(reader.prepare, captions, max_words=recipe.data.max_words, cache=cache))

    judge = partial(validate_retriever, network, Pairs(judged_by, prepare), device)  # type: ignore[arg-type]
    return Parts(network, retrieval_objective(recipe, network, world), judge, Pairs(training, prepare), problems)


def find_tokenizer(recipe: Recipe, training: Sequence[Source], out: Path, resume: bool) -> Tokenizer:
    """The vocabulary of the run, of the model that it starts from, or the frequent words of the training captions."""
    if resume:
        return tokenizers.load(out)
    if recipe.init_from:
        return tokenizers.load(models.find(recipe.init_from))
    captions = (caption for _, examples in training for example in examples for caption in example.captions)
    tokenizer = WordTokenizer.build(captions, recipe.data.min_count)
    if len(tokenizer) == len(tokenizer.specials):
        raise UserError(f"data.min_count: no word of the training captions occurs {recipe.data.min_count} times.")
    return tokenizer


def objective(recipe: Recipe, captioner: torch.nn.Module, tokenizer: Tokenizer) -> Step:
    """The step of the recipe's objective."""
    config = recipe.objective

    def step(batch: Batch, moment: Moment) -> StepResult:
        return cross_entropy_step(
            captioner,  # type: ignore[arg-type]
            batch,
            bos=tokenizer.bos,
            label_smoothing=config.label_smoothing,
            hide_regions=config.hide_regions,
            own_words=chance_of_own_words(config.scheduled_sampling, moment.epoch),
        )

    return step


def retrieval_objective(recipe: Recipe, network: torch.nn.Module, world: World) -> Step:
    """The step of a retriever's objective."""
    config = recipe.objective

    def step(batch: PairBatch, moment: Moment) -> StepResult:
        hinge = partial(max_violation, margin=config.margin, hardest=moment.epoch >= config.all_negatives)
        loss = hinge if config.name == "max_violation" else info_nce
        return contrastive_step(network, batch, loss, world.join)  # type: ignore[arg-type]

    return step


def shrink(recipe: Recipe) -> Recipe:
    """The same recipe with widths and steps for a test (`--tiny`): it shows that everything fits together.

    It starts from fresh weights, for those of another width do not fit.
    """
    table, name = (RETRIEVERS, recipe.retriever) if recipe.retriever else (CAPTIONERS, recipe.captioner)
    tiny = import_module(table[name].module).TINY if name in table else {}
    return replace(
        recipe,
        model=recipe.model | tiny,
        data=replace(recipe.data, limit=32, min_count=1),
        encoder=replace(recipe.encoder, image_size=64, grid=2) if recipe.encoder.name in ENCODERS else recipe.encoder,
        init_from="",
        batch_size=4,
        max_steps=10,
        log_steps=1,
    )


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def own_seed(seed: int, rank: int) -> int:
    """Of what a process draws that is not the first, such as dropout."""
    return int(np.random.SeedSequence((seed, rank)).generate_state(1)[0])
