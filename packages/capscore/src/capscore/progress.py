"""Progress on stderr: a bar with rate and time left on a terminal, a plain line now and then otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TextIO

from capscore.printable import printable, unguarded

_BAR = 0.1  # seconds between redrawings of the bar
_LINE = 15.0  # seconds between plain lines
_QUIET = 2.0  # what is over sooner than this shows nothing

watching: ContextVar[Callable[[int, int], None] | None] = ContextVar("watching", default=None)
"""Told of every step, how much is done and of how much; what it raises ends the work between two steps."""


class Progress:
    """`with Progress("features", total=8000, unit="photo") as bar: ... bar.advance()`"""

    def __init__(self, what: str, total: int, *, unit: str = "photo", done: int = 0, stream: TextIO | None = None):
        self.what, self.total, self.unit, self.done = printable(what), total, unit, done
        self.note = ""
        self._stream = stream or unguarded(sys.stderr)
        self._terminal = self._stream.isatty()
        self._began, self._first, self._shown = time.monotonic(), done, 0.0
        self._drawn, self._drawn_at = False, done

    def advance(self, count: int = 1, note: str = "") -> None:
        self.done += count
        self.note = printable(note) or self.note
        if watch := watching.get():
            watch(self.done, self.total)
        now = time.monotonic()
        if now - self._began >= _QUIET and now - self._shown >= (_BAR if self._terminal else _LINE):
            self._shown = now
            self._show()

    def _show(self) -> None:
        elapsed = time.monotonic() - self._began
        rate = (self.done - self._first) / elapsed if elapsed else 0.0
        left = f", {_clock((self.total - self.done) / rate)} left" if rate and self.done < self.total else ""
        share = self.done / self.total if self.total else 1.0
        text = f"{self.done}/{self.total} {self.unit}s, {rate:.3g}/s{left}{', ' + self.note if self.note else ''}"
        if self._terminal:
            filled = round(20 * min(share, 1.0))
            self._stream.write(f"\r{self.what} [{'#' * filled}{'.' * (20 - filled)}] {text}\x1b[K")
        else:
            self._stream.write(f"{self.what}: {text}\n")
        self._stream.flush()
        self._drawn, self._drawn_at = True, self.done

    def message(self, text: str) -> None:
        """A line of its own that does not tear the bar."""
        text = printable(text)
        self._stream.write(f"\r\x1b[K{text}\n" if self._terminal and self._drawn else f"{text}\n")
        self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:  # leave the final state on the screen
            if self._drawn_at != self.done:
                self._show()
            if self._terminal:
                self._stream.write("\n")


def notice(text: str) -> None:
    """A line on stderr from where no bar is known; one that is on the screen is redrawn below it."""
    sys.stderr.write(f"\r\x1b[K{text}\n" if sys.stderr.isatty() else f"{text}\n")
    sys.stderr.flush()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
