"""The loops over token ids that Python is too slow for, compiled by numba, and how they are spread over cores."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import numba
from numba.core import event

from capscore.system import cores

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Machine code for this function: kept on disk between runs, and free of the interpreter's lock while it runs.

    The code on disk is recompiled only when the function's own file changes: kernels that call each other live in one
    file.
    """
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # neither the package's folder nor a home can be written to: compiled by each process
        return cast(Function, numba.njit(nogil=True)(function))


def over_cores(work: Callable[[int, int], None], count: int, *, least: int = 512) -> None:
    """Call `work(start, stop)` on stretches that together cover range(count), in as many threads as there are cores.

    Threads of our own and not numba's parallel loops: those abort the process when two Python threads enter them.
    """
    threads = cores()
    pieces = min(threads * 4, max(count // least, 1))
    if threads == 1 or pieces == 1:
        work(0, count)
        return
    edges = [count * piece // pieces for piece in range(pieces + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, edges[:-1], edges[1:]))


class _Note(event.Listener):
    """One line on a terminal: compiling takes seconds a kernel, the first time on a machine."""

    shown = False

    def on_start(self, event: event.Event) -> None:
        ours = str(event.data["dispatcher"].py_func.__module__).startswith(("capscore.", "tellapart."))
        if ours and not self.shown and sys.stderr.isatty():
            self.shown = True
            print("compiling inner loops for this machine, once; this may take half a minute", file=sys.stderr)

    def on_end(self, event: event.Event) -> None:
        pass


event.register("numba:compile", _Note())  # type: ignore[no-untyped-call]
