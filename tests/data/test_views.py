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


def test_views_lie_within_the_photo_and_show_most_of_it():
    for view in (view_of(sha256, number) for sha256 in HASHES for number in (1, 2)):
        assert 0 <= view.left <= 1 - LEAST_SIDE
        assert 0 <= view.top <= 1 - LEAST_SIDE
        assert LEAST_SIDE <= view.right - view.left <= 1
        assert LEAST_SIDE <= view.bottom - view.top <= 1
        assert max(view.right, view.bottom) <= 1


def test_half_of_the_views_are_mirrored_and_each_photo_has_its_own():
    views = [view_of(sha256, 1) for sha256 in HASHES]
    assert 60 < sum(view.mirrored for view in views) < 140  # of 200; a fair coin is outside once in a hundred million
    assert len(set(views)) == len(views)
    assert view_of(HASHES[0], 2) != views[0] == view_of(HASHES[0], 1)


@pytest.mark.parametrize("number", range(1, 9))
def test_a_view_shows_its_part_of_the_photo_squeezed_into_the_square(number, tmp_path):
    """A photo whose red grows from left to right and whose green from top to bottom tells where each pixel was."""
    across, down = np.meshgrid(np.linspace(0, 255, 200), np.linspace(0, 255, 120))
    ramp = np.stack([across, down, np.zeros_like(across)], 2).round().astype(np.uint8)
    path = made.of(tmp_path, "ramp.png", Image.fromarray(ramp))
    view = view_of(photos.sha256(path), number)
    pixels = photos.read(path, 64, Fit(view=number)).pixels.astype(float)
    assert pixels.shape == (64, 64, 3)
    left, right = pixels[:, 0, 0].mean() / 255, pixels[:, -1, 0].mean() / 255
    expected = (view.right, view.left) if view.mirrored else (view.left, view.right)
    np.testing.assert_allclose((left, right), expected, atol=0.02)
    np.testing.assert_allclose(
        (pixels[0, :, 1].mean() / 255, pixels[-1, :, 1].mean() / 255), (view.top, view.bottom), atol=0.02
    )


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
