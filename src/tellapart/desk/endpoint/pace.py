"""How many requests are in flight: as many as the server works on together, found out by trying."""

from __future__ import annotations

import threading
from bisect import insort
from dataclasses import dataclass
from statistics import fmean

_SAMPLE = 4  # answers by which a level is judged; with --among, short and long requests take turns
_PATIENCE = 32  # answers before a level that did not pay is tried again; twice as many each time after


@dataclass(frozen=True)
class Place:
    """What a request began with."""

    level: int
    is_last: bool  # all places were taken then: only such a request says how long answers take at that level


class Pace:
    """Begins with one request at a time.

    Many servers (llama.cpp, Ollama) work on one request at a time.  Asked four at once, they let three wait, and a
    slow one makes them run out of time though it did nothing wrong.  Others (vLLM) answer four as quickly as one.
    So one request more at a time is tried; its level is kept if answers per second rise by half of what they would
    rise at best, else it is one down again.  A level is only tried if its answers would be in time even if each had
    to wait for another, and a server that is late or says it is busy gets one request at a time, and never again as
    many as then.  Pace has no clock of its own: the caller says how long a request took.
    """

    def __init__(self, most: int, timeout: float):
        self.level, self.in_flight = 1, 0
        self._waiting: list[int] = []
        self._most, self._timeout = most, timeout
        self._seconds: list[float] = []  # of answers at this level
        self._rate_below = 0.0  # answers per second at the level below, while this one is tried
        self._is_first = True
        self._patience, self._left = _PATIENCE, 0
        self._changed = threading.Condition()
        self._is_stopped = False

    def enter(self, order: int) -> Place:
        """Wait for a free place.  Of those who wait, the lowest `order` goes first: photos begun are to be finished."""
        with self._changed:
            insort(self._waiting, order)
            self._changed.wait_for(
                lambda: self._is_stopped or (self.in_flight < self.level and self._waiting[0] == order)
            )
            self._waiting.remove(order)
            self.in_flight += 1
            self._changed.notify_all()  # there may be a place for the next too
            return Place(self.level, self.in_flight >= self.level)

    def leave(self) -> None:
        with self._changed:
            self.in_flight -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Wake all who wait."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def answered(self, place: Place, seconds: float) -> None:
        """A request took so long."""
        with self._changed:
            if self._is_first:  # the server may have had to load the model
                self._is_first = False
                return
            if place.level != self.level or not place.is_last:
                return
            self._left = max(0, self._left - 1)
            self._seconds.append(seconds)
            if len(self._seconds) >= _SAMPLE:
                self._judge(fmean(self._seconds[-_SAMPLE:]))
                self._changed.notify_all()

    def overloaded(self, place: Place) -> None:
        """The server was late, or answered that it is busy."""
        with self._changed:
            if place.level > 1:  # or the others were not to blame
                self._most = min(self._most, place.level - 1)
            self._go_to(1)

    def _judge(self, seconds: float) -> None:
        rate = self.level / max(seconds, 1e-6)
        below = self.level - 1
        if self._rate_below and rate < self._rate_below * (1 + 0.5 / below):
            self._go_to(below)
            self._left, self._patience = self._patience, 2 * self._patience
        elif self.level < self._most and not self._left and 2 * seconds <= self._timeout:
            self._go_to(self.level + 1)
            self._rate_below = rate
        else:
            self._rate_below = 0.0  # this level is kept
            del self._seconds[:-_SAMPLE]

    def _go_to(self, level: int) -> None:
        self.level = level
        self._seconds.clear()
        self._rate_below = 0.0
