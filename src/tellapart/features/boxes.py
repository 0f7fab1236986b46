"""The stream `boxes`: where the regions of a photo are.  It comes from what makes the regions themselves.

Imported features have boxes beside them; those of an encoder are the cells of its grid, row by row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tellapart.data.examples import Example
from tellapart.data.store import Rows
from tellapart.data.stored import StoredFeatures
from tellapart.encoders import PhotoEncoder
from tellapart.features.imported import ImportedFeatures, RegionStore

SIZE = 4  # left, top, right, bottom
_GIVES = "gives"  # what an identity says beside that of the regions


@dataclass(frozen=True)
class BoxesOf:
    """Takes the place of an encoder: not what is in the regions that it makes, but where they are."""

    regions: PhotoEncoder | ImportedFeatures
    feature_size: int = SIZE

    @property
    def identity(self) -> dict[str, Any]:
        """What boxes must share to be used together."""
        return {**self.regions.identity, _GIVES: "boxes"}


def regions_of(identity: dict[str, Any]) -> dict[str, Any] | None:
    """The identity of the regions whose boxes an identity means; None if it means no boxes."""
    if identity.get(_GIVES) != "boxes":
        return None
    return {key: value for key, value in identity.items() if key != _GIVES}


def grid_boxes(regions: int) -> Tensor:
    """The cells of a square grid, row by row: (R, 4)

    >>> grid_boxes(4)[1]
    tensor([0.5000, 0.0000, 1.0000, 0.5000])
    """
    side = math.isqrt(regions)
    if side * side != regions:
        raise ValueError(f"{regions} regions are no square grid")
    start = torch.arange(side) / side
    top, left = torch.meshgrid(start, start, indexing="ij")
    return torch.stack([left, top, left + 1 / side, top + 1 / side], -1).view(regions, SIZE)


class StoredBoxes:
    """The boxes of stored regions, to those that learn from them."""

    def __init__(self, regions: StoredFeatures):
        self._regions, self.shape = regions, (regions.shape[0], SIZE)

    def __contains__(self, example: Example) -> bool:
        return example in self._regions

    def row(self, example: Example) -> int:
        return self._regions.row(example)

    def count(self, example: Example) -> int:
        return self._regions.count(example)

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        """(len(rows), most, 4)"""
        if isinstance(self._regions, RegionStore):
            return self._regions.read("boxes", rows, most)
        return grid_boxes(self.shape[0])[:most].expand(len(rows), -1, -1)

    def pooled(self, rows: Rows) -> Tensor:
        """(len(rows), 4)"""
        return self.grid(rows).mean(1)
