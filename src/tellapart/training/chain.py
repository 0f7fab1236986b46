"""Run a chain: its stages one after another, or those that do not need each other at once.

A job (a run, or a mean) is known by a key: the hash of its resolved recipe, of the data files that it names, and of the
keys of the jobs that it uses.  What is done and has the same key is not done again.  What has another key now is set
aside, never deleted, and run again, and so is everything that uses it.  DIR/chain.json keeps the keys.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from capscore import files
from capscore.errors import UserError
from capscore.progress import notice
from tellapart import album, hub, models, plugins, retrievers
from tellapart.models import averaging
from tellapart.recipe import Recipe
from tellapart.training import build, stages
from tellapart.training.preparation import require_installed
from tellapart.training.run_folder import plain
from tellapart.training.stages import Chain, Job

RECORD, LOGS = "chain.json", "chain.logs"
_FORMAT = 1


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
    jobs = stages.jobs(chain)
    keys = _keys(jobs)
    with files.held(out, "another process is training in this folder."):
        record = Record(out, resume)
        plan = Plan(jobs, keys, record, out, len(chain))
        for job in jobs:
            if record.is_done(job.name, keys[job.name]):
                notice(f"{plan.title(job)}: done already.")
        _require_installed(plan)
        if at_once == 1:
            _run_in_turn(plan)
        else:
            _run_at_once(plan, at_once)
    plan.outcome.faults = plan.faults()
    return plan.outcome


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
            isinstance(one, dict) and isinstance(one.get("key"), str) and type(one.get("done")) is bool
            for one in runs.values()
        )
        if content.get("format") != _FORMAT or not isinstance(runs, dict) or not whole:
            raise UserError(f"{self._file} is damaged, or of another version; choose another --out.")
        return runs

    def _write(self) -> None:
        files.replace(self._file, json.dumps({"format": _FORMAT, "runs": self._runs}, indent=1).encode())

    def is_done(self, name: str, key: str) -> bool:
        made = self._runs.get(name, {})
        return made.get("key") == key and made["done"] and _has_weights(self._out / name)

    def fault(self, name: str) -> str:
        """What is wrong with the model of a run that is done; mostly nothing."""
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
        return _has_weights(folder)

    def end(self, name: str, fault: str) -> None:
        self._runs[name] |= {"done": True, "fault": fault}
        self._write()

    def _set_aside(self, folder: Path) -> None:
        places = (folder.with_name(f"{folder.name}.before{number}") for number in count(1))
        aside = next(place for place in places if not os.path.lexists(place))
        notice(f"{folder} is set aside as {aside}: its recipe, or what it starts from, has changed.")
        folder.rename(aside)
        gone = folder.relative_to(self._out)
        self._runs = {name: one for name, one in self._runs.items() if not Path(name).is_relative_to(gone)}
        self._write()


@dataclass
class Plan:
    """What there is to do."""

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
        return stages.replaced(job.recipe, {name: str(self.out / made) for name, made in job.uses.items()})

    def folder(self, job: Job) -> Path:
        return self.out / job.name

    def average(self, job: Job) -> tuple[str, list[str]]:
        """The mean that a job is; cheap, so made here and now."""
        folders = [self.out / job.uses[name] if name in job.uses else models.find(name) for name in job.shares]
        averaging.average(folders, self.folder(job), list(job.shares.values()))
        return f"{self.folder(job)}: the mean of {len(folders)} models", []


def _require_installed(plan: Plan) -> None:
    """What is missing for the last stage is said before the first one runs."""
    loaded = set[tuple[object, ...]]()
    for job in plan.waiting:
        try:
            if job.recipe is not None:
                require_installed(job.recipe, job.uses, loaded)
        except UserError as error:
            raise plan.failed(job, error) from None


def _run_in_turn(plan: Plan) -> None:
    while ready := plan.ready(()):
        job = ready[0]
        resumes = plan.begin(job)
        try:
            plan.end(
                job, *(plan.average(job) if job.recipe is None else _train(plan.recipe(job), plan.folder(job), resumes))
            )
        except UserError as error:
            raise plan.failed(job, error) from None


def _train(recipe: Recipe, out: Path, resume: bool) -> tuple[str, list[str], str]:
    """A run: what is to be printed of it, what could not be used, and what is wrong with its model."""
    outcome = build.run(recipe, out, resume=resume)
    position = outcome.position
    return (
        f"{out}: {position.summary(outcome.recipe)}",
        outcome.problems,
        position.fault(recipe.validation.metric),
    )


def _run_at_once(plan: Plan, most: int) -> None:
    """Each run in a process of its own; those that are under way when another one fails end as if nothing had been."""
    running: dict[Connection, tuple[Job, BaseProcess]] = {}
    failure: UserError | None = None
    with _one_thread_each():
        try:
            while running or (failure is None and plan.ready(())):
                ready = plan.ready(job for job, _ in running.values()) if failure is None else []
                for job in ready[: most - len(running)]:
                    resumes = plan.begin(job)
                    if job.recipe is not None:
                        running.update([_start(plan, job, resumes)])
                        continue
                    try:
                        plan.end(job, *plan.average(job))
                    except UserError as error:
                        failure = plan.failed(job, error)
                    break  # what waited for it may be ready
                else:
                    for connection in wait(list(running)):
                        assert isinstance(connection, Connection)
                        job, process = running.pop(connection)
                        kind, *answer = _answer(connection, process)
                        if kind == "done":
                            plan.end(job, *answer)
                            continue
                        failed = plan.failed(job, f"{answer[0]} All that it printed is in {_log(plan, job)}.")
                        failure = failure or failed
                        if running:
                            notice(f"{failed} Waiting for {', '.join(one.name for one, _ in running.values())}.")
        except BaseException:
            _stop([process for _, process in running.values()])
            raise
    if failure is not None:
        raise failure


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that are started here have one thread, unless a recipe gives them more."""
    name, before = "OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS")
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        os.environ |= {name: before} if before is not None else {}


