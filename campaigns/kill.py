"""Commands that are killed again and again, at random moments: in the end the result is that of an unbroken run.

A kill comes at a random time, or at a random one of the events by which a command changes its folder: a file that is
opened to be written, renamed, removed or made sure of (fsync), or half a line of a journal.  Some kills are power cuts:
what was written and not made sure of is gone, and the new name of a file may have come before its contents.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaigns import forked, network, review, scoring, world
from campaigns.report import Row, is_wanted
from campaigns.world import Plant

_KILLS = 4  # of a run at most, before it may come to its end
_UNTIL_FOUND = 60  # kills in which a planted fault has to show
_NAMES = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "os.rmdir"}
_CLOCK = re.compile(  # what the time of day and the speed of the machine decide
    rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*?Z|\d{4}-\d\d-\d\d \d\d:\d\d"
    rb"|\"(?:words_per_second|seconds|training_seconds|mtime_ns|mtime)\": [\d.e+-]+"
)


@dataclass(frozen=True)
class Case:
    """A command and the folder that it changes; the folder is copied from the world for each run."""

    name: str
    arguments: Callable[[Path, Path], list[object]]  # of the world and the folder
    folder: str = ""  # of the world, that the folder begins as
    normal: Callable[[str, bytes], bytes] = field(default=lambda name, data: _timeless(name, data))
    codes: tuple[int, ...] = (0,)
    undo: bool = False  # `--undo` brings back what was there at first


def _timeless(name: str, data: bytes) -> bytes:
    """A file without times; of safetensors the tensors and, without times, what is known of them."""
    if not name.endswith(".safetensors"):
        return _CLOCK.sub(b"", data)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    position = json.loads(header.pop("__metadata__", {}).get("position", "{}"))
    known = [header, {key: value for key, value in position.items() if key not in ("seconds", "elapsed")}]
    return json.dumps(known, sort_keys=True).encode() + data[end:]


def _journal(name: str, data: bytes) -> bytes:
    """A kill between a journal's line and its change leaves a line more, which says nothing new."""
    return b"" if name.endswith(".journal") else _CLOCK.sub(b"", data)


def _adapted(name: str, data: bytes) -> bytes:
    """The report shows how long it took."""
    return b"" if name == "report.html" else re.sub(rb'"(minutes|took|times?)": [\d.e+-]+', b"", _CLOCK.sub(b"", data))


def _models(w: Path) -> list[object]:
    return ["--model", w / "captioner", "--retriever", w / "retriever"]


def _no_page(name: str, data: bytes) -> bytes:
    """The page says when it was made."""
    return b"" if name.endswith("report.html") else _CLOCK.sub(b"", data)


CASES = (
    Case("write", lambda w, out: ["write", out / "captions.jsonl"], "written", _journal, undo=True),
    Case(
        "write in-file", lambda w, out: ["write", out / "captions.jsonl", "--in-file"], "written", _journal, undo=True
    ),
    Case("caption", lambda w, out: ["caption", w / "photos", *_models(w)[:2], "--out", out / "c.jsonl"]),
    Case(
        "caption among",
        lambda w, out: ["caption", w / "photos", *_models(w), "--among", w / "photos", "--out", out / "c.csv"],
    ),
    Case("features", lambda w, out: ["features", w / "photos", "--image-size", 64, "--grid", 2, "--out", out]),
    Case("lookalikes", lambda w, out: ["lookalikes", w / "photos", *_models(w)[2:], "--out", out / "l.json"]),
    Case("train", lambda w, out: ["train", w / "recipe.yaml", "--out", out / "run", "--resume"]),
    Case(
        "evaluate",
        lambda w, out: [
            *("evaluate", w / "captioner", "--data", w / "toy" / "captions.json", "--split", "val"),
            *(*_models(w)[2:], "--out", out / "table"),
        ],
        normal=_no_page,
    ),
    Case(
        "adapt",
        lambda w, out: ["adapt", w / "holiday", *_models(w), "--minutes", 10, "--out", out / "adapted"],
        normal=_adapted,
    ),
    Case("pool", lambda w, out: ["pool", w / "toy" / "captions.json", *_models(w)[2:], "--out", out / "pool"]),
    Case("study", lambda w, out: ["study", *network.requests(w, out)["study"], "--completion-code", "C1"]),
)
SERVERS = {"serve": review.run, "pool --serve": scoring.run}


@dataclass(frozen=True)
class Unbroken:
    """An undisturbed run."""

    files: dict[str, str]
    events: int
    seconds: float


