"""A small encoder, which is quick."""

import pytest

from tellapart.encoders.encoder import Encoder
from tellapart.recipe import EncoderConfig


@pytest.fixture(scope="package")
def encoder() -> Encoder:
    return Encoder(EncoderConfig(image_size=64, grid=2))
