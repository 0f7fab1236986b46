"""A small encoder, which is quick, and the store that it fills."""

import numpy as np
import pytest
import torch
from PIL import Image

from support.stores import extract, feature_store
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.encoders.encoder import Encoder
from tellapart.recipe import EncoderConfig

HALF = {"rtol": 1e-3, "atol": 2e-3}  # features are below 6, where numbers of half precision lie 0.004 apart


@pytest.fixture(scope="package")
def encoder() -> Encoder:
    return Encoder(EncoderConfig(image_size=64, grid=2))


class Cache:
    """One store of an encoder, and photos of a few coloured squares, different for each seed."""

    def __init__(self, folder, encoder):
        self.folder, self.encoder, self.store = folder, encoder, folder / "store"

    def draw(self, name, seed):
        """As BMP, so that all photos have one size in bytes."""
        pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(file, "BMP")
        return file

    def album(self, count, folder="photos"):
        return [Example(f"photo {i}", self.draw(f"{folder}/{i}.bmp", seed=i)) for i in range(count)]

    def fill(self, examples):
        return extract(examples, self.encoder, self.store)

    def open(self):
        return feature_store(self.store, self.encoder)

    def holds(self, examples, store=None):
        """Every photo is in the store, with the features that the encoder gives it alone."""
        store = store or self.open()
        rows = [store.row(example) for example in examples]
        assert len(set(rows)) == len(rows)
        for example, grid, pooled in zip(examples, store.grid(rows), store.pooled(rows), strict=True):
            expected = self.encoder(photos.read(example.file, self.encoder.config.image_size).pixels[None])
            torch.testing.assert_close(grid, expected.grid[0], **HALF)
            torch.testing.assert_close(pooled, expected.pooled[0], **HALF)
        return True


@pytest.fixture
def cache(tmp_path, encoder):
    return Cache(tmp_path, encoder)
