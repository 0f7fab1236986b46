"""A picture that the caller has opened is read as its file would be, as long as it still shows what the file does."""

from __future__ import annotations

import hashlib
import io

import numpy as np
import pytest
from PIL import Image, ImageDraw

from attacks import photos as made
from tellapart.captioning.captioner import load
from tellapart.data.media import photos
from tellapart.errors import BadPhoto

pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")  # Pillow's, of EXIF that is broken


@pytest.fixture(scope="module")
def camera(tmp_path_factory):
    """A JPEG large enough to be decoded at a fraction of its size, lying on its side."""
    folder = tmp_path_factory.mktemp("camera")
    y, x = np.mgrid[:1200, :1600]
    planes = [x * 255 / 1600, y * 255 / 1200, 128 + 100 * np.sin(x / 9) * np.cos(y / 7)]
    pixels = np.stack(planes, axis=2) + 30 * np.sin(x / 2)[..., None]
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    return made.of(folder, "camera.jpg", image, quality=90, exif=made.exif(6))


def opened_and_loaded(path):
    image = Image.open(path)
    image.load()
    return image


def opened_from_memory(path):
    return Image.open(io.BytesIO(path.read_bytes()))


@pytest.mark.parametrize("open_it", [Image.open, opened_and_loaded, opened_from_memory])
def test_the_same_jpeg_by_path_and_as_a_picture_gives_the_same_pixels(open_it, camera):
    by_path, by_image = photos.read(camera, 64), photos.read(open_it(camera), 64)
    np.testing.assert_array_equal(by_image.pixels, by_path.pixels)
    assert by_image.sha256 == by_path.sha256 == hashlib.sha256(camera.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", [name for name in made.ODD if name != "twelve megapixels"])
def test_any_photo_by_path_and_as_a_picture_is_the_same(name, tmp_path):
    path = made.ODD[name](tmp_path)
    for image in (Image.open(path), opened_and_loaded(path)):
        np.testing.assert_array_equal(photos.read(image, 32).pixels, photos.read(path, 32).pixels)


def test_the_same_jpeg_by_path_and_as_a_picture_gives_the_same_caption(camera, small_model, small_retriever):
    """Also when candidates are sampled: their seed is the photo's hash, and the photo itself is left out of --among."""
    captioner = load(small_model)
    assert captioner.caption(Image.open(camera)).logprob == captioner.caption(camera).logprob
    others = {"among": [camera], "retriever": small_retriever}
    (by_image,), (by_path,) = (captioner.caption([one], **others) for one in (Image.open(camera), camera))
    assert (by_image.text, by_image.logprob) == (by_path.text, by_path.logprob)


def test_what_was_done_to_a_picture_counts_and_its_file_does_not(camera, tmp_path):
    """A drawing on it, a part of it, another frame: the file says nothing of that."""
    drawn = Image.open(camera)
    ImageDraw.Draw(drawn).rectangle((0, 0, 1600, 1200), fill="blue")
    assert (photos.read(drawn, 16).pixels == (0, 0, 255)).all()
    part = Image.open(camera).crop((0, 0, 100, 100))
    assert photos.read(part, 16).sha256 != photos.read(camera, 16).sha256
    small = Image.open(camera)
    small.thumbnail((100, 100))
    assert photos.read(small, 16).sha256 != photos.read(camera, 16).sha256
    image = Image.open(made.animation(tmp_path, "animation.gif"))
    image.seek(1)
    assert (photos.read(image, 16).pixels == 0).all()


def test_a_file_that_has_been_replaced_is_not_what_was_opened(tmp_path):
    path = made.good(tmp_path, "photo.png")
    image = opened_and_loaded(path)
    Image.new("RGB", image.size, "blue").save(path)
    np.testing.assert_allclose(photos.read(image, 32).pixels[8, 8], made.RED, atol=3)
    path.unlink()
    np.testing.assert_allclose(photos.read(image, 32).pixels[8, 8], made.RED, atol=3)


def test_the_callers_picture_stays_as_it_is(camera):
    image = Image.open(camera)
    photos.read(image, 16)
    assert (image.size, image.mode, image.getexif()[0x0112]) == ((1600, 1200), "RGB", 6)
    loaded = Image.open(camera).convert("L")
    before = loaded.tobytes()
    photos.read(loaded, 16)
    assert (loaded.tobytes(), "exif" in loaded.info) == (before, True)


def test_a_broken_picture_among_others_is_an_error_of_its_own(tmp_path, small_model, small_retriever):
    broken, good = Image.open(made.BROKEN["JPEG cut short"](tmp_path)), made.good(tmp_path)
    with pytest.raises(BadPhoto, match=r"cut\.jpg: is damaged"):
        photos.read(broken, 16)
    rows = list(load(small_model).caption([broken, good], among=[good], retriever=small_retriever))
    assert ["is damaged" in row.error for row in rows] == [True, False]
