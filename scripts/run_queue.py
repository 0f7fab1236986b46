"""Long runs, one after another: takes up where it was killed.

    nohup python scripts/run_queue.py recipes/retrievers/queue.txt DATA=../data > runs/queue.log &

A queue is a text file with a command on each line; `#` begins a comment, and NAME=VALUE arguments fill in ${NAME}.
A command that ended well is noted in runs/queue.done and not run again.  A `tellapart train` whose run folder is there
already goes on with --resume.  One that fails is named at the end, and the others are run all the same.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path
from string import Template

DONE = Path("runs/queue.done")


def main(queue: Path, values: dict[str, str]) -> int:
    lines = [line.split("#")[0].strip() for line in queue.read_text(encoding="utf-8").splitlines()]
    try:
        commands = [Template(line).substitute(values) for line in lines if line]
    except KeyError as missing:
        print(f"{queue} needs a value: give {missing.args[0]}=VALUE after it.", file=sys.stderr)
        return 2
    DONE.parent.mkdir(parents=True, exist_ok=True)
    failed = []
    for command in commands:
        done = DONE.read_text(encoding="utf-8").splitlines() if DONE.exists() else []
        if command in done:
            continue
        began = time.monotonic()
        print(f"{time.strftime('%H:%M:%S')} {command}", flush=True)
        code = subprocess.run(with_resume(shlex.split(command)), check=False).returncode
        minutes = (time.monotonic() - began) / 60
        print(f"{time.strftime('%H:%M:%S')} exit {code} after {minutes:.1f} minutes", flush=True)
        if code == 0:
            with DONE.open("a", encoding="utf-8") as file:
                file.write(command + "\n")
        else:
            failed.append(command)
    for command in failed:
        print(f"failed: {command}")
    return 1 if failed else 0


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
    sys.exit(main(Path(sys.argv[1]), dict(value.split("=", 1) for value in sys.argv[2:])))
