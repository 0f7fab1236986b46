"""From a recipe to a run: the one place where a recipe is unpacked.  Everything below gets plain arguments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path

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
from tellapart.training.validation import validate


@dataclass
class Outcome:
    position: Position
    problems: list[str] = field(default_factory=list)  # photos and captions that could not be used


def run(recipe: Recipe, out: Path, *, resume: bool = False) -> Outcome:
    """Train as the recipe says, into the folder `out`."""
    resume = claim(recipe, out, resume)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    device = numerics.choose_device(recipe.device)
    encoder = Encoder(recipe.encoder, device)
    sources, problems = gather(recipe, encoder)
    training = split(sources, recipe.data.train_split, recipe.data.limit)
    held_out = split(sources, recipe.data.val_split, recipe.validation.photos or recipe.data.limit)
    tokenizer = find_tokenizer(recipe, training)

    seed_everything(recipe.seed)
    captioner = models.build_captioner(
        recipe.captioner, recipe.model, vocab_size=len(tokenizer), feature_size=encoder.feature_size
    ).to(device)
    if recipe.init_from:
        models.load_weights(models.find(recipe.init_from), captioner)
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
            CaptionedPhotos(held_out, tokenizer, recipe.data.max_words),
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

    True if there is a checkpoint to go on from.
    """
    file = out / "recipe.yaml"
    if not file.exists():
        if out.is_dir() and any(out.iterdir()):
            raise UserError(f"{out} is not empty and holds no run; choose another --out.")
        files.replace(file, (yaml.safe_dump(plain(recipe), sort_keys=False)).encode())
        return False
    if not resume:
        raise UserError(f"{out} holds a run already; --resume goes on with it, another --out starts a new one.")
    before, now = _flat(yaml.safe_load(file.read_text(encoding="utf-8"))), _flat(plain(recipe))
    if changed := [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]:
        key = changed[0]
        raise UserError(
            f"{out} was started with another recipe: {key} was {before.get(key)} and is {now.get(key)} now. "
            "A changed recipe needs an --out of its own."
        )
    return (out / "last.safetensors").exists()


def gather(recipe: Recipe, encoder: Encoder) -> tuple[list[tuple[FeatureStore, list[Example]]], list[str]]:
    """The examples of every data file, with their features; those that have none are left out and named."""
    if not recipe.data.files:
        raise UserError("the recipe names no data: give --data DATA.json, or data.files in the recipe.")
    sources, problems = [], []
    for file in recipe.data.files:
        dataset = data_files.read(Path(file))
        if dataset.kind != "images":
            raise UserError(f"{file} has {dataset.kind}; this recipe learns from photos.")
        problems += dataset.problems
        wanted = [
            example
            for name in (recipe.data.train_split, recipe.data.val_split)
            for example in _first(dataset.split(name), recipe.data.limit)
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
    return WordTokenizer.build(captions, recipe.data.min_count)


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


def _first(examples: list[Example], limit: int) -> list[Example]:
    return examples[:limit] if limit else examples
