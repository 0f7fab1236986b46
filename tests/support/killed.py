"""A command whose process is killed while it writes, at a place that does not depend on how busy the machine is."""

import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, pathlib, signal, sys
from tellapart import journals
from tellapart.__main__ import main

where, left, share, append = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), journals.append

def append_or_die(path, data, **how):
    global left
    left -= path.is_relative_to(where)
    if left:
        return append(path, data, **how)
    append(path, data[: int(share * len(data))], **how)
    os.kill(os.getpid(), signal.SIGKILL)

journals.append = append_or_die
main(sys.argv[4:])
"""


def run_killed(where: Path, last: int, share: float, *arguments: object) -> None:
    """Run `tellapart ARGUMENTS` until it adds to `where`, a file or folder, for the time that is its `last`.

    Of what it adds then, that `share` reaches the disk.
    """
    command = [sys.executable, "-c", PROGRAM, where, last, share, *arguments]
    killed = subprocess.run(
        [str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
