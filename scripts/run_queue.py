"""Long runs, one after another: takes up where it was killed.

    nohup python scripts/run_queue.py recipes/retrievers/queue.txt DATA=../data > runs/queue.log &
    python scripts/run_queue.py recipes/album/queue.txt --jobs 2 DATA=../data

A queue is a text file with a command on each line; `#` begins a comment, and NAME=VALUE arguments fill in ${NAME}.
Neighbouring lines that end with `&` do not need each other: --jobs says how many of them run at once.  All others may
need what stands above them: where a command fails, nothing below it is run.

What was begun and done is noted in runs/queue.jsonl.  A command that ended well is run again only if a recipe that it
names was edited, or if a folder that it names was made anew: a mean of runs, say, of which one has another recipe now.
A `tellapart train` that a kill stopped goes on with --resume; a run of another recipe is set aside, not overwritten.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, groupby
from pathlib import Path
from string import Template
from threading import Lock

import yaml

JOURNAL = Path("runs/queue.jsonl")


class Journal:
    """What was begun and done, each with the key of what it was made from."""

    def __init__(self, file: Path):
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._lock = file, Lock()
        self._done: dict[str, str] = {}  # command: the key that it ended well with last
        self.begun: dict[str, str] = {}  # folder: key of the run in it
        self.made: dict[str, str] = {}  # folder: key of what made it
        whole = (file.read_bytes() if file.exists() else b"").rpartition(b"\n")[0]  # a kill may cut the last line short
        for line in whole.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # what a damaged line says was done is done again
                self._take(json.loads(line))
        if file.exists():
            with file.open("r+b") as opened:
                opened.truncate(len(whole) + 1 if whole else 0)

    def note(self, state: str, command: str, key: str) -> None:
        entry = {"state": state, "key": key, "command": command}
        with self._lock:
            self._take(entry)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def _take(self, entry: dict[str, str]) -> None:
        folder = out_of(entry["command"])
        if entry["state"] == "done":
            self._done[entry["command"]] = entry["key"]
            self.made |= {folder: entry["key"]} if folder else {}
        else:
            self.begun |= {folder: entry["key"]} if folder else {}

    def is_done(self, command: str, key: str) -> bool:
        """A run that is gone was set aside for one that failed."""
        gone = is_training(command) and not Path(out_of(command)).exists()
        return self._done.get(command) == key and not gone

    def key(self, command: str) -> str:
        """Of a command, the recipes that it names, and what made the folders that it or they name."""
        recipes = [text_of(Path(word)) for word in shlex.split(command) if word.endswith((".yaml", ".yml"))]
        text = json.dumps([command, recipes])
        own = out_of(command)
        needed = {folder: key for folder, key in self.made.items() if folder != own and names(text, folder)}
        return hashlib.sha256(json.dumps([text, needed], sort_keys=True).encode()).hexdigest()[:16]


def main(queue: Path, values: dict[str, str], jobs: int) -> int:
    try:
        stages = list(stages_of(queue.read_text(encoding="utf-8"), values))
    except KeyError as missing:
        print(f"{queue} needs a value: give {missing.args[0]}=VALUE after it.", file=sys.stderr)
        return 2
    journal = Journal(JOURNAL)
    with ThreadPoolExecutor(jobs) as pool:
        for number, commands in enumerate(stages, 1):
            ended_well = list(pool.map(lambda command: run(command, journal), commands))
            if failed := [command for command, well in zip(commands, ended_well, strict=True) if not well]:
                for command in failed:
                    print(f"failed: {command}")
                if waiting := sum(map(len, stages[number:])):
                    print(f"{waiting} commands after it were not run: they may need it.")
                return 1
    return 0


def stages_of(text: str, values: dict[str, str]) -> Iterator[list[str]]:
    """Commands that may run at once, stage by stage."""
    lines = filter(None, (line.split("#")[0].strip() for line in text.splitlines()))
    for together, stage in groupby(lines, lambda line: line.endswith("&")):
        commands = [Template(line.removesuffix("&").strip()).substitute(values) for line in stage]
        yield from [commands] if together else ([command] for command in commands)


def run(command: str, journal: Journal) -> bool:
    key = journal.key(command)
    if journal.is_done(command, key):
        return True
    began, words = time.monotonic(), prepared(command, key, journal)
    print(f"{time.strftime('%H:%M:%S')} {command}", flush=True)
    journal.note("begun", command, key)
    code = subprocess.run(words, check=False).returncode
    minutes = (time.monotonic() - began) / 60
    print(f"{time.strftime('%H:%M:%S')} exit {code} after {minutes:.1f} minutes: {command}", flush=True)
    if code == 0:
        journal.note("done", command, key)
    return code == 0


def prepared(command: str, key: str, journal: Journal) -> list[str]:
    """The words to run: with --resume where a kill left the same run; one of another recipe makes room first."""
    words, folder = shlex.split(command), Path(out_of(command))
    if is_training(command) and (folder / "last.safetensors").exists():
        if journal.begun.get(str(folder), key) == key:
            words.append("--resume")
        else:
            places = (folder.with_name(f"{folder.name}.before{number}") for number in count(1))
            aside = next(place for place in places if not place.exists())
            print(f"{folder} is set aside as {aside}: its recipe, or what it begins with, has changed.", flush=True)
            folder.rename(aside)
    if words[0] == "tellapart":
        return [sys.executable, "-m", *words]
    return [sys.executable, *words[1:]] if words[0] == "python" else words


def is_training(command: str) -> bool:
    return shlex.split(command)[:2] == ["tellapart", "train"] and out_of(command) != ""


def out_of(command: str) -> str:
    """The folder that a command makes, or nothing."""
    words = shlex.split(command)
    return str(Path(words[words.index("--out") + 1])) if "--out" in words[:-1] else ""


def text_of(recipe: Path) -> list[str]:
    """What a recipe says, without comments and blanks; nothing where there is none, or where it is no YAML."""
    try:
        tokens = list(yaml.scan(recipe.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError):
        return []
    return [f"{type(token).__name__} {getattr(token, 'value', '')}" for token in tokens]


def names(text: str, folder: str) -> bool:
    """Whether a text names a folder, and not one whose name merely begins with it."""
    return re.search(rf"(?<![\w/.-]){re.escape(folder)}(?![\w.-])", text) is not None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queue", type=Path)
    parser.add_argument("values", nargs="*", metavar="NAME=VALUE", help="for ${NAME} in the queue")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, where the queue allows it")
    request = parser.parse_intermixed_args()
    if wrong := [value for value in request.values if "=" not in value]:
        parser.error(f"{wrong[0]} is not NAME=VALUE")
    if request.jobs < 1:
        parser.error("--jobs must be at least 1")
    sys.exit(main(request.queue, dict(value.split("=", 1) for value in request.values), request.jobs))
