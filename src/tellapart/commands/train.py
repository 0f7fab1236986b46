"""tellapart train: run a recipe."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse import ArgumentError, ArgumentParser

from tellapart.errors import UserError
from tellapart.recipe import Recipe

EXAMPLE = """examples:
  tellapart train recipes/tiny/toy_xe.yaml --out runs/toy
  tellapart train recipes/album/plain_xe.yaml --data DATA.json --out runs/plain --optim.lr 4e-4
  tellapart train recipes/album/plain_xe.yaml --data DATA.json --out runs/plain --resume
"""


def parse(arguments: list[str]) -> tuple[Recipe, Path, bool]:
    """The recipe with the command line's changes, the run folder, and whether to go on with the run there."""
    parser = ArgumentParser(
        prog="tellapart train",
        usage="tellapart train RECIPE.yaml [--out DIR] [--resume] [--data DATA.json ...] [--KEY VALUE ...]",
        description="Run a recipe.  Any field of a recipe can be set on the command line.",
        epilog=EXAMPLE,
        exit_on_error=False,
    )
    parser.add_argument("--recipe", action="config", help="the recipe; `--recipe` itself can be left out")
    parser.add_argument("--out", type=str, default="runs/latest", help="folder of the run (default: runs/latest)")
    parser.add_argument("--resume", action="store_true", help="go on with the run that is in that folder")
    parser.add_argument("--tiny", action="store_true", help="shrink widths and steps, to see that everything fits")
    parser.add_class_arguments(Recipe)
    try:
        values = parser.parse_args(_with_short_forms(arguments)).as_dict()
    except ArgumentError as error:
        raise UserError(" ".join(str(error).split())) from None
    parsed = parser.instantiate(parser.parse_args(_with_short_forms(arguments)))
    fields = {name: parsed[name] for name in Recipe.__dataclass_fields__}
    recipe = Recipe(**fields)
    if values["tiny"]:
        from tellapart.training.build import shrink

        recipe = shrink(recipe)
    return recipe, Path(values["out"]), values["resume"]


def _with_short_forms(arguments: list[str]) -> list[str]:
    """`RECIPE.yaml` first is --recipe, and `--data A B` the files of the data."""
    given, files, rest = list(arguments), [], []
    if given and not given[0].startswith("-"):
        rest += ["--recipe", given.pop(0)]
    while given:
        word = given.pop(0)
        if word.startswith("--data="):
            files.append(word.removeprefix("--data="))
        elif word == "--data":
            while given and not given[0].startswith("-"):
                files.append(given.pop(0))
        else:
            rest.append(word)
    return rest + (["--data.files", str(files)] if files else [])


def main(arguments: list[str]) -> int:
    recipe, out, resume = parse(arguments)

    from tellapart.training.build import run

    outcome = run(recipe, out, resume=resume)
    position = outcome.position
    for problem in outcome.problems:
        print(problem, file=sys.stderr)
    best = (
        f"; best {recipe.validation.metric} {position.best:.4f} at step {position.best_step}" if position.best else ""
    )
    print(f"{out}: {position.finished} after {position.step} steps, {position.seconds / 60:.1f} minutes{best}")
    return 1 if outcome.problems else 0
