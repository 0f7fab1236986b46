"""A recipe with stages: a chain of runs in one file, each of which may start from what an earlier one made.

    base: album/plain_xe
    stages:
      - name: xe
      - name: scst
        recipe: album/plain_scst          # in place of the file's own base
        init_from: xe                     # an earlier stage, or any model
        seeds: [0, 1, 2]
        mean: true                        # of the weights of its seeds
      - name: plain
        mean: {xe: 1, scst: 3}            # trains nothing: the mean of other stages, each with its share

The numbers of `seeds` are added to the command line's --seed, which so runs the whole chain with other seeds.
All other keys of a stage are those of a recipe.  What stands beside `stages` in the file holds for every stage.
Wherever a recipe names a model (init_from, encoders and taggers, the retrievers of rewards, judges), the name of an
earlier stage stands for what that stage made.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from capscore import files
from capscore.errors import UserError
from tellapart import album, recipe_values, retrievers
from tellapart.recipe import Recipe
from tellapart.recipe_files import RecipeFile, based, merged
from tellapart.training.checks import check
from tellapart.training.run_folder import plain

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # no dot: what is set aside, and the chain's own files, have one
_KEYS = ("name", "recipe", "seeds", "mean")
_MOST = 1000  # stages of a chain, or seeds of a stage


@dataclass(frozen=True)
class Stage:
    name: str
    recipe: Recipe | None  # none: only the mean of other stages; models may be the names of stages
    seeds: tuple[int, ...] = ()
    mean: bool = False  # of its seeds
    shares: Mapping[str, float] = field(default_factory=dict)  # of the stages and models that it is the mean of

    def runs(self) -> dict[str, int]:
        """Its runs, where it has several, each with its seed."""
        return {f"{self.name}/seed{seed}": seed for seed in self.seeds}

    def results(self) -> list[str]:
        """What can be named of it: the stage, and each of its runs."""
        return [self.name, *self.runs(), *[f"{self.name}/mean"] * self.mean]

    def recipe_of(self, seed: int) -> Recipe | None:
        """The recipe of one of its runs."""
        if self.recipe is None:
            return None
        return replace(self.recipe, seed=(self.recipe.seed + seed) % 2**63)  # what torch takes


@dataclass(frozen=True)
class Job:
    """One run of a chain, or one mean; `name` is also its folder inside that of the chain."""

    name: str
    number: int  # of its stage, from 1
    recipe: Recipe | None
    shares: Mapping[str, float]  # of the models that it is the mean of, by name
    uses: Mapping[str, str]  # what a model is called in the recipe or the shares: the job that makes it


Chain = list[Stage]


def read(file: RecipeFile, changes: Sequence[tuple[str, str]] = ()) -> Chain:
    """The stages of a recipe file, each with the command line's changes."""
    stages: Chain = []
    for number, given in enumerate(file.stages or [], 1):
        name = _name(given, number, file)
        if name.casefold() in (stage.name.casefold() for stage in stages):
            raise UserError(f"{file.path}: two stages are called {name}; every stage needs a name of its own.")
        try:
            stages.append(_stage(name, given, file, changes))
        except UserError as error:
            prefix = "" if str(error).startswith(str(file.path)) else f"{file.path}: stage {name}: "
            raise UserError(f"{prefix}{error}") from None
        if number > _MOST:
            raise UserError(f"{file.path}: there are more than {_MOST} stages.")
    _require_order(stages, file)
    try:
        jobs(stages)
    except UserError as error:
        raise UserError(f"{file.path}: {error}") from None
    return stages


def shown(stages: Chain) -> dict[str, Any]:
    """The chain as YAML can hold it, every stage with its whole recipe."""
    return {
        "stages": [
            {
                "name": stage.name,
                **({"seeds": list(stage.seeds)} if stage.seeds else {}),
                **({"mean": dict(stage.shares) or True} if stage.mean or stage.shares else {}),
                **_values(stage),
            }
            for stage in stages
        ]
    }


def _values(stage: Stage) -> dict[str, Any]:
    values = plain(stage.recipe) if stage.recipe else {}
    return {name: value for name, value in values.items() if name != "seed" or not stage.seeds}


