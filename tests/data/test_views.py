"""Views of photos: which part, that it is always the same one, and what of it arrives in a feature store."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from attacks import photos as made
from capscore.errors import UserError
from support.stores import extract, feature_store
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.data.media.photos import LEAST_SIDE, Fit, view_of
from tellapart.encoders.encoder import Encoder, InView
from tellapart.recipe import EncoderConfig

HASHES = [hashlib.sha256(bytes([i])).hexdigest() for i in range(200)]


def test_views_show_most_of_the_photo_half_of_them_mirrored_and_each_photo_has_its_own():
    for view in (view_of(sha256, number) for sha256 in HASHES for number in (1, 2)):
        for start, end in ((view.left, view.right), (view.top, view.bottom)):
            assert start >= 0
            assert end <= 1
            assert end - start >= LEAST_SIDE
    views = [view_of(sha256, 1) for sha256 in HASHES]
    assert 60 < sum(view.mirrored for view in views) < 140  # of 200; a fair coin is outside once in a hundred million
    assert len(set(views)) == len(views)
    assert view_of(HASHES[0], 2) != views[0] == view_of(HASHES[0], 1)


def test_a_view_shows_its_part_of_the_photo_squeezed_into_the_square(tmp_path):
    """A photo whose red grows from left to right and whose green from top to bottom tells where each pixel was."""
    across, down = np.meshgrid(np.linspace(0, 255, 200), np.linspace(0, 255, 120))
    ramp = np.stack([across, down, np.zeros_like(across)], 2).round().astype(np.uint8)
    path = made.of(tmp_path, "ramp.png", Image.fromarray(ramp))
    for number in range(1, 9):
        view = view_of(photos.sha256(path), number)
        pixels = photos.read(path, 64, Fit(view=number)).pixels.astype(float) / 255
        assert pixels.shape == (64, 64, 3)
        ends = [pixels[:, place, 0].mean() for place in ((-1, 0) if view.mirrored else (0, -1))]
        ends += [pixels[place, :, 1].mean() for place in (0, -1)]
        np.testing.assert_allclose(ends, (view.left, view.right, view.top, view.bottom), atol=0.02)


def test_features_of_a_view_are_kept_apart_from_those_of_the_photos(tmp_path):
    encoder = Encoder(EncoderConfig(image_size=64, grid=2))
    example = Example(1, made.of(tmp_path, "noise.png", made.noise(90, 70)))
    seen = InView(encoder, 2)
    store = extract([example], seen, tmp_path / "view").store
    pixels = photos.read(example.file, 64, Fit(view=2)).pixels
    np.testing.assert_allclose(store.grid([0]), encoder(pixels[None]).grid, rtol=2e-3, atol=2e-3)
    for other in (encoder, InView(encoder, 1)):
        with pytest.raises(UserError, match="holds features of another source: view is"):
            feature_store(tmp_path / "view", other)