@dataclass
class Campaign:
    """The world, and a folder to work in."""

    world: Path
    work: Path
    draw: random.Random

    def unbroken(self, case: Case) -> Unbroken:
        out, counts = self._fresh(case), self.work / "events"
        done = forked.run(lambda: _counted(self._call(case, out), out, counts), self.work / "log", seconds=600)
        if done.code not in case.codes:
            raise RuntimeError(f"{case.name}: exit {done.code} without any kill\n{done.text[-2000:]}")
        return Unbroken(fingerprint(out, case), int(counts.read_text()), done.seconds)

    def killed(self, row: Row, case: Case, known: Unbroken, kills: int, plant: Plant | None = None) -> None:
        """One run that is killed up to so many times and then comes to its end; adds to the row."""
        count, wrong = self._round(case, known, kills, plant)
        row.tried += count
        if wrong:
            row.failed.append(f"{case.name}: after {count} kills {wrong}")

    def _round(self, case: Case, known: Unbroken, kills: int, plant: Plant | None) -> tuple[int, str]:
        out, count = self._fresh(case), 0
        before = fingerprint(out, case)
        for _ in range(kills):
            how = _How(
                self.draw.choice(("event", "event", "power cut", "time")),
                self.draw.randint(1, max(1, known.events)),
                self.draw.random(),
            )
            within = self.draw.uniform(0, known.seconds) if how.kind == "time" else 600
            call = self._call(case, out, plant)
            done = forked.run(lambda call=call, how=how: _killed(call, out, how), self.work / "log", seconds=within)
            if done.code == -signal.SIGKILL:
                count += 1
            elif done.code in case.codes:
                break
            else:
                return count, f"exit {done.code}: {_last(done.text)}"
        done = forked.run(self._call(case, out, plant), self.work / "log", seconds=600)
        if done.code not in case.codes:
            return count, f"exit {done.code}: {_last(done.text)}"
        now = fingerprint(out, case)
        if now != known.files:
            names = sorted(name for name in known.files.keys() | now if known.files.get(name) != now.get(name))
            return count, f"other files than without: {', '.join(names[:5])}"
        if case.undo:
            undo = world.command("write", out / "captions.jsonl", "--undo")
            done = forked.run(undo, self.work / "log", seconds=600)
            if done.code not in case.codes or fingerprint(out, case) != before:
                return count, f"--undo does not bring back what was there: {_last(done.text)}"
        return count, ""

    def _fresh(self, case: Case) -> Path:
        """Always the same name: it may stand in files."""
        out = self.work / "out"
        shutil.rmtree(out, ignore_errors=True)
        if case.folder == "written":
            shutil.copytree(self.world / "jpegs", out / "jpegs")
            shutil.copy(self.world / "captions.jsonl", out)
        else:
            out.mkdir()
        os.environ["TELLAPART_CACHE"] = str(out / "cache")
        return out

    def _call(self, case: Case, out: Path, plant: Plant | None = None) -> Callable[[], int]:
        def planted() -> None:
            os.chdir(out)
            if case.name == "adapt":
                _hasty()
            if plant is not None:
                plant()

        return world.command(*case.arguments(self.world, out), plant=planted)


def _last(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:300]