def smaller(stages: Chain, shrink: Callable[[Recipe], Recipe]) -> Chain:
    """The chain with every recipe shrunk; a stage still starts from an earlier one, which is as small."""
    names = {result for stage in stages for result in stage.results()}

    def small(recipe: Recipe) -> Recipe:
        return replace(shrink(recipe), init_from=recipe.init_from if recipe.init_from in names else "")

    return [replace(stage, recipe=stage.recipe and small(stage.recipe)) for stage in stages]


def jobs(stages: Chain) -> list[Job]:
    """All runs and means of a chain, each after those that it needs."""
    found: list[Job] = []
    made: dict[str, Stage] = {}
    for number, stage in enumerate(stages, 1):
        runs: dict[str, int | None] = {**stage.runs()} or {stage.name: None}
        for name, of_run in runs.items():
            recipe = stage.recipe if of_run is None else stage.recipe_of(of_run)
            named = [*stage.shares, *(model for _, model in (models_of(recipe) if recipe else ()))]
            uses = {model: _job(model, made[model], stage, of_run) for model in named if model in made}
            found.append(Job(name, number, recipe, stage.shares, uses))
        if stage.mean:
            found.append(Job(f"{stage.name}/mean", number, None, dict.fromkeys(runs, 1.0), {run: run for run in runs}))
        made |= dict.fromkeys(stage.results(), stage)
    return found


def replaced(recipe: Recipe, models: Mapping[str, str]) -> Recipe:
    """The recipe with other names in the place of its models' names."""
    return _visited(recipe, lambda _, name: models.get(name, name))


def models_of(recipe: Recipe) -> list[tuple[str, str]]:
    """Wherever a recipe names a model that its run uses: the field, and the name."""
    named: list[tuple[str, str]] = []

    def note(place: str, name: str) -> str:
        named.append((place, name))
        return name

    _visited(recipe, note)
    return named


def _visited(recipe: Recipe, of: Callable[[str, str], str]) -> Recipe:
    """The recipe with what `of` gives for each field, and name in it, of a model that its run uses.

    This is the one list of such fields: what they name is replaced, comes first, and counts for the key of a job.
    """

    def one(place: str, name: str, used: bool = True) -> str:
        return of(place, name) if name and used else name

    def many(place: str, names: list[str], used: bool = True) -> list[str]:
        return [one(place, name, used) for name in names]

    objective, rewards = recipe.objective, recipe.objective.rewards
    policy, where = objective.name == "policy_gradient", "objective.rewards"
    between = objective.name == "cross_entropy" and objective.caption_weights.by == "cider_between"
    rewards = replace(
        rewards,
        image_retriever=one(f"{where}.image_retriever", rewards.image_retriever, policy or between),
        other_retrievers=many(f"{where}.other_retrievers", rewards.other_retrievers, policy),
        text_retriever=one(f"{where}.text_retriever", rewards.text_retriever, policy or objective.sentence_weight > 0),
    )
    encoder = recipe.encoder
    return replace(
        recipe,
        init_from=one("init_from", recipe.init_from),
        encoder=replace(encoder, name=one("encoder.name", encoder.name, not recipe.inputs)),
        inputs={
            stream: replace(source, name=one(f"inputs.{stream}.name", source.name))
            for stream, source in recipe.inputs.items()
        },
        objective=replace(objective, rewards=rewards),
        validation=replace(recipe.validation, judges=many("validation.judges", recipe.validation.judges)),
    )


def may_be_other(place: str) -> bool:
    """Whether a field also takes names of what is no model of ours: encoders, files of weights, imported features."""
    return place.startswith(("encoder.", "inputs."))


def _name(given: object, number: int, file: RecipeFile) -> str:
    where = f"{file.path}: stage {number}"
    if not isinstance(given, dict):
        raise UserError(f"{where} must be an object with a name, not {files.type_of(given)}.")
    name = given.get("name")
    if type(name) is int:
        name = str(name)
    if not isinstance(name, str):
        raise UserError(f"{where} has no name.")
    if not _NAME.fullmatch(name):
        shown = recipe_values.short(name)
        raise UserError(f"{where}: {shown!r} cannot be a stage's name: letters, digits, _ and - can, 64 at most.")
    return name


