"""Recipes as files: found by path or by name, each over its base, and merged into plain values.

    base: album/plain_xe          # another recipe; what this file says has the last word
    optim: {lr: 1.0e-4}

A recipe is data that may have been downloaded.  So a base is a file beside or below the recipe, a recipe of the same
`recipes` folder, or one that ships with the package, and nothing else: no absolute path, no "..", no link that leads
out of these folders.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from capscore import files
from capscore.errors import UserError
from tellapart import plain_yaml, recipe_values
from tellapart.recipe import Recipe

SHIPPED = Path(__file__).parent / "recipes"
SUFFIXES = (".yaml", ".yml")
WHOLE = ("objective.rewards.weights", "objective.rewards.dataset_weights")  # other terms are another whole, not more
_EITHER = ("encoder", "inputs")  # two ways to say one thing
_MOST_BASES = 100
_FOLDER = "recipes"  # recipes in a folder of this name find each other by name


@dataclass(frozen=True)
class RecipeFile:
    """What a recipe file says together with its bases."""

    path: Path
    content: dict[str, Any]  # base and own values, merged
    own: dict[str, Any]  # its own values alone
    stages: list[Any] | None  # as written; none: one run


def shipped() -> dict[str, Path]:
    """The recipes of the package by name, such as tiny/photos_xe."""
    found = sorted(file for file in SHIPPED.rglob("*") if file.suffix in SUFFIXES)
    return {file.relative_to(SHIPPED).with_suffix("").as_posix(): file for file in found}


def find(name: str) -> Path:
    """The file of a recipe: a path, or the name of one that ships with the package (tiny/photos_xe)."""
    path = Path(name)
    if os.path.lexists(path) and not files.is_folder(path):
        return path
    for place in (name, name.removeprefix(f"{_FOLDER}/")):
        if (found := _beneath(SHIPPED, place)) is not None:
            return found
    if files.is_folder(path):
        raise UserError(f"{name}: this is a folder, not a recipe.")
    close = _close(name)
    if name.lower().endswith(SUFFIXES):
        raise UserError(f"{name}: there is no such file{f'; there is a recipe {close}' if close else ''}.")
    hint = f"did you mean {close}?" if close else "`tellapart models` lists them."
    raise UserError(f"there is no recipe {recipe_values.short(name)!r}; {hint}")


def read(name: str) -> RecipeFile:
    """A recipe and all that it is based on."""
    path = find(name)
    own = _read(path)
    base, stages = own.pop("base", None), own.pop("stages", None)
    _check(own, path)
    if stages == []:
        raise UserError(f"{path}: stages is empty; a chain needs at least one.")
    if stages is not None and not isinstance(stages, list):
        raise UserError(f"{path}: stages must be a list of stages, not {files.type_of(stages)}.")
    content = own if base is None else merged(based(path, base, "base"), own)
    return RecipeFile(path, content, own, stages)


def based(path: Path, name: object, field: str) -> dict[str, Any]:
    """What a recipe that another one names says, over its own bases: `base`, or the `recipe` of a stage."""
    chain, contents = [path], list[dict[str, Any]]()
    while name is not None:
        last = chain[-1]
        file = _base(last, name, field)
        if any(files.real(file) == files.real(known) for known in chain):
            around = ", ".join(str(known) for known in [*chain, file])
            raise UserError(f"{last}: {field} leads back to where it came from ({around}).")
        if len(chain) > _MOST_BASES:
            raise UserError(f"{path}: {field} has more than {_MOST_BASES} bases, one upon the other.")
        own = _read(file)
        if "stages" in own:
            raise UserError(f"{last}: {field}: {file} has stages of its own; only a single run can be built upon.")
        name, field = own.pop("base", None), "base"
        _check(own, file)
        chain.append(file)
        contents.append(own)
    content: dict[str, Any] = {}
    for own in reversed(contents):
        content = merged(content, own)
    return content


def merged(under: dict[str, Any], over: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Both together, part by part; where both say something, the second has the last word.

    The terms of a reward are one value.  So are a network's settings where the second names another network.  `inputs`
    replaces the `encoder` of a base, and `encoder` its `inputs`.
    """
    result = dict(under)
    other_network = not prefix and _network(under, over) != _network(under)
    for name, value in over.items():
        before, path = under.get(name), f"{prefix}{name}"
        apart = path in WHOLE or (path == "model" and other_network)
        if isinstance(value, dict) and isinstance(before, dict) and not apart:
            value = merged(before, value, f"{path}.")
        result[name] = value
    if not prefix:
        if "model" not in over and other_network:
            result.pop("model", None)
        for name, other in (_EITHER, _EITHER[::-1]):
            if name in over and other not in over:
                result.pop(other, None)
    return result


