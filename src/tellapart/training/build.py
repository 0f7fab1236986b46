"""From a recipe to a run: the one place where a recipe is unpacked.  Everything below gets plain arguments."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from tellapart import files, models, numerics
from tellapart.captioners import CAPTIONERS
from tellapart.data import examples as data_files
from tellapart.data.batches import Batch, BatchStream, CaptionedPhotos
from tellapart.data.examples import Example
from tellapart.data.features import FeatureStore, extract, store_folder
from tellapart.data.tokenizers import WordTokenizer
from tellapart.encoders.encoder import Encoder
from tellapart.errors import UserError
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.recipe import Recipe
from tellapart.training.loop import Position, Step, fit
from tellapart.training.schedule import chance_of_own_words
from tellapart.training.validation import METRICS, validate

_RANGES: dict[str, tuple[int, float]] = {  # least and most
    **dict.fromkeys(("batch_size", "epochs", "log_steps", "optim.accumulate", "optim.decay_epochs"), (1, math.inf)),
    **dict.fromkeys(("data.min_count", "data.max_words", "data.captions_per_photo"), (1, math.inf)),
    **dict.fromkeys(("validation.beam", "objective.scheduled_sampling.every"), (1, math.inf)),
    **dict.fromkeys(("max_steps", "save_minutes", "threads", "data.limit"), (0, math.inf)),
    **dict.fromkeys(("validation.every", "validation.patience", "validation.photos"), (0, math.inf)),
    **dict.fromkeys(("optim.lr", "optim.weight_decay", "optim.warmup", "optim.decay"), (0, math.inf)),
    **dict.fromkeys(("optim.clip_norm", "optim.clip_value"), (0, math.inf)),
    **dict.fromkeys(("optim.betas", "optim.final", "objective.label_smoothing"), (0, 1)),
    **dict.fromkeys(("objective.scheduled_sampling.increase", "objective.scheduled_sampling.most"), (0, 1)),
    "seed": (0, 2**63 - 1),
}


@dataclass
class Outcome:
    position: Position
    problems: list[str] = field(default_factory=list)  # photos and captions that could not be used


def run(recipe: Recipe, out: Path, *, resume: bool = False) -> Outcome:
    """Train as the recipe says, into the folder `out`."""
    check(recipe)
    with files.held(out, "another process is training in this folder."):
        return _run(recipe, out, resume)


def _run(recipe: Recipe, out: Path, resume: bool) -> Outcome:
    resume = claim(recipe, out, resume)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    device = numerics.choose_device(recipe.device)
    encoder = Encoder(recipe.encoder, device)
    sources, problems = gather(recipe, encoder)
    training = split(sources, recipe.data.train_split, recipe.data.limit)
    judged_by = split(sources, recipe.data.val_split, held_out(recipe))
    tokenizer = WordTokenizer.load(out / "vocabulary.json") if resume else find_tokenizer(recipe, training)

    seed_everything(recipe.seed)
    captioner = models.build_captioner(
        recipe.captioner, recipe.model, vocab_size=len(tokenizer), feature_size=encoder.feature_size
    ).to(device)
    if recipe.init_from:
        models.start_from(recipe.init_from, captioner, encoder.identity)
    models.describe(out, recipe.captioner, captioner, tokenizer, encoder.identity)

    photos = CaptionedPhotos(training, tokenizer, recipe.data.max_words)
    position = fit(
        recipe,
        out,
        model=captioner,
        step=objective(recipe, captioner, tokenizer),
        validate=partial(
            validate,
            captioner,
            CaptionedPhotos(judged_by, tokenizer, recipe.data.max_words),
            tokenizer,
            device,
            beam=recipe.validation.beam,
            max_words=recipe.data.max_words,
        ),
        stream=BatchStream(photos, recipe.batch_size, recipe.data.captions_per_photo, recipe.seed),
        device=device,
        resume=resume,
    )
    return Outcome(position, problems)


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
    if recipe.validation.metric not in METRICS:
        raise UserError(
            f"validation.metric: there is no {recipe.validation.metric!r} here; there are {', '.join(METRICS)}."
        )


def gather(recipe: Recipe, encoder: Encoder) -> tuple[list[tuple[FeatureStore, list[Example]]], list[str]]:
    """The examples of every data file, with their features; those that have none are left out and named."""
    if not recipe.data.files:
        raise UserError("the recipe names no data: give --data DATA.json, or data.files in the recipe.")
    if recipe.data.train_split == recipe.data.val_split:
        raise UserError("data.train_split and data.val_split are the same; a run is judged by photos it has not seen.")
    sources, problems, called = [], [], dict[str, str]()
    for file in recipe.data.files:
        dataset = data_files.read(Path(file))
        if dataset.name in called:
            raise UserError(
                f"{file} and {called[dataset.name]} are both called {dataset.name!r} and would share a feature cache; "
                'change "dataset" in one of them.'
            )
        called[dataset.name] = file
        if dataset.kind != "images":
            raise UserError(f"{file} has {dataset.kind}; this recipe learns from photos.")
        problems += dataset.problems
        wanted = [
            example
            for name, limit in ((recipe.data.train_split, recipe.data.limit), (recipe.data.val_split, held_out(recipe)))
            for example in _first(dataset.split(name), limit)
            if example.captions
        ]
        if not wanted:
            raise UserError(
                f"{file} has no photos with captions in the splits {recipe.data.train_split!r} and "
                f"{recipe.data.val_split!r} (its splits: {', '.join(sorted({e.split for e in dataset.examples}))})."
            )
        result = extract(wanted, encoder, store_folder(Path(recipe.data.features), dataset.name, encoder))
        problems += [f"{file}: image {id_}: {reason}" for id_, reason in result.failed.items()]
        sources.append((result.store, [example for example in wanted if example in result.store]))
    return sources, problems


def held_out(recipe: Recipe) -> int:
    """How many photos of a data file's validation split are used at most; 0: all."""
    return min((limit for limit in (recipe.validation.photos, recipe.data.limit) if limit), default=0)


