"""Photos as squares of bytes, decoded once: for runs that train an encoder, which see every photo many times.

pixels.u8    (rows, S, S, 3)
rows.jsonl   a line per photo, as in a feature cache
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.data.store import Array, Store
from tellapart.features.extracted import PHOTO_KEYS, Made, add_missing, encode_batches, safe_name


class PixelStore(Store):
    def __init__(self, root: Path, dataset: str, size: int):
        """Opens the store of a data set below a features folder, or makes an empty one."""
        folder = root / f"{safe_name(dataset)}.pixels-{size}px"
        manifest = {"format": 1, "encoder": {"name": "pixels", "image_size": size}}
        super().__init__(folder, manifest, {"pixels": Array((size, size, 3), "u8")}, PHOTO_KEYS)

    def add(self, examples: Sequence[Example], size: int) -> dict[str, str]:
        """Decode what is missing; why photos failed, by id."""

        def make(batch: Sequence[photos.Photo]) -> Made:
            return Made([torch.from_numpy(np.stack([photo.pixels for photo in batch]))])

        extraction = partial(encode_batches, partial(photos.read, size=size), make)
        failed, _ = add_missing(self, examples, extraction, f"pixels of {self.folder.name}")
        return failed

    def of(self, rows: NDArray[np.int64]) -> Tensor:
        """(len(rows), S, S, 3)"""
        return self.read("pixels", rows)
