"""From a recipe to a run: the one place where a recipe is unpacked.  Everything below gets plain arguments."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import random
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from tellapart import files, models
from tellapart.captioners import CAPTIONERS
from tellapart.data import examples as data_files
from tellapart.data.batches import Batch, BatchStream, CaptionedPhotos, Data
from tellapart.data.examples import Example
from tellapart.data.features import StoredFeatures
from tellapart.data.pairs import PairBatch, Pairs, Prepared
from tellapart.data.regions import Elsewhere, features_of, find
from tellapart.data.tokenizers import WordTokenizer, split_words
from tellapart.encoders import ENCODERS, PhotoEncoder
from tellapart.encoders.loading import load as load_encoder
from tellapart.errors import UserError
from tellapart.objectives import Moment, StepResult
from tellapart.objectives.contrastive import contrastive_step, info_nce, max_violation
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.objectives.policy import PolicyConfig
from tellapart.objectives.policy_gradient import PolicyGradient
from tellapart.recipe import Recipe
from tellapart.retrievers import RETRIEVERS
from tellapart.retrievers.loading import load as load_retriever
from tellapart.retrievers.loading import reader_of
from tellapart.rewards.wording import content_words
from tellapart.training import rewards
from tellapart.training.checkpoint import Keeps
from tellapart.training.distributed import ALONE, World
from tellapart.training.judges import Judge
from tellapart.training.loop import LAST, Position, Step, Validate, fit
from tellapart.training.retrieval_validation import METRICS as RETRIEVAL_METRICS
from tellapart.training.retrieval_validation import validate as validate_retriever
from tellapart.training.schedule import chance_of_own_words
from tellapart.training.validation import METRICS, validate
from tellapart.training.watch import Watch

_RANGES: dict[str, tuple[float, float]] = {  # least and most
    **dict.fromkeys(("batch_size", "epochs", "log_steps", "optim.accumulate", "optim.decay_epochs"), (1, math.inf)),
    **dict.fromkeys(("data.min_count", "data.max_words", "data.captions_per_photo"), (1, math.inf)),
    **dict.fromkeys(("validation.beam", "objective.scheduled_sampling.every"), (1, math.inf)),
    **dict.fromkeys(("max_steps", "save_minutes", "threads", "data.limit"), (0, math.inf)),
    **dict.fromkeys(("validation.every", "validation.patience", "validation.photos"), (0, math.inf)),
    **dict.fromkeys(("optim.lr", "optim.weight_decay", "optim.warmup", "optim.decay"), (0, math.inf)),
    **dict.fromkeys(("optim.clip_norm", "optim.clip_value"), (0, math.inf)),
    **dict.fromkeys(("optim.betas", "optim.final", "objective.label_smoothing"), (0, 1)),
    **dict.fromkeys(("objective.scheduled_sampling.increase", "objective.scheduled_sampling.most"), (0, 1)),
    **dict.fromkeys(("objective.policy.samples", "objective.policy.best", "objective.policy.groups"), (1, math.inf)),
    **dict.fromkeys(("objective.policy.top_k", "objective.policy.no_repeat"), (0, math.inf)),
    **dict.fromkeys(
        ("objective.policy.diversity", "objective.policy.kl", "objective.policy.references"), (0, math.inf)
    ),
    **dict.fromkeys(("objective.rewards.group", "objective.rewards.rank_base"), (1, math.inf)),
    **dict.fromkeys(("validation.watch.unique", "validation.watch.repetition", "validation.watch.ending"), (0, 1)),
    "validation.watch.length": (1, math.inf),
    "objective.policy.temperature": (1e-3, math.inf),
    "objective.policy.top_p": (1e-6, 1),
    "objective.rewards.margin": (0, 2),
    "objective.margin": (0, 2),
    "objective.all_negatives": (0, math.inf),
    "seed": (0, 2**63 - 1),
}


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
    keeps: Keeps | None = None
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
    photos = CaptionedPhotos(training, tokenizer, recipe.data.max_words)
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
    material = rewards.Material(
        recipe.objective.rewards, training, photos, tokenizer, features=cache, device=device, world=world
    )
    learn = PolicyGradient(
        captioner,
        tokenizer,
        rewards.build(material),
        recipe.objective.policy,
        max_words=recipe.data.max_words,
        content=content_words(tokenizer),
        before=frozen(captioner) if recipe.objective.policy.kl else None,
        total=world.sum,
    )
    return Parts(captioner, learn, judge, photos, problems, keeps=learn, watch=Watch(recipe.validation.watch))


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


def claim(recipe: Recipe, out: Path, resume: bool) -> bool:
    """Write the recipe into the run folder, or see that it is the one that the run was started with.

    True if there is a checkpoint to go on from.  A run that never came so far (its data were missing, say) leaves
    nothing worth keeping, so the next one may take its folder, with whatever recipe.  What the stored recipe does not
    mention is a setting that came with a later version: it was what it is by default.
    """
    file = out / "recipe.yaml"
    unfinished = set(out.glob(".tellapart-*.tmp"))  # what a kill left of a file that was being written
    if not any((out / name).exists() for name in models.WEIGHTS):
        if out.is_dir() and not file.exists() and set(out.iterdir()) - unfinished:
            raise UserError(f"{out} is not empty and holds no run; choose another --out.")
        _remove(unfinished)
        files.replace(file, (yaml.safe_dump(plain(recipe), sort_keys=False)).encode())
        return False
    if not resume:
        raise UserError(f"{out} holds a run already; --resume goes on with it, another --out starts a new one.")
    try:
        stored, now = _flat(yaml.safe_load(file.read_text(encoding="utf-8"))), _flat(plain(recipe))
    except (yaml.YAMLError, ValueError, OSError):
        raise UserError(f"{file} is damaged or missing; choose another --out.") from None
    before = _flat(plain(Recipe())) | stored
    if changed := [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]:
        key = changed[0]
        raise UserError(
            f"{out} was started with another recipe: {key} was {before.get(key)} and is {now.get(key)} now. "
            "A changed recipe needs an --out of its own."
        )
    _remove(unfinished)
    return True


def check(recipe: Recipe) -> None:
    """What a recipe's types cannot say; found now, not after an epoch."""
    values: dict[str, Any] = _flat(plain(recipe))
    for name, (least, most) in _RANGES.items():
        value = values[name]
        for number in value if isinstance(value, list) else [value]:
            if not least <= number <= most:
                meant = f"at least {least}" if number < least else f"at most {most}"
                raise UserError(f"{name} must be {meant}, not {number}.")
    if recipe.retriever and recipe.retriever not in RETRIEVERS:
        raise UserError(f"there is no retriever {recipe.retriever!r}; there are {', '.join(RETRIEVERS)}.")
    metrics = (*(RETRIEVAL_METRICS if recipe.retriever else METRICS), LAST)
    if recipe.validation.metric not in metrics:
        raise UserError(
            f"validation.metric: there is no {recipe.validation.metric!r} here; there are {', '.join(metrics)}."
        )
    objectives = RETRIEVAL_LOSSES if recipe.retriever else CAPTIONING
    if recipe.objective.name not in objectives:
        learns = f"a {'retriever' if recipe.retriever else 'captioner'} learns by {' or '.join(objectives)}"
        raise UserError(f"objective.name: {learns}, not by {recipe.objective.name}.")
    if recipe.objective.name == "policy_gradient":
        _check_policy(recipe.objective.policy)
        policy = recipe.objective.policy
        if recipe.objective.rewards.balance and policy.samples + policy.references < 2:
            raise UserError(
                "objective.rewards.balance goes by how much captions of a photo differ; samples must be 2 or more."
            )
        rewards.check(recipe.objective.rewards)
    if recipe.retriever and recipe.init_from:
        raise UserError("init_from: a retriever starts from fresh weights.")
    by_text = recipe.retriever and RETRIEVERS[recipe.retriever].sees == "references"
    if by_text and recipe.data.captions_per_photo != 2:
        raise UserError(
            f"data.captions_per_photo must be 2: {recipe.retriever} brings two captions of a photo together."
        )


