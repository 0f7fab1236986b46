"""What a photo may cost is bounded, and one that costs too much, or is not whole, does not take the others down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attacks import photos as attacks
from tellapart.data.media import photos
from tellapart.data.media.photos import Memory
from tellapart.errors import BadPhoto

pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
ON_LINUX = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc")
SLACK = 24  # MB that Python and its libraries take besides

# Reads photos and prints, for each, the MB that were set aside for it and the MB that it took at most.
MEASURE = """
import gc, json, re, sys
from pathlib import Path
from tellapart.data.media import photos
from tellapart.errors import BadPhoto

def megabytes(kind):
    return int(re.search(kind + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

asked, aside = [], photos._decoding.reserved
photos._decoding.reserved = lambda size: asked.append(size / 2**20) or aside(size)
photos.read(sys.argv[1], 64)  # what is imported at the first photo
for file in sys.argv[2:]:
    asked.clear(), gc.collect(), Path("/proc/self/clear_refs").write_text("5")
    before = megabytes("VmRSS")
    photos.read(file, 64, photos.Fit(exact=True))
    print(json.dumps([asked[0] + Path(file).stat().st_size / 2**20, megabytes("VmHWM") - before]), flush=True)
"""


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
@ON_LINUX
def test_no_photo_takes_more_than_was_set_aside_for_it(tmp_path):
    """Whatever its format, its colours, its shape and its orientation."""
    good = attacks.good(tmp_path)
    files = [make(tmp_path) for make in attacks.LARGE.values()]
    measured = [json.loads(line) for line in run(MEASURE, good, *files).splitlines()]
    assert len(measured) == len(files)
    over = {
        name: (aside, took) for name, (aside, took) in zip(attacks.LARGE, measured, strict=True) if took > aside + SLACK
    }
    assert over == {}


@pytest.mark.slow
@ON_LINUX
def test_a_small_file_that_took_three_gigabytes_is_read_within_the_limit(tmp_path):
    bomb = attacks.of_bytes(tmp_path, "bomb.png", attacks.palette_bomb())
    assert bomb.stat().st_size < 30_000
    ((aside, took),) = [json.loads(line) for line in run(MEASURE, attacks.good(tmp_path), bomb).splitlines()]
    assert took < aside + SLACK < photos.MEMORY / 2**20


@pytest.mark.slow
@ON_LINUX
def test_threads_together_take_no_more_than_one_photo_may(tmp_path):
    """Each of these needs 150 MB; eight threads would have taken a gigabyte."""
    paths = [attacks.LARGE["WebP"](tmp_path)] * 16
    script = MEASURE.partition("asked, aside")[0] + (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from tellapart.data.media.photos import Memory\n"
        "photos._decoding, before = Memory(160 << 20), megabytes('VmRSS')\n"
        "with ThreadPoolExecutor(8) as pool: list(pool.map(lambda file: photos.read(file, 64), sys.argv[1:]))\n"
        "print(megabytes('VmHWM') - before)"
    )
    assert float(run(script, *paths)) < 160 + 4 * SLACK


def test_memory_is_given_back_whatever_happens_and_more_than_there_is_is_refused():
    memory = Memory(10)
    with pytest.raises(KeyError), memory.reserved(10):
        raise KeyError
    with memory.reserved(10):
        pass
    with pytest.raises(ValueError, match="11 bytes of 10"), memory.reserved(11):
        pass


def test_a_photo_that_needs_too_much_is_refused_in_a_sentence_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(photos, "MEMORY", 1 << 20)
    monkeypatch.setattr(photos.formats, "load", None)
    with pytest.raises(BadPhoto, match=r"deep\.png: would take \d+ MB of memory to decode; 1 is the most$"):
        photos.read(attacks.LARGE["sixteen bits"](tmp_path), 32)


@pytest.mark.parametrize("name", ["palette with half transparency", "sixteen-bit PNG", "32-bit fractions with holes"])
def test_a_photo_that_is_converted_in_blocks_is_the_same(name, tmp_path, monkeypatch):
    path = attacks.ODD[name](tmp_path)
    at_once = np.asarray(photos.decode(path.read_bytes(), path))
    monkeypatch.setattr(photos, "_BLOCK", 100)
    np.testing.assert_array_equal(photos.decode(path.read_bytes(), path), at_once)


@pytest.mark.parametrize("most", [6144, 6143, 1536, 700, 1])
def test_a_photo_that_is_too_large_is_averaged_down_and_shows_the_same(most, tmp_path, monkeypatch):
    """The four colours of 96 x 64 pixels; each a mean over squares of pixels."""
    path = attacks.ODD["colour with opacity"](tmp_path)
    whole = np.asarray(photos.decode(path.read_bytes(), path), float)
    monkeypatch.setattr(photos, "KEPT_PIXELS", most)
    small = photos.decode(path.read_bytes(), path)
    assert small.width * small.height <= most
    assert (small.size == (96, 64)) == (most == 6144)
    np.testing.assert_allclose(np.asarray(small, float).mean((0, 1)), whole.mean((0, 1)), atol=1)


def test_a_side_that_is_very_long_is_averaged_down_and_shows_the_same(tmp_path, monkeypatch):
    path = attacks.ODD["one column"](tmp_path)
    monkeypatch.setattr(photos, "_LONGEST", 100)
    pixels = photos.read(path, 32).pixels
    np.testing.assert_array_equal(pixels[8], [attacks.RED] * 32)
    np.testing.assert_array_equal(pixels[24], [attacks.BLUE] * 32)


# Fewer pixels than the file says


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(attacks.thin(), id="thin"),
        pytest.param(attacks.too_few_rows(0.5), id="half of the rows"),
        pytest.param(attacks.too_few_rows(29 / 30), id="all rows but one"),
        pytest.param(attacks.interlaced(0.8), id="interlaced"),
        pytest.param(attacks.png(40, 30, [b"\0" + b"\xff" * 40] * 29 + [b"\0" + b"\xff" * 39]), id="all but a byte"),
    ],
)
def test_a_png_with_too_few_pixels_is_damaged(data, tmp_path):
    with pytest.raises(BadPhoto, match=r"thin\.png: is damaged \(.*(too few pixels|truncated).*\)$"):
        photos.read(attacks.of_bytes(tmp_path, "thin.png", data), 32)


@pytest.mark.parametrize(
    ("data", "colour"),
    [
        pytest.param(attacks.too_few_rows(1.0), 255, id="white"),
        pytest.param(attacks.interlaced(1.0), 255, id="interlaced"),
        pytest.param(attacks.png(40, 30, [bytes(41)] * 30), 0, id="black to the last row"),
        pytest.param(attacks.png(40, 30, [bytes(41)] * 31), 0, id="a row too many"),
        pytest.param(attacks.thin_and_whole(100_000), 127, id="thin, with all its pixels"),
    ],
)
def test_a_png_with_all_its_pixels_is_read(data, colour, tmp_path):
    assert (photos.read(attacks.of_bytes(tmp_path, "whole.png", data), 32).pixels == colour).all()


def test_libtiff_prints_nothing_and_the_photo_that_it_complains_of_is_damaged(tmp_path, capfd):
    with pytest.raises(BadPhoto, match=r"flood\.tif: is damaged \(libtiff: Fax3Decode1D\)$"):
        photos.read(attacks.flood(tmp_path), 32)
    assert capfd.readouterr() == ("", "")
    following = photos.read(attacks.ODD["sixteen-bit TIFF"](tmp_path), 32)  # judged anew
    assert following.pixels.shape == (32, 32, 3)


# Every command goes on


@pytest.fixture
def holiday(photo_folder):
    attacks.of_bytes(photo_folder, "0thin.png", attacks.thin())
    attacks.of_bytes(photo_folder, "endless.png", attacks.thin_and_whole())
    return photo_folder


@pytest.mark.slow
def test_caption_goes_on_after_photos_that_take_too_much_and_so_does_the_next_run(
    holiday, small_model, tellapart, tmp_path
):
    out = tmp_path / "captions.jsonl"
    for _ in range(2):
        code, _, err = tellapart("caption", holiday, "--model", small_model, "--out", out)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert (code, sum("caption" in row for row in rows)) == (1, 6)
        assert "0thin.png: is damaged" in err
        assert "endless.png: would take" in err


@pytest.mark.slow
def test_lookalikes_and_features_go_on_after_photos_that_take_too_much(
    holiday, small_retriever, tellapart, tmp_path, own_cache
):
    code, _, err = tellapart("lookalikes", holiday, "--retriever", small_retriever)
    assert (code, "6 photos" in err) == (1, True)
    code, out, _ = tellapart("features", holiday, "--image-size", 64, "--grid", 2, "--out", tmp_path / "features")
    assert (code, "6 photos added, 0 were there, 2 could not be used" in out) == (1, True)
