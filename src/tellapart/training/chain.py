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

The numbers of `seeds` are added to the command line's --seed, which so runs the whole chain with other seeds.  All
other keys of a stage are those of a recipe.  What stands beside `stages` in the file holds for every stage.  Wherever a
recipe names a model or an encoder, the name of an earlier stage stands for what that stage made.  The cells of a grid
are stages as well.

The stages run one after another, or those that do not need each other at once.  A job (a run, or a mean) is known by a
key: the hash of its resolved recipe, of the contents of all that the recipe names, and of the keys of the jobs that it
uses.  What is done and has the same key is not done again.  What has another key now is set aside, never deleted, and
run again, and so is everything that uses it.  DIR/chain.json keeps the keys.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from capscore import files
from capscore.errors import UserError
from capscore.progress import notice
from tellapart import album, hub, journals, models, plugins, recipe_files, retrievers
from tellapart.encoders import bundled_files
from tellapart.models import averaging
from tellapart.recipe import Recipe, Reference, references, renamed
from tellapart.recipe_files import RecipeFile, merged, plain
from tellapart.training import build, run_folder
from tellapart.training.preparation import check, require_installed

RECORD, LOGS = "chain.json", "chain.logs"
_FORMAT = 1
_KEYS = ("name", "recipe", "seeds", "mean")
_MOST = 1000  # stages of a chain, or seeds of a stage


# Stages


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
        """All names of what it makes: the stage, and each of its runs."""
        return [self.name, *self.runs(), *[f"{self.name}/mean"] * self.mean]

    def references(self) -> list[Reference]:
        if self.recipe is None:
            return [Reference("mean", name, "model") for name in self.shares]
        return references(self.recipe)


Chain = list[Stage]


def read(file: RecipeFile, changes: Sequence[tuple[str, str]] = ()) -> Chain:
    """The stages of a recipe file, each with the command line's changes."""
    stages: Chain = []
    for name, values in _stages_of(file):
        if name.casefold() in (stage.name.casefold() for stage in stages):
            raise UserError(f"{file.place}: two stages are called {name}; every stage needs a name of its own.")
        try:
            stages.append(_stage(name, values, file, changes))
        except UserError as error:
            prefix = "" if str(error).startswith(str(file.place)) else f"{file.place}: stage {name}: "
            raise UserError(f"{prefix}{error}") from None
        if len(stages) > _MOST:
            raise UserError(f"{file.place}: there are more than {_MOST} stages.")
    _require_order(stages, file)
    try:
        jobs(stages)
    except UserError as error:
        raise UserError(f"{file.place}: {error}") from None
    return stages


def shown(stages: Chain) -> dict[str, Any]:
    """The chain as YAML can hold it, every stage with its whole recipe."""
    listed = []
    for stage in stages:
        values: dict[str, Any] = {"name": stage.name}
        values |= {"seeds": list(stage.seeds)} if stage.seeds else {}
        values |= {"mean": dict(stage.shares) or True} if stage.mean or stage.shares else {}
        recipe = plain(stage.recipe) if stage.recipe else {}
        listed.append(values | {name: value for name, value in recipe.items() if name != "seed" or not stage.seeds})
    return {"stages": listed}


def smaller(stages: Chain, shrink: Callable[[Recipe], Recipe]) -> Chain:
    """The chain with every recipe shrunk; a stage still starts from an earlier one, which is as small."""
    names = {result for stage in stages for result in stage.results()}

    def small(recipe: Recipe) -> Recipe:
        return replace(shrink(recipe), init_from=recipe.init_from if recipe.init_from in names else "")

    return [replace(stage, recipe=stage.recipe and small(stage.recipe)) for stage in stages]


