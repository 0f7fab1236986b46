"""Small photos, and what a store of their features must hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.data.store import FeatureStore
from tellapart.encoders.encoder import Encoder

HALF = {"rtol": 1e-3, "atol": 2e-3}  # features are below 6, where numbers of half precision lie 0.004 apart


def draw(file: Path, seed: int, side: int = 6) -> Path:
    """A few coloured squares, different for each seed.  As BMP, so that all photos have one size in bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    Image.fromarray(pixels).save(file, "BMP")
    return file


def album(folder: Path, count: int) -> list[Example]:
    folder.mkdir(exist_ok=True)
    return [Example(f"photo {i}", draw(folder / f"{i}.bmp", seed=i)) for i in range(count)]


def assert_holds(store: FeatureStore, examples: list[Example], encoder: Encoder) -> None:
    """Every photo is in the store, with the features that the encoder gives it alone."""
    rows = [store.row(example) for example in examples]
    assert len(set(rows)) == len(rows)
    for example, grid, pooled in zip(examples, store.grid(rows), store.pooled(rows), strict=True):
        expected = encoder(photos.read(example.file, encoder.config.image_size).pixels[None])
        torch.testing.assert_close(grid, expected.grid[0], **HALF)
        torch.testing.assert_close(pooled, expected.pooled[0], **HALF)


def cut(name: str) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        data = (store / name).read_bytes()
        (store / name).write_bytes(data[:-1])

    return damage
