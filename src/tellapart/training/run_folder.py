"""The folder of a run: it holds the recipe that it was started with, and takes no other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from capscore import files
from capscore.errors import UserError
from tellapart import models, numerics, recipe_files
from tellapart.recipe import Recipe
from tellapart.recipe_files import flat, plain

_LENGTHS = ("epochs", "max_steps", "max_minutes")  # what a resumed run may have more of
_WRITTEN = ("recipe.yaml", "config.json", "vocabulary.json", "log.jsonl")  # before the first checkpoint


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Hold a run folder, made if need be, for this process alone.

    A run that ends before its first checkpoint leaves nothing behind: neither its files nor folders that were made for
    it.  What was there before stays.
    """
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    with files.held(out, "another process is training in this folder."):
        before = set(out.iterdir())
        try:
            yield
        except BaseException:
            if not _has_weights(out):
                _remove({out / name for name in _WRITTEN} - before)
                for folder in made:
                    with suppress(OSError):  # it is not empty
                        folder.rmdir()
            raise


def claim(recipe: Recipe, out: Path, resume: bool) -> bool:
    """Write the recipe into the run folder, or see that it is the one that the run was started with.

    True if there is a checkpoint to resume.  A run that never came so far (its data were missing, say) leaves
    nothing to keep, so the next one may take its folder, with any recipe.  What the stored recipe does not
    mention is a setting that came with a later version: it was what it is by default.  A run may get longer: more
    epochs or steps are no other recipe.
    """
    file = out / "recipe.yaml"
    unfinished = set(out.glob(".tellapart-*.tmp"))  # what a kill left of a file that was being written
    if not _has_weights(out):
        if out.is_dir() and not file.exists() and set(out.iterdir()) - unfinished:
            raise UserError(f"{out} is not empty and holds no run; choose another --out.")
        _remove(unfinished)
        keep(recipe, out)
        return False
    if not resume:
        raise UserError(f"{out} holds a run already; --resume continues it, another --out starts a new one.")
    try:
        stored, now = flat(recipe_of(out)), flat(plain(recipe))
    except UserError:
        raise UserError(f"{file} is damaged or missing; choose another --out.") from None
    before = flat(plain(Recipe())) | stored
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    for key in sorted(changed, key=_LENGTHS.__contains__):
        if key not in _LENGTHS:
            raise UserError(
                f"{out} was started with another recipe: {key} was {before.get(key)} and is {now.get(key)} now. "
                "A changed recipe needs an --out of its own."
            )
        if not _is_longer(before[key], now[key]):
            raise UserError(
                f"{out}: {key} was {before[key]} and is {now[key]} now; a resumed run can get longer, not shorter."
            )
    _remove(unfinished)
    return True


def recipe_of(run: Path) -> dict[str, Any]:
    """The fields of the recipe that a run was started with."""
    recipe: dict[str, Any] = recipe_files.read_yaml(run / "recipe.yaml")
    return recipe


def number_type(recipe: Recipe, out: Path, resume: bool, device: torch.device) -> str:
    """fp32 or bf16; a run that is resumed goes on in what it was started with, unless its recipe asks for another."""
    if resume and recipe.dtype == "auto" and _has_weights(out):
        with suppress(UserError):  # `claim` will say what is wrong with the folder
            if (before := str(recipe_of(out).get("dtype"))) in numerics.DTYPES:
                return before
    return numerics.choose_dtype(device, recipe.dtype)


def keep(recipe: Recipe, out: Path) -> None:
    """The recipe that a run goes by, in its folder."""
    file, content = out / "recipe.yaml", recipe_files.dump_yaml(plain(recipe)).encode()
    if not file.exists() or file.read_bytes() != content:
        files.replace(file, content)


def _is_longer(before: object, now: object) -> bool:
    """Of limits, of which 0 is none."""
    numbers = [limit or math.inf for limit in (before, now) if isinstance(limit, int | float)]
    return len(numbers) == 2 and numbers[0] <= numbers[1]


def _has_weights(out: Path) -> bool:
    return any((out / name).exists() for name in models.WEIGHTS)


def _remove(leftovers: Iterable[Path]) -> None:
    for file in leftovers:
        file.unlink(missing_ok=True)