def fingerprint(folder: Path, case: Case) -> dict[str, str]:
    """Of every file; stray ones show too.  Caches may keep rows in any order."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith("cache/"):
            found[name] = hashlib.sha256(case.normal(name, path.read_bytes())).hexdigest()
        elif path.is_file() and path.name.startswith("."):
            found[name] = "a stray file"
        if path.suffix == ".rejected" and _is_of_kill(path):
            del found[name]
    return found


def _is_of_kill(aside: Path) -> bool:
    """`caption` puts a last line aside that breaks off, because a person may have written it.  One of ours is known."""
    lines = aside.with_suffix("").read_bytes().splitlines()
    return all(any(line.startswith(part) for line in lines) for part in aside.read_bytes().splitlines())


def _hasty() -> None:
    """A few steps of adapting, whatever the time."""
    from tellapart.adapting import adapt

    usual = adapt._Adapting.__init__

    def fast(self: Any, *given: Any, overrides: Any, **more: Any) -> None:
        settings = {"max_steps": 3, "objective.policy.samples": 2, "log_steps": 1, "save_minutes": 0}
        usual(self, *given, overrides=settings, **more)

    adapt._Adapting.__init__ = fast  # type: ignore[method-assign]


# In the process that is killed


@dataclass(frozen=True)
class _How:
    kind: str
    event: int  # the number of the event that is the last
    share: float  # of a journal's line that reaches the disk


class _Events:
    """Counts what a process does to a folder, and calls back before it does it."""

    def __init__(self, root: Path, before: Callable[[int, str, bytes], None]):
        self.count, self._root, self._before = 0, str(root), before
        self.synced: dict[int, int] = {}  # inode -> size that is safe

    def watch(self) -> None:
        from tellapart import journals

        fsync, append = os.fsync, journals.append

        def noted_fsync(handle: int) -> None:
            self._happens("fsync", self._root)
            fsync(handle)
            status = os.fstat(handle)
            self.synced[status.st_ino] = status.st_size

        def noted_append(path: Path, data: bytes, **how: bool) -> None:
            self._happens(f"append {path}", str(path), data)
            append(path, data, **how)

        os.fsync, journals.append = noted_fsync, noted_append
        sys.addaudithook(self._hook)

    def _hook(self, name: str, given: tuple[Any, ...]) -> None:
        if name in _NAMES and isinstance(given[0], str | bytes | os.PathLike):
            if name == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
            self._happens(name, os.fsdecode(given[0]))

    def _happens(self, what: str, path: str, data: bytes = b"") -> None:
        if path.startswith(self._root):
            self.count += 1
            self._before(self.count, what, data)


def _counted(call: Callable[[], int], root: Path, counts: Path) -> int:
    events = _Events(root, lambda *_: None)
    events.watch()
    code = call()
    counts.write_text(str(events.count))
    return code


def _killed(call: Callable[[], int], root: Path, how: _How) -> int:
    if how.kind == "time":
        return call()
    before = dict(_files(root))

    def kill(number: int, what: str, data: bytes) -> None:
        if number != how.event:
            return
        if what.startswith("append ") and how.kind == "event":
            with open(what.removeprefix("append "), "ab") as file:  # noqa: PTH123 - as little as possible at this point
                file.write(data[: int(how.share * len(data))])
        if how.kind == "power cut":
            _cut(root, before, events.synced)
        os.kill(os.getpid(), signal.SIGKILL)

    events = _Events(root, kill)
    events.watch()
    return call()


def _files(root: Path) -> Iterator[tuple[int, tuple[int, int]]]:
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            yield status.st_ino, (status.st_size, status.st_mtime_ns)


def _cut(root: Path, before: dict[int, tuple[int, int]], synced: dict[int, int]) -> None:
    """What a power cut leaves: of each file that was written, what was made sure of."""
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            if before.get(status.st_ino) == (status.st_size, status.st_mtime_ns):
                continue
            safe = synced.get(status.st_ino, before.get(status.st_ino, (0, 0))[0])
            if safe < status.st_size:
                os.truncate(path, safe)


# Faults that are planted


def _replace_in_place() -> None:
    """A file is written over, where a new one should take its place in one step."""
    from capscore import files

    def in_place(path: Path, data: bytes, by_user: bool) -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        half = len(data) // 2
        os.write(handle, data[:half])
        os.fsync(handle)
        os.write(handle, data[half:])
        os.fsync(handle)
        return handle

    files.replace_open = in_place


def _no_fsync() -> None:
    """Nothing is made sure of."""
    from capscore import files

    class NoFsync:
        def __getattr__(self, name: str) -> Any:
            return (lambda handle: None) if name == "fsync" else getattr(os, name)

    files.os = NoFsync()  # type: ignore[assignment]


def _journal_first() -> None:
    """A store says that it has rows before it has them."""
    from tellapart import journals
    from tellapart.data.store import Store

    usual = Store.append

    def journal_first(self: Any, tensors: Any, entries: Any) -> None:
        later, append = list[tuple[Path, bytes]](), journals.append
        journals.append = lambda path, data: later.append((path, data))
        try:
            usual(self, tensors, entries)
        finally:
            journals.append = append
        for path, data in reversed(later):
            append(path, data)

    Store.append = journal_first  # type: ignore[method-assign]


def _change_first() -> None:
    """A photo is written into before the journal says so."""
    from capscore import files
    from tellapart.desk.write import Journal

    usual = Journal.change

    def change_first(self: Any, file: Path, before: Any, made: Any) -> None:
        files.replace(file, made.data)
        usual(self, file, before, made)

    Journal.change = change_first  # type: ignore[method-assign]


PLANTED: tuple[tuple[str, str, Plant], ...] = (
    ("a file is overwritten, not replaced", "write", _replace_in_place),
    ("a removed fsync", "train", _no_fsync),
    ("a store's journal before its numbers", "features", _journal_first),
    ("a change before its journal", "write in-file", _change_first),
)


def run(folder: Path, count: int, seed: int, only: str = "") -> Iterator[Row]:
    """count  kills in all"""
    place, work = folder / "world", folder / "work"
    place.mkdir(parents=True)
    work.mkdir()
    cases = [case for case in CASES if is_wanted(case.name, only)]
    names = [*(case.name for case in cases), *(name for name in SERVERS if is_wanted(name, only))]
    shares = {name: count // len(names) + (number < count % len(names)) for number, name in enumerate(names)}
    if "serve" in shares:
        shares["serve"] = max(shares["serve"], count // 6)  # 50 of 300, which is what a release asks for
    world.preload({name.split()[0] for name in names})
    made = forked.run(lambda: world.make(place), folder / "log", seconds=600)
    if made.code:
        raise RuntimeError(made.text)
    campaign = Campaign(place, work, random.Random(seed))
    for case in cases:
        known = campaign.unbroken(case)
        for what, name, plant in PLANTED:
            if name == case.name:
                row = Row("kill", f"{name}: {what}", planted=True)
                while not row.failed and row.tried < _UNTIL_FOUND:
                    campaign.killed(row, case, known, _KILLS, plant)
                yield row
        row, wanted = Row("kill", case.name), shares[case.name]
        while row.tried < wanted and len(row.failed) < 5:
            campaign.killed(row, case, known, min(_KILLS, wanted - row.tried))
        row.note = f"{known.events} events in a run"
        yield row
    for name, attack in SERVERS.items():
        if name in shares:
            yield from attack(place, work, shares[name], campaign.draw)
