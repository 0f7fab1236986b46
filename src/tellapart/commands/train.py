"""tellapart train: run a recipe."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart import former_names, plain_yaml, recipe_values
from tellapart.commands.arguments import Parser
from tellapart.errors import UserError
from tellapart.printable import print_message, print_row
from tellapart.recipe import Recipe

if TYPE_CHECKING:
    from tellapart.training.distributed import World

EXAMPLE = """tellapart train recipes/tiny/toy_xe.yaml --data toy/captions.json --out runs/toy_xe
  tellapart train recipes/album/plain_xe.yaml --data DATA.json --out runs/plain --optim.lr 4e-4
  tellapart train recipes/album/plain_xe.yaml --data DATA.json --out runs/plain --resume
  torchrun --nproc-per-node 2 -m tellapart train recipes/album/plain_xe.yaml --data DATA.json --out runs/plain
"""


_RECIPES = (".yaml", ".yml")
_FLAGS = ("--resume", "--tiny", "--print_config", "--help")  # options without a value


def parser() -> Parser:
    parser = Parser(
        "train", "Run a recipe.  Any field of a recipe can be set on the command line; they are listed below.", EXAMPLE
    )
    parser.usage = "tellapart train RECIPE.yaml [--out DIR] [--resume] [--data DATA.json ...] [--KEY VALUE ...]"
    parser.add_argument("--recipe", action="append", default=[], help="the recipe; `--recipe` itself can be left out")
    parser.add_argument("--print_config", action="store_true", help="print the whole recipe, and train nothing")
    parser.add_argument("--out", default="runs/latest", metavar="DIR", help="folder of the run (default: runs/latest)")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run that is in that folder; more epochs or max_steps make it longer",
    )
    parser.add_argument("--tiny", action="store_true", help="shrink widths and steps, to see that everything fits")
    parser.epilog = f"fields of a recipe:\n{_fields()}\n\n{parser.epilog}"
    return parser


@cache
def _fields() -> str:
    """Every field with its meaning, as options' help is laid out."""
    lines = []
    for field in recipe_values.listed(Recipe()):
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        meaning = f"{field.meaning} ({field.kind}; default: {json.dumps(default)})"
        lines.append(f"  --{field.name}")
        lines += textwrap.wrap(meaning, 79, initial_indent=" " * 24, subsequent_indent=" " * 24)
    return "\n".join(lines)


def parse(arguments: list[str]) -> tuple[Recipe, Path, bool]:
    """The recipe with the command line's changes, the run folder, and whether to go on with the run there."""
    options, changes = _apart(_with_short_forms(arguments))
    request = parser().parse_args(options)
    recipe = Recipe()
    for file in request.recipe:
        recipe = _read(file, recipe)
    for given, value in changes:
        name, text, notes = former_names.renewed_option(given, value)
        recipe = recipe_values.changed(recipe, name, text)
        _say(notes)
    if request.print_config:
        from tellapart.training.run_folder import plain

        print(plain_yaml.dump(plain(recipe)), end="")
        sys.exit(0)
    if request.tiny:
        from tellapart.training.build import shrink

        recipe = shrink(recipe)
    return recipe, Path(request.out), request.resume


def _apart(words: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Options of the command, and those that set a field of the recipe, as names and values."""
    given, options, changes = list(words), list[str](), list[tuple[str, str]]()
    while given:
        word = given.pop(0)
        option, joined, value = word.partition("=")
        name = option.removeprefix("--")
        if option == name or name.split(".")[0] not in Recipe.__dataclass_fields__:
            options.append(word)
        elif joined:
            changes.append((name, value))
        elif given:
            changes.append((name, given.pop(0)))
        else:
            raise UserError(f"{option}: a value must follow.")
    return options, changes


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
    given = ["--recipe", recipes[0]] if recipes else []
    return given + rest + (["--data.files", json.dumps(data)] if data else [])


def _read(file: str, recipe: Recipe) -> Recipe:
    """The recipe with what a file says in place of its own."""
    content = plain_yaml.read(Path(file))
    if content is None:
        raise UserError(f"{file}: the recipe is empty.")
    if not isinstance(content, dict):
        raise UserError(f"{file}: a recipe is a YAML file of `key: value`; this one is not.")
    try:
        content, notes = former_names.renewed(content)
        recipe = recipe_values.filled(recipe, content)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    _say(f"{file}: {note}" for note in notes)
    return recipe


def _say(notes: Iterable[str]) -> None:
    """Once, if several processes train together."""
    if os.environ.get("RANK", "0") == "0":
        for note in notes:
            print(note, file=sys.stderr)


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
