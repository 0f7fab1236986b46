"""Stored features for training: one stream of a data set, or all of its streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from tellapart.data.examples import Example
from tellapart.data.store import Rows
from tellapart.data.streams import REGIONS


class StoredFeatures(Protocol):
    """A data set's features on disk, to those that learn from them."""

    @property
    def shape(self) -> tuple[int, int]:
        """The most regions of a photo, and D"""

    def __contains__(self, example: Example) -> bool: ...

    def row(self, example: Example) -> int: ...

    def count(self, example: Example) -> int:
        """How many regions a photo has."""

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        """(len(rows), most, D): the first regions of each photo, zeros behind its last"""

    def pooled(self, rows: Rows) -> Tensor:
        """(len(rows), D)"""


class Stores(dict[str, StoredFeatures]):
    """A data set's stored features by the name of their stream; empty where only captions count."""

    @property
    def main(self) -> StoredFeatures:
        """What retrievers and neighbours go by: the regions, else the first stream."""
        return self[REGIONS] if REGIONS in self else next(iter(self.values()))

    def have(self, example: Example) -> bool:
        """Whether every stream has the example."""
        return all(example in store for store in self.values())

    def pooled(self, examples: Sequence[Example]) -> Tensor:
        """(len(examples), D) of the main stream"""
        return self.main.pooled([self.main.row(example) for example in examples])
