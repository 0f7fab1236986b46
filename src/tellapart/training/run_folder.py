"""The folder of a run: whose it is.  It holds the recipe that it was started with, and takes no other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tellapart import files, models, plain_yaml
from tellapart.errors import UserError
from tellapart.recipe import Recipe


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
        files.replace(file, plain_yaml.dump(plain(recipe)).encode())
        return False
    if not resume:
        raise UserError(f"{out} holds a run already; --resume goes on with it, another --out starts a new one.")
    try:
        stored, now = flat(plain_yaml.read(file)), flat(plain(recipe))
    except UserError:
        raise UserError(f"{file} is damaged or missing; choose another --out.") from None
    before = flat(plain(Recipe())) | stored
    if changed := [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]:
        key = changed[0]
        raise UserError(
            f"{out} was started with another recipe: {key} was {before.get(key)} and is {now.get(key)} now. "
            "A changed recipe needs an --out of its own."
        )
    _remove(unfinished)
    return True


def plain(recipe: Recipe) -> dict[str, object]:
    """The recipe as YAML can hold it."""
    return {name: _listed(value) for name, value in asdict(recipe).items()}


def _listed(value: object) -> object:
    if isinstance(value, dict):
        return {key: _listed(part) for key, part in value.items()}
    return [_listed(part) for part in value] if isinstance(value, list | tuple) else value


def flat(value: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(value, dict) or prefix == "objective.rewards.terms":  # other terms are another whole, not more
        return {prefix: value}
    return {k: v for key, part in value.items() for k, v in flat(part, f"{prefix}.{key}" if prefix else key).items()}


def _remove(leftovers: Iterable[Path]) -> None:
    for file in leftovers:
        file.unlink(missing_ok=True)
