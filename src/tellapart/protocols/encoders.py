"""What encoders promise (`encoders.PhotoEncoder`), on some photos of the embedded album."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore.errors import UserError
from tellapart import album
from tellapart.data import examples
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.encoder import Features
from tellapart.encoders.loading import Checked, load
from tellapart.features.extracted import read_item
from tellapart.protocols import Check
from tellapart.recipe import EncoderConfig

_PHOTOS = 4
_CLOSE = 1e-3  # of the largest number: kernels for another size of batch add up in another order
_LARGEST = 65504  # in half precision, in which features are stored
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    config: EncoderConfig
    encoder: PhotoEncoder
    pixels: NDArray[np.uint8]  # as it reads photos


def case(name: str, config: EncoderConfig | None = None) -> Case:
    config = config or EncoderConfig(name=name)
    encoder = load(config, _CPU)
    photos = examples.read(album.HERE / "album.json").examples[:_PHOTOS]
    return Case(config, encoder, np.stack([read_item(encoder, photo.file).pixels for photo in photos]))


def _same(found: Tensor, expected: Tensor) -> None:
    off = float((found - expected).abs().max())
    assert off <= _CLOSE * float(expected.abs().max()), f"{off:.2g} apart"


def _both(features: Features) -> tuple[Tensor, Tensor]:
    return features.grid.float(), features.pooled.float()


def shapes_are_those_declared(case: Case) -> None:
    """Features have the shapes that the encoder declares."""
    Checked(case.config.name, case.encoder)(case.pixels)


def numbers_can_be_stored(case: Case) -> None:
    """Features are finite and within half precision, in which they are stored."""
    for values in _both(case.encoder(case.pixels)):
        assert values.isfinite().all()
        assert float(values.abs().max()) <= _LARGEST, f"{float(values.abs().max()):.3g}"


def same_photos_same_features(case: Case) -> None:
    """The same photos give the same features again."""
    for found, expected in zip(_both(case.encoder(case.pixels)), _both(case.encoder(case.pixels)), strict=True):
        _same(found, expected)


def photos_are_apart(case: Case) -> None:
    """A photo's features do not depend on the others of the batch, or on its place among them."""
    together = _both(case.encoder(case.pixels))
    for row in range(len(case.pixels)):
        for found, expected in zip(_both(case.encoder(case.pixels[row : row + 1])), together, strict=True):
            _same(found[0], expected[row])
    for found, expected in zip(_both(case.encoder(case.pixels[::-1].copy())), together, strict=True):
        _same(found.flip(0), expected)


def photos_matter(case: Case) -> None:
    """Different photos have different features."""
    grid, _ = _both(case.encoder(case.pixels))
    assert not torch.allclose(grid[0], grid[1], atol=1e-4)


def identity_is_known_again(case: Case) -> None:
    """`identity` can be kept as JSON, and is the same when the encoder is loaded again."""
    kept = json.loads(json.dumps(case.encoder.identity))
    assert kept == json.loads(json.dumps(load(case.config, _CPU).identity))
    assert "weights_sha256" in kept, "it has no weights_sha256"


def identity_tells_settings_apart(case: Case) -> None:
    """`identity` differs where settings of the encoder differ: a cache would be used for both."""
    try:
        other = load(replace(case.config, image_size=case.config.image_size * 2), _CPU)
    except UserError:  # it takes only one size
        return
    assert other.identity != case.encoder.identity


CHECKS: Sequence[Check] = (
    shapes_are_those_declared,
    numbers_can_be_stored,
    same_photos_same_features,
    photos_are_apart,
    photos_matter,
    identity_is_known_again,
    identity_tells_settings_apart,
)