def _stages_of(file: RecipeFile) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each stage with its values; those of a cell are whole."""
    yield from file.cells.items()
    for number, values in enumerate(file.stages or [], 1):
        where = f"{file.place}: stage {number}"
        if not isinstance(values, dict):
            raise UserError(f"{where} must be an object with a name, not {files.type_of(values)}.")
        name = values.get("name")
        name = str(name) if type(name) is int else name
        if not isinstance(name, str):
            raise UserError(f"{where} has no name.")
        if not recipe_files.LABEL.fullmatch(name):
            shown = recipe_files.short(name)
            raise UserError(f"{where}: {shown!r} cannot be a stage's name: letters, digits, _ and - can, 64 at most.")
        yield name, values


def _stage(name: str, values: dict[str, Any], file: RecipeFile, changes: Sequence[tuple[str, str]]) -> Stage:
    of_recipe = {key: value for key, value in values.items() if key not in _KEYS}
    if "base" in of_recipe or "stages" in of_recipe:
        raise UserError("a stage has neither a base nor stages; `recipe:` names the recipe that it runs.")
    mean = values.get("mean", False)
    if isinstance(mean, dict):
        if others := [key for key in values if key not in ("name", "mean")]:
            raise UserError(f"a mean of other stages trains nothing; it has no {others[0]}.")
        numbers = [share for share in mean.values() if type(share) in (int, float) and abs(share) <= 10**6]
        if not mean or len(numbers) < len(mean) or sum(numbers) <= 0:
            raise UserError("mean: every stage needs a number as its share, all together above 0.")
        return Stage(name, None, shares={of: float(share) for of, share in mean.items()})
    if type(mean) is not bool:
        raise UserError(f"mean must be true, or stages with their shares, not {files.type_of(mean)}.")
    seeds = _seeds(values.get("seeds", []))
    recipe_files.filled(Recipe(), of_recipe)  # a wrong value is the stage's own fault
    base = values.get("recipe")
    content = file.content if base is None else merged(recipe_files.based(file.place, base, "recipe"), file.values)
    recipe = recipe_files.filled(Recipe(), merged(content, of_recipe))
    if file.runs:
        recipe = renamed(recipe, {f"{file.runs}/{cell}": cell for cell in file.cells})
    for option, text in changes:
        if option == "init_from":
            raise UserError(f"--{option}: the stages of a chain say that themselves.")
        recipe = recipe_files.changed(recipe, option, text)
    if seeds and "seed" in of_recipe:
        raise UserError("it has both seed and seeds.")
    if mean and len(seeds) < 2:
        raise UserError("mean: true is the mean of its seeds; it needs two or more.")
    if mean and (recipe.retriever or not recipe.init_from):
        raise UserError("mean: there is only a mean of captioners that start from the same weights; give init_from.")
    check(recipe)
    return Stage(name, recipe, seeds, mean)


def _seeds(values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(seed) is int and 0 <= seed < 2**63 for seed in values):
        raise UserError("seeds must be a list of whole numbers from 0 on.")
    if len(set(values)) < len(values):
        raise UserError("seeds has a number twice.")
    if len(values) > _MOST:
        raise UserError(f"there are more than {_MOST} seeds.")
    return tuple(values)


def _require_order(stages: Chain, file: RecipeFile) -> None:
    """Refuses a stage that uses one that is not before it."""
    for number, stage in enumerate(stages):
        before = [result for other in stages[:number] for result in other.results()]
        after = {result for other in stages[number:] for result in other.results()}
        for place, name, kind in stage.references():
            where = f"{file.place}: stage {stage.name}: {place}"
            if name in before or kind not in ("model", "encoder"):
                continue
            if name in after:
                which = "the stage itself" if name in stage.results() else f"the later stage {name}"
                raise UserError(f"{where} names {which}; a stage can only use those before it.")
            # an embedded model, a path, or what may be on the hub; paths are followed when the chain is run
            embedded = (*album.EMBEDDED, *retrievers.EMBEDDED, retrievers.MINILM)
            if kind == "model" and not (name in embedded or "/" in name or files.is_folder(Path(name))):
                close = difflib.get_close_matches(name, before, n=1)
                hint = f"; did you mean {close[0]}?" if close else "."
                raise UserError(f"{where}: there is no stage or model {recipe_files.short(name)!r}{hint}")


# Jobs and their keys


@dataclass(frozen=True)
class Job:
    """One run of a chain, or one mean; `name` is also its folder inside that of the chain."""

    name: str
    number: int  # of its stage, from 1
    recipe: Recipe | None
    shares: Mapping[str, float]  # of the models that it is the mean of, by name
    uses: Mapping[str, str]  # what a model is called in the recipe or the shares: the job that makes it


def jobs(stages: Chain) -> list[Job]:
    """All runs and means of a chain, each after those that it needs."""
    listed: list[Job] = []
    made: dict[str, Stage] = {}
    for number, stage in enumerate(stages, 1):
        runs: dict[str, int | None] = {**stage.runs()} or {stage.name: None}
        for name, seed in runs.items():
            recipe = stage.recipe
            if recipe is not None and seed is not None:
                recipe = replace(recipe, seed=(recipe.seed + seed) % 2**63)  # what torch takes
            used = [at.name for at in stage.references() if at.kind in ("model", "encoder") and at.name in made]
            uses = {model: _maker(model, made[model], stage, seed) for model in used}
            listed.append(Job(name, number, recipe, stage.shares, uses))
        if stage.mean:
            listed.append(Job(f"{stage.name}/mean", number, None, dict.fromkeys(runs, 1.0), {run: run for run in runs}))
        made |= dict.fromkeys(stage.results(), stage)
    return listed


def _maker(model: str, other: Stage, stage: Stage, seed: int | None) -> str:
    """The job that makes what a stage's name stands for: its mean, its run, or its run with the same seed."""
    source, runs = other.name, list(other.runs())
    if model != source or not runs:
        return model
    if other.mean or len(runs) == 1:
        return f"{source}/mean" if other.mean else runs[0]
    if seed in other.seeds:
        return f"{source}/seed{seed}"
    raise UserError(
        f"stage {stage.name}: {source} has {len(runs)} seeds and no mean; say which one ({runs[0]}), give "
        f"{source} a mean, or give {stage.name} the same seeds."
    )


