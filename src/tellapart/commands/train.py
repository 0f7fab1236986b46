"""tellapart train: run a recipe."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from capscore.errors import UserError
from capscore.printable import print_message, print_problems, print_row
from tellapart import recipe_files
from tellapart.commands.arguments import Parser
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


_FLAGS = ("--resume", "--tiny", "--print_config", "--help", "-h")  # options without a value


class Request(NamedTuple):
    """The run, or chain of runs, that the command line asks for."""

    recipe: Recipe | Chain
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
    parser.options(
        """
        --recipe RECIPE     the recipe; same as RECIPE alone
        --print_config      print the whole recipe and exit
        --out DIR=runs/latest  run folder
        --resume            continue the run in that folder; a larger epochs or max_steps extends it
        --jobs N=1          parallel runs of a recipe with stages
        --tiny              a quick test run: small network, few steps; other options still count
        """
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
    if not isinstance(request.recipe, Recipe):
        raise UserError("this recipe has stages; a single run is needed.")
    return request.recipe, request.out, request.resume


def asked(arguments: list[str]) -> Request:
    """The command line's request; with --print_config, the recipe is printed and that is all."""
    options, changes = _apart(arguments)
    request = parser().parse_args(options)
    file = recipe_files.read(request.recipe) if request.recipe else None
    recipe: Recipe | Chain
    if file is not None and (file.stages is not None or file.cells):
        from tellapart.training import chain

        recipe = chain.read(file, changes)
        shown = chain.shown(recipe)
    else:
        recipe = recipe_files.filled(Recipe(), file.content if file else {})
        for name, text in changes:
            recipe = recipe_files.changed(recipe, name, text)
        shown = recipe_files.plain(recipe)
    if request.print_config:
        print(recipe_files.dump_yaml(shown), end="")
        sys.exit(0)
    if request.tiny:
        from tellapart.training import chain
        from tellapart.training.build import shrink

        small = partial(shrink, kept=_fields_of(changes))
        recipe = small(recipe) if isinstance(recipe, Recipe) else chain.smaller(recipe, small)
    if request.jobs > 1 and isinstance(recipe, Recipe):
        raise UserError("--jobs is for recipes with stages; this one is a single run.")
    return Request(recipe, request.out, request.resume, request.jobs)


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


def _apart(arguments: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Options of the command, and those that set a field of the recipe, as names and texts.

    A bare word that is no option's value is the recipe; and `--data A B` are the files of the data.
    """
    words, options, changes = list(arguments), list[str](), list[tuple[str, str]]()
    recipes, data, after_data = list[str](), list[str](), False
    while words:
        word = words.pop(0)
        option, joined, value = word.partition("=")
        name = option.removeprefix("--")
        if not word.startswith("-"):
            is_data = after_data and not word.lower().endswith(recipe_files.SUFFIXES)
            (data if is_data else recipes).append(word)
            continue  # --data has as many values as there are, any other option one
        after_data = word == "--data"
        if option == "--data":
            data += [value] if joined else []
        elif option.startswith("--") and name.split(".")[0] in Recipe.__dataclass_fields__:
            if not joined and not words:
                raise UserError(f"{option}: a value must follow.")
            changes.append((name, value if joined else words.pop(0)))
        elif option == "--recipe" and (joined or words):
            recipes.append(value if joined else words.pop(0))
        else:
            options.append(word)
            if not joined and word not in _FLAGS and words and not words[0].startswith("-"):
                options.append(words.pop(0))
    if len(recipes) > 1:
        raise UserError(f"{recipes[1]}: this is a second recipe; a run takes one.")
    options += [f"--recipe={recipe}" for recipe in recipes]
    return options, changes + ([("data.files", json.dumps(data))] if data else [])


def main(arguments: list[str]) -> int:
    if os.environ.get("WORLD_SIZE", "1") == "1":
        request = asked(arguments)
        if isinstance(request.recipe, Recipe):
            return train(request.recipe, request.out, request.resume)
        return train_chain(request.recipe, request)

    from tellapart.distributed import ProcessGroup, SharedError

    try:
        with ProcessGroup.from_environment() as world:
            with world.together():
                recipe, out, resume = parse(arguments)
            return train(recipe, out, resume, world)
    except (SharedError, KeyboardInterrupt) as end:
        if os.environ["RANK"] == "0":
            raise
        return 2 if isinstance(end, SharedError) else 130


def train(recipe: Recipe, out: Path, resume: bool, world: ProcessGroup | None = None) -> int:
    from tellapart.distributed import SINGLE
    from tellapart.training.build import run

    trained = run(recipe, out, resume=resume, world=world or SINGLE)
    code = print_problems(trained.problems)
    print_row(trained.summary)
    if trained.fault:
        print_message(f"{out}: {trained.fault}")
    return 1 if trained.fault else code


def train_chain(stages: Chain, request: Request) -> int:
    from tellapart.training import chain

    outcome = chain.run(stages, request.out, resume=request.resume, at_once=request.jobs)
    code = print_problems([*outcome.problems, *outcome.faults])
    done = "the rest is done" if outcome.faults else f"all {len(stages)} stages are done"
    print_row(f"{request.out}: {done}; {len(outcome.done)} runs and means were made now")
    return code
