"""Broken and hostile photos, one test each: refused in one sentence that begins with the file's name."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attacks import broken_photos
from attacks import photos as attacks
from tellapart.data.media import photos
from tellapart.errors import BadPhoto

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")

NOT_A_PHOTO = r"is not a photo that we can open \(JPEG, PNG, .+\)"
DAMAGED = r"is damaged \(.+\)"
BOMB = "has more than 178 megapixels; such a file may be an attack"

REASONS = {
    "missing": "there is no such file",
    "a folder": "is a folder, not a photo",
    "a pipe": "is not a regular file",
    "a device": "is not a regular file",
    "a link to nowhere": "is a link to a file that does not exist",
    "a link to itself": r"cannot be read \(Too many levels of symbolic links\)",
    "a NUL in the name": r"is no file name \(embedded null byte\)",
    "a name too long": r"cannot be read \(File name too long\)",
    "empty": "the file is empty",
    "text named png": NOT_A_PHOTO,
    "SVG named jpg": NOT_A_PHOTO,
    "EPS named png": NOT_A_PHOTO,
    "HEIC named jpg": rf"is a HEIC photo; `pip install 'tellapart\[heic\]'` brings what opens it|{DAMAGED}",
    "garbage that begins like a JPEG": f"{NOT_A_PHOTO}|{DAMAGED}",
    "JPEG cut short": DAMAGED,
    "progressive JPEG cut short": DAMAGED,
    "PNG cut short": DAMAGED,
    "WebP cut short": DAMAGED,
    "GIF cut short": DAMAGED,
    "BMP cut short": DAMAGED,
    "TIFF cut short": DAMAGED,
    "PNG with a flipped byte": DAMAGED,
    "decompression bomb": BOMB,
    "decompression bomb in a GIF": BOMB,
    "decompression bomb in the text of a PNG": DAMAGED,
}


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """Whatever waits for a pipe, or unpacks a bomb, fails instead of holding up everybody."""

    def too_late(_signal: int, _frame: object) -> None:
        raise TimeoutError("the file was not refused within half a minute")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, 30)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", broken_photos.BROKEN)
def test_a_broken_photo_is_refused_in_one_sentence_with_its_name_and_the_reason(name, tmp_path):
    path = broken_photos.BROKEN[name](tmp_path)
    with pytest.raises(BadPhoto) as caught:
        photos.read(path, 32)
    assert re.fullmatch(REASONS[name], caught.value.reason)
    assert caught.value.file == str(path)
    assert str(caught.value) == f"{path}: {caught.value.reason}".replace("\0", "\\x00")
    assert str(caught.value).isprintable()
    assert not re.search(r"Traceback|Error\b|object at|\.py\b", caught.value.reason)


def test_the_bomb_is_a_valid_small_file_and_the_eps_is_one_that_pillow_would_run(tmp_path):
    """Otherwise the refusals above would say little."""
    bomb = broken_photos.bomb(tmp_path)
    assert bomb.stat().st_size < 200_000
    with warnings.catch_warnings(), pytest.raises(Image.DecompressionBombError):
        Image.open(bomb)
    with Image.open(broken_photos.eps_named_png(tmp_path)) as image:
        assert image.format == "EPS"


def test_a_name_cannot_steer_the_terminal_that_the_sentence_is_printed_on(tmp_path):
    """ESC [2J clears the screen; a new line would let a file name forge a message of its own."""
    with pytest.raises(BadPhoto) as caught:
        photos.read(tmp_path / "\x1b[2J\nall is well.jpg", 32)
    assert str(caught.value) == f"{tmp_path}/\\x1b[2J\\nall is well.jpg: there is no such file"


def test_a_photo_that_is_cut_anywhere_or_has_any_byte_changed_is_read_or_refused_and_nothing_else(tmp_path):
    rng = np.random.default_rng(0)
    image = attacks.noise(24, 32)
    kinds = [("JPEG", {"exif": attacks.exif(6)}), ("PNG", {}), ("WEBP", {}), ("GIF", {}), ("BMP", {}), ("TIFF", {})]
    for format, settings in kinds:
        whole = attacks.encoded(image, format, **settings)
        for _ in range(40):
            data = bytearray(whole[: rng.integers(1, len(whole) + 1)] if rng.random() < 0.3 else whole)
            for place in rng.integers(0, min(len(data), 300), 3):
                data[place] = rng.integers(256)
            said = ""
            try:
                assert photos.decode(bytes(data), "photo", at_least=16).mode == "RGB"
            except BadPhoto as error:
                said = str(error)
            assert said.isprintable()


@pytest.mark.parametrize("name", ["broken EXIF", "EXIF of noise", "orientation 6 with nonsense beside"])
def test_a_photo_with_broken_exif_is_read_without_a_warning_on_the_screen(name, tmp_path):
    path = attacks.ODD[name](tmp_path)
    script = "import sys; from tellapart.data.media import photos; photos.read(sys.argv[1], 32)"
    done = subprocess.run([sys.executable, "-W", "default", "-c", script, path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_file_is_decides_and_not_what_it_is_called(tmp_path):
    path = attacks.name_of_another_format(tmp_path)
    assert photos.read(path, 32).pixels.shape == (32, 32, 3)


def test_each_broken_photo_lies_under_a_name_of_its_own(tmp_path):
    """So that a test can put all of them into one folder."""
    paths: list[Path] = [make(tmp_path) for make in broken_photos.BROKEN.values()]
    assert len({path.name for path in paths}) == len(paths)
