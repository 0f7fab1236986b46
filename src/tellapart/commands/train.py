"""tellapart train: run a recipe."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from argparse import Namespace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from capscore.errors import UserError
from capscore.printable import print_message, print_row
from tellapart import recipe_files
from tellapart.commands.arguments import Parser, positive
from tellapart.recipe import Recipe

if TYPE_CHECKING:
    from tellapart.distributed import ProcessGroup
    from tellapart.training.chain import Chain

EXAMPLE = """tellapart train tiny/toy_xe --data toy/captions.json --out runs/toy_xe
  tellapart train album/plain_xe --data DATA.json --out runs/plain --optim.lr 4e-4
  tellapart train album/plain_xe --data DATA.json --out runs/plain --resume
  tellapart train mine.yaml --out runs/mine --jobs 2            # a recipe with stages
  torchrun --nproc-per-node 2 -m tellapart train album/plain_xe --data DATA.json --out runs/plain
"""


_FLAGS = ("--resume", "--tiny", "--print_config", "--help")  # options without a value


class Request(NamedTuple):
    """What the command line asks for."""

    what: Recipe | Chain  # one run, or a chain of them
    out: Path
    resume: bool
    jobs: int


def parser() -> Parser:
    parser = Parser(
        "train",
        "Train a captioner or retriever by a recipe: a file, or a name from `tellapart models`.  "
        "Any field of a recipe can be set on the command line; the fields are listed below.",
        EXAMPLE,
    )
    parser.usage = "tellapart train RECIPE [--out DIR] [--resume] [--jobs N] [--data DATA.json ...] [--KEY VALUE ...]"
    parser.add_argument("--recipe", action="append", default=[], help="the recipe; same as RECIPE alone")
    parser.add_argument("--print_config", action="store_true", help="print the whole recipe and exit")
    parser.add_argument("--out", default="runs/latest", metavar="DIR", help="run folder (default: runs/latest)")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in that folder; a larger epochs or max_steps extends it",
    )
    parser.add_argument(
        "--jobs",
        type=positive,
        default=1,
        metavar="N",
        help="parallel runs of a recipe with stages (default: 1)",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="a quick test run: small network, few steps; other options still count"
    )
    parser.epilog = f"fields of a recipe:\n{_fields()}\n\n{parser.epilog}"
    return parser


@cache
def _fields() -> str:
    """Every field with its meaning, as options' help is laid out."""
    lines = []
    for field in recipe_files.listed(Recipe()):
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        meaning = f"{field.meaning} ({field.kind}; default: {json.dumps(default)})"
        lines.append(f"  --{field.name}")
        lines += textwrap.wrap(meaning, 79, initial_indent=" " * 24, subsequent_indent=" " * 24)
    return "\n".join(lines)


def parse(arguments: list[str]) -> tuple[Recipe, Path, bool]:
    """One run: the recipe with the command line's changes, the run folder, and whether to continue the run there."""
    request = asked(arguments)
    if not isinstance(request.what, Recipe):
        raise UserError("this recipe has stages; a single run is needed.")
    return request.what, request.out, request.resume


def asked(arguments: list[str]) -> Request:
    """What the command line asks for; with --print_config, it is shown and that is all."""
    options, changes = _apart(_with_short_forms(arguments))
    request = parser().parse_args(options)
    read = [recipe_files.read(name) for name in request.recipe]
    what: Recipe | Chain
    if any(file.stages is not None or file.cells for file in read):
        if len(read) > 1:
            raise UserError("a recipe with stages cannot be combined with another one.")
        what = _chain(read[0], changes, request)
    else:
        what = _recipe([file.content for file in read], changes, request)
        if request.jobs > 1:
            raise UserError("--jobs is for recipes with stages; this one is a single run.")
    return Request(what, Path(request.out), request.resume, request.jobs)


