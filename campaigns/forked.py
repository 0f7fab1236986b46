"""Calls in processes of their own, which may be killed, hang or run out of memory.

They are forked, not started: torch is imported once and not for each.  So the process that forks runs nothing of
tellapart itself, and has a single thread.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    code: int  # exit code; negative: the signal that ended it
    late: bool  # it was ended because its time was over
    seconds: float
    text: str  # what it printed


def run(call: Callable[[], int | None], log: Path, *, seconds: float = 120, memory: int | None = None) -> Outcome:
    """memory  bytes of addresses that it may have in all"""
    started = time.monotonic()
    child = os.fork()
    if not child:
        _child(call, log, memory)
    deadline, late = started + seconds, False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if not late and time.monotonic() > deadline:
            late = True
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:  # it has no group of its own yet
                os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    text = log.read_text("utf-8", "replace")
    return Outcome(os.waitstatus_to_exitcode(status), late, time.monotonic() - started, text)


def start(call: Callable[[], int | None], log: Path) -> int:
    """Its process goes on beside this one; it leads a group of its own."""
    child = os.fork()
    if not child:
        _child(call, log, None)
    while True:  # its group has to be there before it is killed
        try:
            if os.getpgid(child) == child:
                return child
        except ProcessLookupError:
            return child
        time.sleep(0.001)


def ended(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:  # this was asked before
        return True


def end(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


class Server:
    """A server that is killed and started again."""

    def __init__(self, serve: Callable[[], int | None], log: Path):
        self._serve, self._log = serve, log
        self.process = start(serve, log)

    def restart(self) -> str:
        """Kill and start it.  Returns what was wrong: that it had come to an end by itself."""
        fault = f"the server came to an end by itself: {self._log.read_text()[-300:]}" if ended(self.process) else ""
        end(self.process)
        self.process = start(self._serve, self._log)
        return fault

    def end(self) -> None:
        end(self.process)


def _child(call: Callable[[], int | None], log: Path, memory: int | None) -> None:
    code = 70
    try:
        os.setsid()
        null, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        code = call() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
