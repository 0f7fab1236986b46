"""The streams `boxes` and `relations`: where the regions of a photo are, and how they are related.  Both come from what
makes the regions themselves.

Imported features have boxes beside them, and so have those of a detector; those of an encoder alone are the cells of
its grids, row by row.  Relations are imported, or there are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from capscore.errors import UserError
from tellapart.data.examples import Example
from tellapart.data.store import Rows, Store
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

    def stored(self, regions: StoredFeatures) -> StoredBoxes:
        """The boxes of regions that it made."""
        if isinstance(self.regions, ImportedFeatures) or (isinstance(regions, Store) and "boxes" in regions.arrays):
            return StoredBoxes(regions)
        config = self.regions.config
        whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]])  # where nothing was detected, as in a trial with noise
        return StoredBoxes(regions, torch.cat([grid_boxes(*config.grids), whole.expand(config.detected, -1)]))


@dataclass(frozen=True)
class RelationsOf:
    """Takes the place of an encoder: how the regions are related that were imported."""

    regions: ImportedFeatures
    feature_size: int = 3  # first region, second region, label

    @property
    def identity(self) -> dict[str, Any]:
        """What relations must share to be used together."""
        return {**self.regions.identity, _GIVES: "relations"}

    def stored(self, regions: StoredFeatures) -> StoredRelations:
        """The relations of regions that were imported with any."""
        assert isinstance(regions, RegionStore)
        if not any(line.get("relations") for line in regions.lines.values()):
            raise UserError(
                f"inputs.relations: {regions.folder} has none; import archives that have `relations` beside the boxes."
            )
        return StoredRelations(regions)


BesideRegions = BoxesOf | RelationsOf


def regions_of(identity: dict[str, Any]) -> tuple[dict[str, Any], Literal["boxes", "relations"] | None]:
    """The identity of the regions whose boxes or relations an identity means, and which of the two; else itself."""
    gives = identity.get(_GIVES)
    if gives != "boxes" and gives != "relations":
        return identity, None
    return {key: value for key, value in identity.items() if key != _GIVES}, gives


def grid_boxes(*sides: int) -> Tensor:
    """The cells of square grids, one grid after another, each row by row: (R, 4)

    sides  cells a side of each grid

    >>> grid_boxes(2, 1)[[1, 4]]
    tensor([[0.5000, 0.0000, 1.0000, 0.5000],
            [0.0000, 0.0000, 1.0000, 1.0000]])
    """
    return torch.cat([_cells(side) for side in sides])


def _cells(side: int) -> Tensor:
    edges = torch.arange(side + 1) / side
    top, left = torch.meshgrid(edges[:-1], edges[:-1], indexing="ij")
    bottom, right = torch.meshgrid(edges[1:], edges[1:], indexing="ij")
    return torch.stack([left, top, right, bottom], -1).view(-1, SIZE)


class StoredBoxes:
    """The boxes of stored regions, to those that learn from them."""

    def __init__(self, regions: StoredFeatures, cells: Tensor | None = None):
        """cells  (R, 4) where the boxes of every photo are the same; else the store has them"""
        self._regions, self._cells, self.shape = regions, cells, (regions.shape[0], SIZE)

    def __contains__(self, example: Example) -> bool:
        return example in self._regions

    def row(self, example: Example) -> int:
        return self._regions.row(example)

    def count(self, example: Example) -> int:
        return self._regions.count(example)

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        """(len(rows), most, 4)"""
        if self._cells is not None:
            return self._cells[:most].expand(len(rows), -1, -1)
        assert isinstance(self._regions, Store)
        return self._regions.read("boxes", rows, most)

    def pooled(self, rows: Rows) -> Tensor:
        """(len(rows), 4)"""
        return self.grid(rows).mean(1)


class StoredRelations:
    """The relations of imported regions, to those that learn from them."""

    def __init__(self, regions: RegionStore):
        self._regions, self.shape = regions, (regions.relations, 3)

    def __contains__(self, example: Example) -> bool:
        return example in self._regions

    def row(self, example: Example) -> int:
        return self._regions.row(example)

    def count(self, example: Example) -> int:
        """A photo may have none."""
        return int(self._regions.lines[str(example.id)].get("relations", 0))

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        """(len(rows), most, 3)"""
        return self._regions.read("relations", rows, most).float()

    def pooled(self, rows: Rows) -> Tensor:
        """(len(rows), 3)"""
        return self.grid(rows).mean(1)
