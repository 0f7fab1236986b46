"""What the benchmarks share: repeated side-by-side timing, and a table."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable

import torch


def side_by_side(
    parts: dict[str, Callable[[], object]], *, repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The median seconds of each part.  They take turns, so that a noisy machine disturbs all of them alike.

    clock  time.process_time counts what this process works, not what it waits for its turn: for what has one thread
    """
    took: dict[str, list[float]] = {name: [] for name in parts}
    for part in parts.values():  # warm up
        part()
    for _ in range(repeats):
        for name, part in parts.items():
            began = clock()
            part()
            took[name].append(clock() - began)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


def table(title: str, rows: list[dict[str, str]]) -> None:
    print(f"\n### {title}\n\n{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(row.values()) + " |", flush=True)
