"""A photo on a canvas, pixel by pixel."""

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from tellapart.detectors import yolox
from tellapart.errors import BadPhoto

SIZES = [(7, 5), (5, 7), (64, 96), (40, 300), (1, 9), (1, 1), (200, 3)]


def photo(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def one_pixel(pixels, row, column, height, width):
    """Between the four nearest pixels of the photo, by their distance."""
    y = (row + 0.5) * pixels.shape[0] / height - 0.5
    x = (column + 0.5) * pixels.shape[1] / width - 0.5
    y, x = min(max(y, 0), pixels.shape[0] - 1), min(max(x, 0), pixels.shape[1] - 1)
    total = np.zeros(3)
    for near_y in (int(y), int(y) + 1):
        for near_x in (int(x), int(x) + 1):
            share = (1 - abs(y - near_y)) * (1 - abs(x - near_x))
            if share > 0:
                total += share * pixels[near_y, near_x]
    return total


@pytest.mark.parametrize("size", SIZES)
def test_the_canvas_is_that_of_a_loop_over_pixels(size):
    pixels = photo(*size)
    canvas, ratio = yolox.letterbox(pixels, (32, 64))
    assert ratio == min(32 / size[0], 64 / size[1])
    height, width = max(1, int(size[0] * ratio)), max(1, int(size[1] * ratio))
    for row in range(32):
        for column in range(64):
            if row < height and column < width:
                expected = one_pixel(pixels, row, column, height, width)[::-1]  # blue first
                assert np.abs(canvas[row, column] - expected).max() <= 0.5001
            else:
                assert (canvas[row, column] == 114).all()


@pytest.mark.parametrize("size", [(7, 5), (64, 96), (300, 400)])
def test_resizing_is_what_torch_calls_bilinear(size):
    pixels = photo(*size)
    given = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
    theirs = torch.nn.functional.interpolate(given, (33, 47), mode="bilinear", align_corners=False)
    ours = yolox.resize(pixels, (33, 47))
    assert np.abs(ours - theirs[0].permute(1, 2, 0).numpy()).max() <= 0.501


def test_a_photo_is_read_upright_with_its_size_and_hash(tmp_path):
    image = Image.new("RGB", (20, 10), (255, 0, 0))
    exif = image.getexif()
    exif[274] = 6  # lies on its side
    image.save(tmp_path / "lying.png", exif=exif)
    found = yolox.letterboxed(tmp_path / "lying.png", (64, 96))
    assert (found.photo_size, found.ratio) == ((20, 10), 3.2)
    assert (found.canvas[:, :32] == (0, 0, 255)).all()
    assert (found.canvas[:, 32:] == 114).all()
    assert found.sha256 == hashlib.sha256((tmp_path / "lying.png").read_bytes()).hexdigest()


def test_what_is_no_photo_is_named(tmp_path):
    (tmp_path / "text.jpg").write_text("not a photo")
    with pytest.raises(BadPhoto, match=r"text\.jpg"):
        yolox.letterboxed(tmp_path / "text.jpg", (64, 96))
