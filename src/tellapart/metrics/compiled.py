"""The loops over token ids that Python is too slow for, compiled by numba, and how they are spread over cores."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import numba

from tellapart.parallel import cores

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Machine code for this function: kept on disk between runs, and free of the interpreter's lock while it runs.

    The code on disk is made anew only when the function's own file changes: kernels that call each other live in one
    file.
    """
    return cast(Function, numba.njit(cache=True, nogil=True)(function))


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