def split(
    sources: Sequence[tuple[FeatureStore, Sequence[Example]]], name: str, limit: int
) -> list[tuple[FeatureStore, list[Example]]]:
    chosen = [(store, _first([e for e in examples if e.split == name], limit)) for store, examples in sources]
    if not any(examples for _, examples in chosen):
        raise UserError(f"no data file has a photo with captions and features in the split {name!r}.")
    return chosen


def find_tokenizer(recipe: Recipe, training: Sequence[tuple[FeatureStore, Sequence[Example]]]) -> WordTokenizer:
    """The vocabulary of the model that the run starts from, or the frequent words of the training captions."""
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

    def step(batch: Batch, epoch: int) -> tuple[Tensor, dict[str, float]]:
        return cross_entropy_step(
            captioner,  # type: ignore[arg-type]
            batch,
            bos=tokenizer.bos,
            pad=tokenizer.pad,
            label_smoothing=config.label_smoothing,
            own_words=chance_of_own_words(config.scheduled_sampling, epoch),
        )

    return step


def shrink(recipe: Recipe) -> Recipe:
    """The same recipe with widths and steps for a test (`--tiny`): it shows that everything fits together."""
    tiny = import_module(CAPTIONERS[recipe.captioner].module).TINY if recipe.captioner in CAPTIONERS else {}
    return replace(
        recipe,
        model=recipe.model | tiny,
        data=replace(recipe.data, limit=32, min_count=1),
        encoder=replace(recipe.encoder, image_size=64, grid=2),
        batch_size=4,
        max_steps=10,
        log_steps=1,
    )


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def plain(recipe: Recipe) -> dict[str, object]:
    """The recipe as YAML can hold it."""
    stored: dict[str, object] = yaml.safe_load(yaml.safe_dump(_listed(asdict(recipe))))
    return stored


def _listed(value: object) -> object:
    if isinstance(value, dict):
        return {key: _listed(part) for key, part in value.items()}
    return [_listed(part) for part in value] if isinstance(value, list | tuple) else value


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {k: v for key, part in value.items() for k, v in _flat(part, f"{prefix}.{key}" if prefix else key).items()}


def _remove(leftovers: Iterable[Path]) -> None:
    for file in leftovers:
        file.unlink(missing_ok=True)


def _first(examples: list[Example], limit: int) -> list[Example]:
    return examples[:limit] if limit else examples
