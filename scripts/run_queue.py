"""Long runs, one after another: takes up where it was killed.

    nohup python scripts/run_queue.py recipes/retrievers/queue.txt DATA=../data > runs/queue.log &
    python scripts/run_queue.py recipes/album/queue.txt --jobs 2 DATA=../data

A queue is a text file with a command on each line; `#` begins a comment, and NAME=VALUE arguments fill in ${NAME}.
A command that ended well is noted in runs/queue.done and not run again.  A `tellapart train` whose run folder is there
already goes on with --resume.  One that fails is named at the end, and the others are run all the same.

Neighbouring lines that end with `&` do not need each other: --jobs says how many of them run at once.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from string import Template

DONE = Path("runs/queue.done")


def main(queue: Path, values: dict[str, str], jobs: int) -> int:
    try:
        stages = list(stages_of(queue.read_text(encoding="utf-8"), values))
    except KeyError as missing:
        print(f"{queue} needs a value: give {missing.args[0]}=VALUE after it.", file=sys.stderr)
        return 2
    DONE.parent.mkdir(parents=True, exist_ok=True)
    failed = []
    with ThreadPoolExecutor(jobs) as pool:
        for commands in stages:
            ended_well = pool.map(run, commands)
            failed += [command for command, well in zip(commands, ended_well, strict=True) if not well]
    for command in failed:
        print(f"failed: {command}")
    return 1 if failed else 0


def stages_of(text: str, values: dict[str, str]) -> Iterator[list[str]]:
    """Commands that may run at once, stage by stage."""
    lines = filter(None, (line.split("#")[0].strip() for line in text.splitlines()))
    for together, stage in groupby(lines, lambda line: line.endswith("&")):
        commands = [Template(line.removesuffix("&").strip()).substitute(values) for line in stage]
        yield from [commands] if together else ([command] for command in commands)


def run(command: str) -> bool:
    if DONE.exists() and command in DONE.read_text(encoding="utf-8").splitlines():
        return True
    began = time.monotonic()
    print(f"{time.strftime('%H:%M:%S')} {command}", flush=True)
    code = subprocess.run(with_resume(shlex.split(command)), check=False).returncode
    minutes = (time.monotonic() - began) / 60
    print(f"{time.strftime('%H:%M:%S')} exit {code} after {minutes:.1f} minutes: {command}", flush=True)
    if code == 0:
        with DONE.open("a", encoding="utf-8") as file:
            file.write(command + "\n")
    return code == 0


def with_resume(words: list[str]) -> list[str]:
    """The same command, or the one that goes on with the run that a kill left."""
    if words[:2] == ["tellapart", "train"] and "--out" in words:
        folder = Path(words[words.index("--out") + 1])
        if (folder / "last.safetensors").exists():
            words = [*words, "--resume"]
    if words[0] == "tellapart":
        return [sys.executable, "-m", *words]
    return [sys.executable, *words[1:]] if words[0] == "python" else words


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
