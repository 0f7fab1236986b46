"""Memory that threads share: each reserves what it will need, and waits until that much is free."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Memory:
    """A number of bytes that all who hold some of it together never exceed.

    A thread that holds some must not ask for more, or two could wait for each other.
    """

    def __init__(self, total: int):
        self.total = total
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        if size > self.total:
            raise ValueError(f"{size} bytes of {self.total} can never be had")
        with self._changed:
            self._changed.wait_for(lambda: self._used + size <= self.total)
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()


def give_back() -> None:
    """Return freed memory to the system; glibc would keep up to 64 MB for each thread that has used it."""
    with suppress(AttributeError, OSError):  # other C libraries have no such call
        ctypes.CDLL(None).malloc_trim(0)
