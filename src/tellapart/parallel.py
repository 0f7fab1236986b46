"""Work for threads beside the main one, such as decoding photos: Pillow frees the interpreter while it does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from capscore.system import cores

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 64  # results that may wait


def ordered_map(work: Callable[[Item], Result], items: Iterable[Item], *, ahead: int = AHEAD) -> Iterator[Result]:
    """`map`, in order, with at most `ahead` results waiting: a long input needs no more memory than a short one."""
    with ThreadPoolExecutor(max_workers=cores()) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # the consumer may stop early, or be stopped
            for future in waiting:
                future.cancel()


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items; the last may be shorter."""
    batch: list[Item] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