def keys_of(jobs: list[Job]) -> dict[str, str]:
    """A hash of what each job is made from."""
    hashes: dict[Path, str] = {}
    keys: dict[str, str] = {}

    def hashed(file: Path) -> str:
        if file not in hashes:
            hashes[file] = hashlib.sha256(files.read_bytes(file)).hexdigest()
        return hashes[file]

    for job in jobs:
        if job.recipe is None:
            content: object = dict(job.shares)
            named = [Reference("mean", name, "model") for name in job.shares]
        else:
            content, named = plain(job.recipe), references(job.recipe)
        contents = {at.name: [hashed(file) for file in _files_of(at)] for at in named if at.name not in job.uses}
        parts = [{name: keys[made] for name, made in job.uses.items()}, content, contents]
        keys[job.name] = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return keys


def _files_of(at: Reference) -> list[Path]:
    """The files of what a recipe names, as far as they are on this machine; a data file or model must exist."""
    path = Path(at.name)
    if at.kind == "data":
        return [] if files.is_folder(path) else [path]
    if at.kind == "model":
        path = album.EMBEDDED.get(at.name) or retrievers.EMBEDDED.get(at.name) or path
        if not files.is_folder(path) and at.name != retrievers.MINILM and not hub.could_be(at.name):
            raise UserError(f"{at.name}: there is no such model, and no stage makes it.")
    if at.kind == "encoder" and (bundled := bundled_files(at.name)):
        return bundled
    if files.is_file(path):
        return [path]
    weights = next((path / file for file in models.WEIGHTS if files.is_file(path / file)), None)
    parts = [*(path / part for part in ("config.json", "vocabulary.json", "tokenizer.json")), weights]
    return [file for file in parts if file is not None and files.is_file(file)]


# Running


@dataclass
class Outcome:
    done: list[str] = field(default_factory=list)  # a line for each job that was run now
    problems: list[str] = field(default_factory=list)  # photos and captions that could not be used
    faults: list[str] = field(default_factory=list)  # runs whose model is not what it was trained for


def run(chain: Chain, out: Path, *, resume: bool, at_once: int = 1) -> Outcome:
    """Train all stages into folders of `out`; stops at the first failure.

    A run that never is better than its start, or collapses, holds up what would use it, and nothing else.

    at_once  how many jobs may run at the same time, each in a process of its own
    """
    listed = jobs(chain)
    keys = keys_of(listed)
    with journals.held(out, "another process is training in this folder."):
        record = Record(out, resume)
        queue = Queue(listed, keys, record, out, len(chain))
        for job in listed:
            if record.is_done(job.name, keys[job.name]):
                notice(f"{queue.title(job)}: done already.")
        queue.require_installed()
        with _one_thread_each() if at_once > 1 else nullcontext():
            _work(queue, at_once)
    queue.outcome.faults = queue.faults()
    return queue.outcome


