"""tellapart train: run a recipe."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter

from tellapart import files
from tellapart.errors import UserError
from tellapart.printable import print_message, print_row
from tellapart.recipe import Recipe

if TYPE_CHECKING:
    from tellapart.training.distributed import World

EXAMPLE = """examples:
  tellapart train recipes/tiny/toy_xe.yaml --data toy/captions.json --out runs/toy_xe
  tellapart train recipes/album/plain_xe.yaml --data DATA.json --out runs/plain --optim.lr 4e-4
  tellapart train recipes/album/plain_xe.yaml --data DATA.json --out runs/plain --resume
  torchrun --nproc-per-node 2 -m tellapart train recipes/album/plain_xe.yaml --data DATA.json --out runs/plain
"""


_RECIPES = (".yaml", ".yml")
_FLAGS = ("--resume", "--tiny", "--print_config", "--help")  # options without a value


class HelpFormatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Leaves the lines of the examples as they are."""


def parse(arguments: list[str]) -> tuple[Recipe, Path, bool]:
    """The recipe with the command line's changes, the run folder, and whether to go on with the run there."""
    parser = ArgumentParser(
        prog="tellapart train",
        usage="tellapart train RECIPE.yaml [--out DIR] [--resume] [--data DATA.json ...] [--KEY VALUE ...]",
        description="Run a recipe.  Any field of a recipe can be set on the command line.",
        epilog=EXAMPLE,
        formatter_class=HelpFormatter,
        exit_on_error=False,
    )
    parser.add_argument("--recipe", action="config", help="the recipe; `--recipe` itself can be left out")
    parser.add_argument("--out", type=str, default="runs/latest", help="folder of the run (default: runs/latest)")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run that is in that folder; more epochs or max_steps make it longer",
    )
    parser.add_argument("--tiny", action="store_true", help="shrink widths and steps, to see that everything fits")
    parser.add_class_arguments(Recipe)
    try:
        request = parser.parse_args(_with_short_forms(arguments))
    except ArgumentError as error:
        raise UserError(" ".join(str(error).split())) from None
    built = parser.instantiate(request)  # the parts of a recipe as dataclasses
    recipe = Recipe(**{name: built[name] for name in Recipe.__dataclass_fields__})
    if request.tiny:
        from tellapart.training.build import shrink

        recipe = shrink(recipe)
    return recipe, Path(request.out), request.resume


def _with_short_forms(arguments: list[str]) -> list[str]:
    """`RECIPE.yaml` is --recipe, first or wherever it is nobody's value; and `--data A B` the files of the data."""
    recipes, data, rest, option = list[str](), list[str](), list[str](), ""
    for place, word in enumerate(arguments):
        bare = not word.startswith("-")
        if bare and (place == 0 or (word.lower().endswith(_RECIPES) and option in ("", "--data"))):
            recipes.append(word)
        elif bare and option == "--data":
            data.append(word)
        elif word.startswith("--data="):
            data.append(word.removeprefix("--data="))
        elif word != "--data":
            rest.append(word)
        if not bare or option != "--data":  # --data has as many values as there are, any other option one
            option = word if word.startswith("--") and "=" not in word and word not in _FLAGS else ""
    if len(recipes) > 1:
        raise UserError(f"{recipes[1]}: there are two recipes; a run has one.")
    # The recipe comes first, so that the command line has the last word.
    given = ["--recipe", _readable(recipes[0])] if recipes else []
    return given + rest + (["--data.files", json.dumps(data)] if data else [])


def _readable(recipe: str) -> str:
    """The parser does not name the file when it is no YAML."""
    try:
        content = yaml.safe_load(files.read_text(Path(recipe)))
    except yaml.YAMLError as error:
        raise UserError(f"{recipe}: this is not YAML ({' '.join(str(error).split())}).") from None
    if not isinstance(content, dict):
        raise UserError(f"{recipe}: a recipe is a YAML file of `key: value`; this one is not.")
    return recipe


def main(arguments: list[str]) -> int:
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return train(*parse(arguments))

    from tellapart.training.distributed import SharedError, World

    try:
        with World.from_environment() as world:
            with world.together():
                request = parse(arguments)
            return train(*request, world)
    except SharedError:
        if os.environ["RANK"] == "0":
            raise
        return 2


def train(recipe: Recipe, out: Path, resume: bool, world: World | None = None) -> int:
    from tellapart.training.build import run
    from tellapart.training.distributed import ALONE

    try:
        outcome = run(recipe, out, resume=resume, world=world or ALONE)
    except KeyboardInterrupt:
        print("\ntellapart train: stopped; the same command with --resume goes on from here", file=sys.stderr)
        return 130
    position = outcome.position
    for problem in outcome.problems:
        print_message(problem)
    best = ""
    if position.best is not None:
        best = f"; best {recipe.validation.metric} {position.best:.4f} at step {position.best_step}"
    print_row(f"{out}: {position.finished} after {position.step} steps, {position.seconds / 60:.1f} minutes{best}")
    return 1 if outcome.problems else 0