def _check_policy(policy: PolicyConfig) -> None:
    where = "objective.policy"
    if policy.baseline in ("leave_one_out", "mean", "best") and policy.samples + policy.references < 2:
        raise UserError(
            f"{where}.baseline: {policy.baseline} compares the captions of a photo; samples must be 2 or more."
        )
    if policy.sampler == "greedy" and policy.samples != 1:
        raise UserError(f"{where}.samples must be 1 where captions are greedy, not {policy.samples}.")
    if policy.baseline == "best" and policy.best > policy.samples + policy.references:
        raise UserError(f"{where}.best: a photo has {policy.samples} captions, not {policy.best}.")
    if policy.sampler == "diverse_beam" and policy.samples % policy.groups:
        raise UserError(f"{where}.samples must be a multiple of groups, not {policy.samples} with {policy.groups}.")
    if policy.baseline == "second_sample" and policy.sampler != "sample":
        raise UserError(
            f"{where}.baseline: a second sample is drawn where the first is; the sampler is {policy.sampler}."
        )
    if policy.passes == "two" and (policy.no_repeat or policy.dropout):
        raise UserError(f"{where}.passes: with no_repeat or dropout, words are scored as they are drawn, in one pass.")


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


def find_tokenizer(recipe: Recipe, training: Sequence[Source], out: Path, resume: bool) -> WordTokenizer:
    """The vocabulary of the run, of the model that it starts from, or the frequent words of the training captions."""
    if resume:
        return WordTokenizer.load(out / "vocabulary.json")
    if recipe.init_from:
        return WordTokenizer.load(models.find(recipe.init_from) / "vocabulary.json")
    captions = (caption for _, examples in training for example in examples for caption in example.captions)
    tokenizer = WordTokenizer.build(captions, recipe.data.min_count)
    if len(tokenizer) == len(tokenizer.specials):
        raise UserError(f"data.min_count: no word of the training captions occurs {recipe.data.min_count} times.")
    return tokenizer