def _start(plan: Plan, job: Job, resumes: bool) -> tuple[Connection, tuple[Job, BaseProcess]]:
    log = _log(plan, job)
    log.parent.mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (plan.recipe(job), plan.folder(job), resumes, log, sender, plugins.loaded)
    process = context.Process(target=_child, args=arguments, name=job.name)
    process.start()
    sender.close()  # so that its end is seen when the process ends
    return receiver, (job, process)


def _log(plan: Plan, job: Job) -> Path:
    return plan.out / LOGS / f"{job.name.replace('/', '-')}.txt"


def _child(recipe: Recipe, out: Path, resumes: bool, log: Path, answer: Connection, own_code: list[str]) -> None:
    """One run, in a process of its own.  It stops when the process that started it is gone."""
    os.setpgrp()  # Ctrl-C is for the process that started it, which ends it in good order
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with files.appending(log) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        plugins.take([word for name in own_code for word in (plugins.OPTION, name)])
        result = _train(recipe, out, resumes)
    except UserError as error:
        print(error, file=sys.stderr)
        answer.send(("failed", str(error)))
    except KeyboardInterrupt:
        answer.send(("failed", "stopped."))
    else:
        answer.send(("done", *result))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)  # the step under way is saved


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


def _keys(jobs: list[Job]) -> dict[str, str]:
    """What each job is made from."""
    hashes: dict[str, str] = {}
    keys: dict[str, str] = {}

    def of_file(name: str) -> str:
        if name not in hashes:
            hashes[name] = hashlib.sha256(files.read_bytes(Path(name))).hexdigest()
        return hashes[name]

    for job in jobs:
        parts: list[object] = [{name: keys[made] for name, made in job.uses.items()}]
        if job.recipe is None:
            named = list(job.shares)
            parts.append(dict(job.shares))
        else:
            models_named = stages.models_of(job.recipe)
            named = [name for place, name in models_named if not stages.may_be_other(place)]
            data, rewards = job.recipe.data, job.recipe.objective.rewards
            inputs = [*data.files, *data.exclude, *rewards.fluency_text]
            parts += [plain(job.recipe), {name: of_file(name) for name in inputs if not files.is_folder(Path(name))}]
            perhaps = [name for place, name in models_named if stages.may_be_other(place) and name not in job.uses]
            perhaps += [job.recipe.detector, data.tokenizer, rewards.look_alikes, rewards.preferences]
            perhaps.append(str(job.recipe.model.get("language_model", "")))
            parts.append({name: [of_file(str(file)) for file in _files_of(name)] for name in sorted({*perhaps} - {""})})
        others = sorted({name for name in named if name not in job.uses})
        parts.append({name: [of_file(str(file)) for file in _model_files(name)] for name in others})
        keys[job.name] = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return keys


def _model_files(name: str) -> list[Path]:
    """What a model that no stage makes is made of, if it is on this machine."""
    folder = album.EMBEDDED.get(name) or retrievers.EMBEDDED.get(name) or Path(name)
    if not files.is_folder(folder) and name != retrievers.MINILM and not hub.could_be(name):
        raise UserError(f"{name}: there is no such model, and no stage makes it.")
    return _files_of(str(folder))


def _files_of(name: str) -> list[Path]:
    """The file of that name; or what a folder of a model or tokenizer is made of, if there is one."""
    path = Path(name)
    if files.is_file(path):
        return [path]
    weights = next((path / file for file in models.WEIGHTS if files.is_file(path / file)), None)
    parts = [*(path / part for part in ("config.json", "vocabulary.json", "tokenizer.json")), weights]
    return [file for file in parts if file is not None and files.is_file(file)]


def _has_weights(folder: Path) -> bool:
    return any(files.is_file(folder / name) for name in models.WEIGHTS)