class Record:
    """DIR/chain.json: what was begun and done, each with its key."""

    def __init__(self, out: Path, resume: bool):
        self._out, self._file = out, out / RECORD
        self._runs: dict[str, dict[str, Any]] = {}
        if self._file.exists():
            if not resume:
                raise UserError(f"{out} holds a chain already; --resume continues it, another --out starts a new one.")
            self._runs = self._read()
        elif any(out.iterdir()):
            raise UserError(f"{out} is not empty and holds no chain; choose another --out.")
        self._write()

    def _read(self) -> dict[str, dict[str, Any]]:
        content = files.read_json(self._file)
        runs = content.get("runs")
        whole = isinstance(runs, dict) and all(
            isinstance(run, dict) and isinstance(run.get("key"), str) and type(run.get("done")) is bool
            for run in runs.values()
        )
        if content.get("format") != _FORMAT or not isinstance(runs, dict) or not whole:
            raise UserError(f"{self._file} is damaged, or of another version; choose another --out.")
        return runs

    def _write(self) -> None:
        files.replace(self._file, json.dumps({"format": _FORMAT, "runs": self._runs}, indent=1).encode())

    def is_done(self, name: str, key: str) -> bool:
        entry = self._runs.get(name, {})
        return entry.get("key") == key and entry["done"] and run_folder.has_weights(self._out / name)

    def fault(self, name: str) -> str:
        """A sentence about a fault of the model of a run that is done; mostly empty."""
        return str(self._runs.get(name, {}).get("fault", ""))

    def begin(self, name: str, key: str) -> bool:
        """Makes room for a job; True if it continues a stopped run."""
        folder = self._out / name
        for above in list(folder.parents)[: len(Path(name).parts) - 1]:  # a stage that has seeds now was one run
            if str(above.relative_to(self._out)) in self._runs:
                self._set_aside(above)
        if self._runs.get(name, {}).get("key") != key and folder.exists() and any(folder.iterdir()):
            self._set_aside(folder)
        self._runs[name] = {"key": key, "done": False}
        self._write()
        return run_folder.has_weights(folder)

    def end(self, name: str, fault: str) -> None:
        self._runs[name] |= {"done": True, "fault": fault}
        self._write()

    def _set_aside(self, folder: Path) -> None:
        places = (folder.with_name(f"{folder.name}.before{number}") for number in count(1))
        aside = next(place for place in places if not os.path.lexists(place))
        notice(f"{folder} is set aside as {aside}: its recipe, or what it starts from, has changed.")
        folder.rename(aside)
        gone = folder.relative_to(self._out)
        self._runs = {name: run for name, run in self._runs.items() if not Path(name).is_relative_to(gone)}
        self._write()


@dataclass
class Queue:
    """Jobs of a chain and their state."""

    jobs: list[Job]
    keys: Mapping[str, str]
    record: Record
    out: Path
    stages: int
    outcome: Outcome = field(default_factory=Outcome)

    def __post_init__(self) -> None:
        self.waiting = [job for job in self.jobs if not self.record.is_done(job.name, self.keys[job.name])]

    def title(self, job: Job) -> str:
        return f"stage {job.number} of {self.stages}, {job.name}"

    def ready(self, running: Iterable[Job]) -> list[Job]:
        """Jobs whose needs are done."""
        lacking = {job.name for job in [*self.waiting, *running]} | {job.name for job in self._faulty()}
        return [job for job in self.waiting if lacking.isdisjoint(job.uses.values())]

    def _faulty(self) -> list[Job]:
        return [job for job in self.jobs if job not in self.waiting and self.record.fault(job.name)]

    def faults(self) -> list[str]:
        """Runs whose model is not what it was trained for, and what did not start because of them."""
        faults = [f"{self.title(job)}: {self.record.fault(job.name)}" for job in self._faulty()]
        held_up = ", ".join(job.name for job in self.waiting)
        return [*faults, *([f"not started, for they use it: {held_up}."] if held_up and faults else [])]

    def begin(self, job: Job) -> bool:
        self.waiting.remove(job)
        notice(f"{self.title(job)} ...")
        return self.record.begin(job.name, self.keys[job.name])

    def end(self, job: Job, line: str, problems: list[str], fault: str = "") -> None:
        self.record.end(job.name, fault)
        self.outcome.done.append(line)
        self.outcome.problems += problems
        notice(f"{self.title(job)}: {line}")

    def failed(self, job: Job, reason: object) -> UserError:
        left = len(self.waiting)
        after = f" {left} {'run' if left == 1 else 'runs'} of the chain did not start." if left else ""
        return UserError(f"{self.title(job)}: {reason}{after}")

    def recipe(self, job: Job) -> Recipe:
        assert job.recipe is not None
        return renamed(job.recipe, {name: str(self.out / made) for name, made in job.uses.items()})

    def log(self, job: Job) -> Path:
        return self.out / LOGS / f"{job.name.replace('/', '-')}.txt"

    def require_installed(self) -> None:
        """Refuses a chain whose last stage lacks a package or weights, before its first one runs."""
        loaded = set[tuple[object, ...]]()
        for job in self.waiting:
            try:
                if job.recipe is not None:
                    require_installed(job.recipe, job.uses, loaded)
            except UserError as error:
                raise self.failed(job, error) from None

    def average(self, job: Job) -> tuple[str, list[str]]:
        """The mean that a job is; cheap, so made here and now."""
        folders = [self.out / job.uses[name] if name in job.uses else models.find(name) for name in job.shares]
        averaging.average(folders, self.out / job.name, list(job.shares.values()))
        return f"{self.out / job.name}: the mean of {len(folders)} models", []