def objective(recipe: Recipe, captioner: torch.nn.Module, tokenizer: WordTokenizer) -> Step:
    """The step of the recipe's objective."""
    config = recipe.objective

    def step(batch: Batch, moment: Moment) -> StepResult:
        return cross_entropy_step(
            captioner,  # type: ignore[arg-type]
            batch,
            bos=tokenizer.bos,
            pad=tokenizer.pad,
            label_smoothing=config.label_smoothing,
            own_words=chance_of_own_words(config.scheduled_sampling, moment.epoch),
        )

    return step


CAPTIONING = ("cross_entropy", "policy_gradient")
RETRIEVAL_LOSSES = ("info_nce", "max_violation")


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


def plain(recipe: Recipe) -> dict[str, object]:
    """The recipe as YAML can hold it."""
    stored: dict[str, object] = yaml.safe_load(yaml.safe_dump(_listed(asdict(recipe))))
    return stored


def _listed(value: object) -> object:
    if isinstance(value, dict):
        return {key: _listed(part) for key, part in value.items()}
    return [_listed(part) for part in value] if isinstance(value, list | tuple) else value


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(value, dict) or prefix == "objective.rewards.terms":  # other terms are another whole, not more
        return {prefix: value}
    return {k: v for key, part in value.items() for k, v in _flat(part, f"{prefix}.{key}" if prefix else key).items()}


def _remove(leftovers: Iterable[Path]) -> None:
    for file in leftovers:
        file.unlink(missing_ok=True)


def _first(examples: list[Example], limit: int) -> list[Example]:
    return examples[:limit] if limit else examples
