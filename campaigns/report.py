"""What campaigns found, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass
class Row:
    """A line of the table.

    tried     kills, inputs, answers, commands
    failed    a sentence for each failure; of a planted fault, what gave it away
    kept      files that show the failures
    planted   a fault of this name was planted, and has to be found
    """

    campaign: str
    what: str
    tried: int = 0
    failed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    planted: bool = False
    note: str = ""

    @property
    def good(self) -> bool:
        return bool(self.failed) == self.planted

    def cells(self) -> list[str]:
        name = f"planted: {self.what}" if self.planted else self.what
        found = ("found" if self.failed else "NOT FOUND") if self.planted else str(len(self.failed))
        return [self.campaign, name, f"{self.tried:,}", found, str(len(self.kept)), self.note]


def is_wanted(name: str, only: str) -> bool:
    """only  beginnings of names, with commas; none: all"""
    return any(name.startswith(start) for start in only.split(","))


HEAD = ["campaign", "what", "tried", "failed", "kept seeds", "note"]


def lines(rows: Iterable[Row]) -> Iterator[str]:
    """In Markdown."""
    yield _line(HEAD)
    yield _line(["---"] * len(HEAD))
    for row in rows:
        yield _line(row.cells())


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