def _network(*contents: dict[str, Any]) -> object:
    """What is trained, the last content having the last word."""
    objectives = [content["objective"] for content in contents if isinstance(content.get("objective"), dict)]
    if [one["name"] for one in objectives if "name" in one][-1:] == ["tagging"]:
        return "tagger"
    content = {name: value for one in contents for name, value in one.items()}
    return content.get("retriever") or content.get("captioner", Recipe.captioner)


def _read(path: Path) -> dict[str, Any]:
    content = plain_yaml.read(path)
    if content is None:
        raise UserError(f"{path}: the recipe is empty.")
    if not isinstance(content, dict):
        raise UserError(f"{path}: a recipe is a YAML file of `key: value`; this one is not.")
    return content


def _check(own: dict[str, Any], path: Path) -> None:
    """Each file by itself, so that a wrong value is reported for its file."""
    try:
        recipe_values.filled(Recipe(), own)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _base(path: Path, name: object, field: str) -> Path:
    """The file that a recipe names as its base."""
    if not isinstance(name, str) or not name:
        what = "nothing" if name == "" else files.type_of(name)
        raise UserError(f"{path}: {field} must be the name of another recipe, not {what}.")
    shown = recipe_values.short(name)
    if not _stays(name):
        raise UserError(
            f"{path}: {field}: {shown!r} is not followed; it must be a file beside or below the recipe, or the name of "
            "a recipe."
        )
    above = [folder for folder in path.absolute().parents if folder.name == _FOLDER]
    for root in (path.parent, *above[:1], SHIPPED):
        if (found := _beneath(root, name)) is not None:
            return found
    close = _close(name)
    raise UserError(f"{path}: {field}: there is no recipe {shown!r}{f'; did you mean {close}?' if close else '.'}")


def _stays(name: str) -> bool:
    """Whether a name, from wherever it is looked up, cannot lead out of there."""
    path = PurePosixPath(name)
    return name.isprintable() and not (
        path.is_absolute() or ".." in path.parts or name.startswith("~") or "\\" in name or ":" in name
    )


def _beneath(root: Path, name: str) -> Path | None:
    """The recipe of that name in a folder, with or without its ending, if it is there."""
    if not _stays(name):
        return None
    endings = ("",) if name.lower().endswith(SUFFIXES) else SUFFIXES
    for path in (root / f"{name}{ending}" for ending in endings):
        if os.path.lexists(path) and not files.is_folder(path):
            return files.inside(root, str(path.relative_to(root)))
    return None


def _close(name: str) -> str | None:
    """A recipe that may have been meant: one of a similar name, in any folder."""
    known = list(shipped())
    bare = name.removeprefix(f"{_FOLDER}/").removesuffix(".yaml").removesuffix(".yml")
    return _first(difflib.get_close_matches(bare, known, n=1, cutoff=0.75)) or _first(
        one
        for stem in difflib.get_close_matches(PurePosixPath(bare).name, [PurePosixPath(k).name for k in known], n=1)
        for one in known
        if PurePosixPath(one).name == stem
    )


def _first(names: Iterable[str]) -> str | None:
    return next(iter(names), None)