def _recipe(contents: list[dict[str, Any]], changes: list[tuple[str, str]], request: Namespace) -> Recipe:
    content: dict[str, Any] = {}
    for one in contents:
        content = recipe_files.merged(content, one)
    recipe = recipe_files.filled(Recipe(), content)
    for name, text in changes:
        recipe = recipe_files.changed(recipe, name, text)
    if request.print_config:
        _show(recipe_files.plain(recipe))
    if request.tiny:
        from tellapart.training.build import shrink

        recipe = shrink(recipe, _fields_of(changes))
    return recipe


def _chain(file: recipe_files.RecipeFile, changes: list[tuple[str, str]], request: Namespace) -> Chain:
    from tellapart.training import chain as stages

    chain = stages.read(file, changes)
    if request.print_config:
        _show(stages.shown(chain))
    if request.tiny:
        from tellapart.training.build import shrink

        chain = stages.smaller(chain, partial(shrink, kept=_fields_of(changes)))
    return chain


def _fields_of(changes: list[tuple[str, str]]) -> list[str]:
    """The fields that the command line sets, also where it gives several as an object."""
    names: list[str] = []
    for name, text in changes:
        try:
            value = recipe_files.parse_yaml(text, f"--{name}")
        except UserError:  # a field of type text may have any
            value = text
        names += recipe_files.flat(value, name)
    return names


def _show(values: dict[str, Any]) -> NoReturn:
    print(recipe_files.dump_yaml(values), end="")
    sys.exit(0)


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
    """A bare word that is no option's value is the recipe; and `--data A B` are the files of the data."""
    recipes, data, rest, option = list[str](), list[str](), list[str](), ""
    for place, word in enumerate(arguments):
        bare = not word.startswith("-")
        named = word.lower().endswith(recipe_files.SUFFIXES)
        if bare and (place == 0 or option == "" or (named and option == "--data")):
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
        raise UserError(f"{recipes[1]}: this is a second recipe; a run takes one.")
    # The recipe comes first, so that the command line has the last word.
    given = ["--recipe", recipes[0]] if recipes else []
    return given + rest + (["--data.files", json.dumps(data)] if data else [])


def main(arguments: list[str]) -> int:
    if os.environ.get("WORLD_SIZE", "1") == "1":
        request = asked(arguments)
        if isinstance(request.what, Recipe):
            return train(request.what, request.out, request.resume)
        return train_chain(request.what, request)

    from tellapart.distributed import ProcessGroup, SharedError

    try:
        with ProcessGroup.from_environment() as world:
            with world.together():
                recipe, out, resume = parse(arguments)
            return train(recipe, out, resume, world)
    except SharedError:
        if os.environ["RANK"] == "0":
            raise
        return 2


def train(recipe: Recipe, out: Path, resume: bool, world: ProcessGroup | None = None) -> int:
    from tellapart.distributed import SINGLE
    from tellapart.training.build import run

    try:
        outcome = run(recipe, out, resume=resume, world=world or SINGLE)
    except KeyboardInterrupt:
        return _stopped()
    for problem in outcome.problems:
        print_message(problem)
    print_row(f"{out}: {outcome.position.summary(outcome.recipe)}")
    if fault := outcome.position.fault(recipe.validation.metric):
        print_message(f"{out}: {fault}")
    return 1 if outcome.problems or fault else 0


def train_chain(stages: Chain, request: Request) -> int:
    from tellapart.training import chain

    try:
        outcome = chain.run(stages, request.out, resume=request.resume, at_once=request.jobs)
    except KeyboardInterrupt:
        return _stopped()
    for problem in outcome.problems:
        print_message(problem)
    for fault in outcome.faults:
        print_message(fault)
    done = "the rest is done" if outcome.faults else f"all {len(stages)} stages are done"
    print_row(f"{request.out}: {done}; {len(outcome.done)} runs and means were made now")
    return 1 if outcome.problems or outcome.faults else 0


def _stopped() -> int:
    print("\ntellapart train: stopped; the same command with --resume continues from here", file=sys.stderr)
    return 130