def _work(queue: Queue, at_once: int) -> None:
    """Runs in turn here, or each in a process of its own; those under way when another one fails end as if nothing had
    been.
    """
    running: dict[Connection, tuple[Job, BaseProcess]] = {}
    failure: UserError | None = None
    try:
        while True:
            ready = queue.ready(job for job, _ in running.values()) if failure is None else []
            if ready and len(running) < at_once:
                job = ready[0]
                resumes = queue.begin(job)
                if at_once > 1 and job.recipe is not None:
                    running.update([_start(queue, job, resumes)])
                    continue
                try:
                    if job.recipe is None:
                        queue.end(job, *queue.average(job))
                    else:
                        queue.end(job, *_train(queue.recipe(job), queue.out / job.name, resumes))
                except UserError as error:
                    failure = queue.failed(job, error)
            elif not running:
                break
            else:
                for connection in wait(list(running)):
                    assert isinstance(connection, Connection)
                    job, process = running.pop(connection)
                    kind, *answer = _answer(connection, process)
                    if kind == "done":
                        queue.end(job, *answer)
                        continue
                    failed = queue.failed(job, f"{answer[0]} All that it printed is in {queue.log(job)}.")
                    failure = failure or failed
                    if running:
                        names = ", ".join(other.name for other, _ in running.values())
                        notice(f"{failed} Waiting for {names}.")
    except BaseException:
        _stop([process for _, process in running.values()])
        raise
    if failure is not None:
        raise failure


def _train(recipe: Recipe, out: Path, resume: bool) -> tuple[str, list[str], str]:
    """A run: a line about it, what could not be used, and a sentence about a fault of its model."""
    run = build.run(recipe, out, resume=resume)
    return run.summary, run.problems, run.fault


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that are started here have one thread, unless a recipe gives them more."""
    name, threads = "OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS")
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        os.environ |= {name: threads} if threads is not None else {}


def _start(queue: Queue, job: Job, resumes: bool) -> tuple[Connection, tuple[Job, BaseProcess]]:
    log = queue.log(job)
    log.parent.mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (queue.recipe(job), queue.out / job.name, resumes, log, sender, plugins.loaded)
    process = context.Process(target=_child, args=arguments, name=job.name)
    process.start()
    sender.close()  # so that its end is seen when the process ends
    return receiver, (job, process)


def _child(recipe: Recipe, out: Path, resumes: bool, log: Path, answer: Connection, plugged: list[str]) -> None:
    """One run, in a process of its own.  It stops when the process that started it is gone."""

    def end_with_parent() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)  # the step under way is saved

    os.setpgrp()  # Ctrl-C is for the process that started it, which ends it in good order
    threading.Thread(target=end_with_parent, daemon=True).start()
    with journals.appending(log) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        plugins.take([word for name in plugged for word in (plugins.OPTION, name)])
        result = _train(recipe, out, resumes)
    except UserError as error:
        print(error, file=sys.stderr)
        answer.send(("failed", str(error)))
    except KeyboardInterrupt:
        answer.send(("failed", "stopped."))
    else:
        answer.send(("done", *result))


def _answer(connection: Connection, process: BaseProcess) -> tuple[Any, ...]:
    try:
        answer: tuple[Any, ...] = connection.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return "failed", f"its process {ended}."
    process.join()
    return answer


def _stop(processes: list[BaseProcess]) -> None:
    """Ends those that are under way as Ctrl-C does: they save, and --resume continues them."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + 60
    for process in processes:
        with suppress(KeyboardInterrupt):
            process.join(max(0.0, deadline - time.monotonic()))
