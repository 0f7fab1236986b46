"""Odd photos are read like any other.  What they must show follows from how each was made (see `attacks.photos`)."""

from __future__ import annotations

import hashlib
import io
import os

import numpy as np
import pytest
from PIL import Image, ImageDraw

from attacks import photos as made
from attacks.photos import BLACK, BLUE, GREEN, GREYS, QUADRANTS, RED, WHITE, YELLOW, assert_shows
from capscore.errors import UserError
from support.stores import extract, feature_store
from tellapart.captioning.captioner import load
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.data.media.photos import LEAST_SIDE, Fit, view_of
from tellapart.encoders.encoder import Encoder, InView
from tellapart.errors import BadPhoto
from tellapart.recipe import EncoderConfig

pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")  # Pillow's, of EXIF that is broken

GREY_QUADRANTS = tuple((grey,) * 3 for grey in GREYS)
HALF_BLACK = (127, 127, 127)  # on white paper: half of 0 and half of 255
HALF_GREEN = tuple((level + 255) // 2 for level in GREEN)

SHOWS = {  # top left, top right, bottom left, bottom right; the four colours where nothing is said
    "greyscale": GREY_QUADRANTS,
    "greyscale JPEG": GREY_QUADRANTS,
    "one bit": (BLACK, WHITE, WHITE, BLACK),
    "palette with transparency": (RED, WHITE, BLUE, YELLOW),
    "palette with half transparency": (WHITE, HALF_GREEN, BLUE, YELLOW),
    "grey with opacity": (WHITE, HALF_BLACK, BLACK, BLACK),
    "colour with opacity": (WHITE, HALF_GREEN, BLUE, YELLOW),
    "colour that stands for transparent": (RED, WHITE, BLUE, YELLOW),
    "grey that stands for transparent": (BLACK, WHITE, *GREY_QUADRANTS[2:]),
    "CMYK": ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)),
    "sixteen-bit PNG": GREY_QUADRANTS,
    "sixteen-bit mid grey": ((128, 128, 128),) * 4,
    "sixteen-bit TIFF": GREY_QUADRANTS,
    "32-bit whole numbers": GREY_QUADRANTS,
    "32-bit fractions": GREY_QUADRANTS,
    "32-bit fractions up to 255": ((20,) * 3, (85,) * 3, (170,) * 3, (200,) * 3),
    "32-bit fractions with holes": GREY_QUADRANTS,
    "one pixel": (RED,) * 4,
    "one row": (RED, GREEN, RED, GREEN),
    "one column": (RED, RED, BLUE, BLUE),
}


@pytest.mark.parametrize("name", [name for name in made.ODD if name != "twelve megapixels"])
def test_an_odd_photo_shows_what_was_put_into_it(name, tmp_path):
    photo = photos.read(made.ODD[name](tmp_path), 32)
    assert photo.pixels.shape == (32, 32, 3)
    assert photo.pixels.dtype == np.uint8
    assert_shows(photo, SHOWS.get(name, QUADRANTS), tolerance=3)


@pytest.mark.parametrize("size", [1, 7, 96, 300])
def test_a_photo_becomes_a_square_of_the_size_asked_for_with_nothing_cropped(size, tmp_path):
    """Each quadrant takes a quarter of the square, although the photo is wider than high."""
    pixels = photos.read(made.of(tmp_path, "wide.png", made.quadrants()), size).pixels.astype(int)
    assert pixels.shape == (size, size, 3)
    mean = np.mean(QUADRANTS, axis=0)
    np.testing.assert_allclose(pixels.mean((0, 1)), mean, atol=1)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
@pytest.mark.parametrize("orientation", made.ORIENTATIONS)
def test_a_photo_is_turned_upright_once_and_never_twice(orientation, suffix, tmp_path):
    """What is read is saved with all that its picture still knows of EXIF, and read again."""
    path = made.turned(tmp_path, orientation, suffix)
    image = photos.decode(path.read_bytes(), path)
    assert image.size == (96, 64)
    again = tmp_path / "again.png"
    image.save(again, exif=image.getexif())
    for source in (path, again, Image.open(path)):  # the last as a caller has opened it
        assert_shows(source)


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size_and_looks_the_same(tmp_path):
    path = made.twelve_megapixels(tmp_path)
    with Image.open(path) as whole:
        expected = np.asarray(whole.resize((256, 256), Image.Resampling.BICUBIC), int)
    small = photos.decode(path.read_bytes(), path, at_least=256)
    assert 256 <= min(small.size) < 3000 / 4
    difference = np.abs(photos.read(path, 256).pixels - expected)
    assert difference.mean() < 2
    assert np.quantile(difference, 0.999) <= 8


@pytest.mark.parametrize("size", [(255, 600), (257, 257), (512, 511), (600, 2100)], ids=str)
def test_a_jpeg_is_never_decoded_smaller_than_asked_for_unless_it_is_smaller(size, tmp_path):
    path = made.of(tmp_path, "photo.jpg", made.noise(*size))
    image = photos.decode(path.read_bytes(), path, at_least=256)
    assert min(image.size) >= min(256, *size)


def test_a_photo_is_known_by_the_hash_of_its_bytes_and_named_by_text_by_path_or_by_a_link(tmp_path):
    path = made.good(tmp_path)
    (tmp_path / "link.jpg").symlink_to(path)
    for name in (path, str(path), tmp_path / "link.jpg"):
        photo = photos.read(name, 32)
        assert photo.sha256 == photos.sha256(name) == hashlib.sha256(path.read_bytes()).hexdigest()
        assert_shows(photo, tolerance=3)


def test_a_photo_whose_name_is_not_utf_8_really_has_such_a_name(tmp_path):
    """Otherwise the test above that reads it would say little."""
    with pytest.raises(UnicodeDecodeError):
        os.fsencode(made.name_that_is_not_utf_8(tmp_path)).decode("utf-8")


def test_reading_does_not_depend_on_what_is_read_at_the_same_time(tmp_path):
    """Decoding runs in several threads."""
    from tellapart.parallel import ordered_map

    paths = [make(tmp_path) for name, make in made.ODD.items() if name != "twelve megapixels"]
    alone = [photos.read(path, 16).pixels for path in paths]
    together = list(ordered_map(lambda path: photos.read(path, 16).pixels, paths))
    np.testing.assert_array_equal(together, alone)


def test_nothing_but_pixels_is_left_of_a_photo_that_has_been_decoded(tmp_path):
    """Where it was taken, or the thumbnail of how it looked before somebody cropped it, must not travel on."""
    image = photos.decode(made.turned(tmp_path, 6).read_bytes(), "photo")
    file = io.BytesIO()
    image.save(file, "PNG")
    assert not Image.open(io.BytesIO(file.getvalue())).getexif()


# A picture that the caller has opened is read as its file would be, as long as it still shows what the file does.


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


# Views: parts of photos, always the same ones, and what of them arrives in a feature store

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