def _stage(name: str, given: dict[str, Any], file: RecipeFile, changes: Sequence[tuple[str, str]]) -> Stage:
    own = {key: value for key, value in given.items() if key not in _KEYS}
    if "base" in own or "stages" in own:
        raise UserError("a stage has neither a base nor stages; `recipe:` names the recipe that it runs.")
    mean = given.get("mean", False)
    if isinstance(mean, dict):
        if others := [key for key in given if key not in ("name", "mean")]:
            raise UserError(f"a mean of other stages trains nothing; it has no {others[0]}.")
        return Stage(name, None, shares=_shares(mean))
    if type(mean) is not bool:
        raise UserError(f"mean must be true, or stages with their shares, not {files.type_of(mean)}.")
    seeds = _seeds(given.get("seeds", []))
    recipe = _recipe(own, given.get("recipe"), file)
    for option, text in changes:
        if option == "init_from":
            raise UserError(f"--{option}: the stages of a chain say that themselves.")
        recipe = recipe_values.changed(recipe, option, text)
    if seeds and "seed" in own:
        raise UserError("it has both seed and seeds.")
    if mean and len(seeds) < 2:
        raise UserError("mean: true is the mean of its seeds; it needs two or more.")
    if mean and (recipe.retriever or not recipe.init_from):
        raise UserError("mean: there is only a mean of captioners that start from the same weights; give init_from.")
    check(recipe)
    return Stage(name, recipe, seeds, mean)


def _recipe(own: dict[str, Any], name: object, file: RecipeFile) -> Recipe:
    recipe_values.filled(Recipe(), own)  # a wrong value is the stage's own fault
    content = file.content if name is None else merged(based(file.path, name, "recipe"), file.own)
    return recipe_values.filled(Recipe(), merged(content, own))


def _seeds(given: object) -> tuple[int, ...]:
    if not isinstance(given, list) or not all(type(seed) is int and 0 <= seed < 2**63 for seed in given):
        raise UserError("seeds must be a list of whole numbers from 0 on.")
    if len(set(given)) < len(given):
        raise UserError("seeds has a number twice.")
    if len(given) > _MOST:
        raise UserError(f"there are more than {_MOST} seeds.")
    return tuple(given)


def _shares(given: dict[str, Any]) -> dict[str, float]:
    numbers = [share for share in given.values() if type(share) in (int, float) and abs(share) <= 10**6]
    if not given or len(numbers) < len(given) or sum(numbers) <= 0:
        raise UserError("mean: every stage needs a number as its share, all together above 0.")
    return {name: float(share) for name, share in given.items()}


def _require_order(stages: Chain, file: RecipeFile) -> None:
    """What a stage starts from must have been made before it."""
    for number, stage in enumerate(stages):
        before = [result for one in stages[:number] for result in one.results()]
        after = {result for one in stages[number:] for result in one.results()}
        named = models_of(stage.recipe) if stage.recipe else [("mean", name) for name in stage.shares]
        for place, model in named:
            where = f"{file.path}: stage {stage.name}: {place}"
            if model in before:
                continue
            if model in after:
                which = "the stage itself" if model in stage.results() else f"the later stage {model}"
                raise UserError(f"{where} names {which}; a stage can only use those before it.")
            if not may_be_other(place) and not _could_be_model(model):
                close = difflib.get_close_matches(model, before, n=1)
                hint = f"; did you mean {close[0]}?" if close else "."
                raise UserError(f"{where}: there is no stage or model {recipe_values.short(model)!r}{hint}")


def _could_be_model(name: str) -> bool:
    """Whether it is one, or the path of one, or may be one on the hub; paths are followed when the chain is run."""
    known = (*album.EMBEDDED, *retrievers.EMBEDDED, retrievers.MINILM)
    return name in known or "/" in name or files.is_folder(Path(name))


def _job(model: str, other: Stage, stage: Stage, number: int | None) -> str:
    """The job that makes what a stage's name stands for: its mean, its run, or its run with the same seed."""
    source, runs = other.name, list(other.runs())
    if model != source or not runs:
        return model
    if other.mean:
        return f"{source}/mean"
    if len(runs) == 1:
        return runs[0]
    if number in other.runs().values():
        return next(run for run, of_run in other.runs().items() if of_run == number)
    raise UserError(
        f"stage {stage.name}: {source} has {len(runs)} seeds and no mean; say which one ({runs[0]}), give "
        f"{source} a mean, or give {stage.name} the same seeds."
    )
