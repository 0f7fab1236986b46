"""Photos as cameras and phones keep them, RAW, HEIC and AVIF: opened where we can, and named where we cannot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attacks import camera_files
from attacks import photos as made
from attacks.photos import assert_shows
from capscore.errors import UserError
from tellapart.data.items import Unusable
from tellapart.data.media import formats, photos
from tellapart.data.readers import folder
from tellapart.errors import BadPhoto

GOLDEN = Path(__file__).parents[2] / "golden"
HEIC_COLOURS = ((65, 65, 191), (65, 193, 191), (193, 65, 63), (193, 193, 63))  # of the PNG that it was made from


# RAW


@pytest.mark.parametrize("kind", camera_files.RAW)
def test_of_a_raw_photo_the_largest_jpeg_inside_is_read_upright(kind, tmp_path):
    """Under any name: as a TIFF, its thumbnail would be read."""
    for orientation in (1, 3, 6, 7, 8):
        assert_shows(made.of_bytes(tmp_path, f"IMG_0001.{kind.upper()}", camera_files.RAW[kind](orientation)))
    assert_shows(made.of_bytes(tmp_path, "scan.tif", camera_files.RAW[kind](1)))


def test_a_jpeg_inside_that_says_itself_how_it_lies_is_not_turned_twice(tmp_path):
    jpeg = camera_files.picture(6, exif=made.exif(6))
    data = camera_files.tiff([[*camera_files._jpeg(jpeg), (0x0112, 3, [6])]], after_header=b"CR")
    assert_shows(made.of_bytes(tmp_path, "a.cr2", data))


def test_a_tiff_is_no_raw_photo(tmp_path):
    for settings in ({}, {"compression": "jpeg"}, {"compression": "tiff_lzw"}):
        assert not formats.is_raw(made.of(tmp_path, "scan.tif", made.quadrants(), **settings).read_bytes())


@pytest.mark.parametrize("name", camera_files.LYING)
def test_a_raw_photo_whose_directories_lie_is_refused_in_one_sentence(name, tmp_path):
    path = made.of_bytes(tmp_path, "IMG_0002.CR2", camera_files.LYING[name])
    with pytest.raises(BadPhoto, match=r"IMG_0002\.CR2: is a RAW photo without a JPEG inside"):
        photos.read(path, 32)


def test_a_raw_photo_that_is_cut_anywhere_or_has_any_byte_changed_is_read_or_refused():
    rng = np.random.default_rng(0)
    for make in camera_files.RAW.values():
        whole = make(6)
        for _ in range(60):
            data = bytearray(whole[: rng.integers(1, len(whole) + 1)] if rng.random() < 0.3 else whole)
            for place in rng.integers(0, min(len(data), 300), 3):
                data[place] = rng.integers(256)
            message = ""
            try:
                assert photos.decode(bytes(data), "photo.dng", at_least=16).mode == "RGB"
            except BadPhoto as error:
                message = str(error)
            assert message.isprintable()


def test_a_raw_photo_of_another_kind_is_named_with_its_kind(tmp_path):
    path = made.of_bytes(tmp_path, "IMG.CR3", b"\0\0\0\x18ftypcrx \0\0\0\x01" + bytes(99))
    with pytest.raises(BadPhoto, match=r"IMG\.CR3: is a RAW photo that we cannot open \(CR3;"):
        photos.read(path, 32)


# AVIF and HEIC


def test_avif_is_opened_upright(tmp_path):
    assert_shows(made.of(tmp_path, "phone.avif", made.quadrants(), quality=95), tolerance=12)
    for orientation in (3, 6, 7):
        assert_shows(made.turned(tmp_path, orientation, ".avif", quality=95), tolerance=12)


def test_heic_is_opened_with_the_extra_and_damaged_where_it_is_cut_short(tmp_path):
    """What other code in the process can open does not change."""
    pytest.importorskip("pi_heif", reason="HEIC is opened with pi-heif")
    data = (GOLDEN / "quadrants.heic").read_bytes()
    for name in ("IMG_0001.HEIC", "renamed.jpg"):
        assert_shows(made.of_bytes(tmp_path, name, data), HEIC_COLOURS)
    assert "HEIF" not in Image.OPEN
    for length in (40, 300, len(data) - 2000):
        with pytest.raises(BadPhoto, match=r"a\.heic: is damaged"):
            photos.read(made.of_bytes(tmp_path, "a.heic", data[:length]), 32)


def test_without_the_extra_a_heic_photo_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "package_folder", lambda name: None)
    path = made.of_bytes(tmp_path, "IMG_0001.HEIC", (GOLDEN / "quadrants.heic").read_bytes())
    with pytest.raises(BadPhoto, match=r"IMG_0001\.HEIC: is a HEIC photo; `pip install 'tellapart\[heic\]'` brings"):
        photos.read(path, 32)


# In a folder


def test_every_picture_of_a_folder_is_captioned_or_named_and_has_a_row(photo_folder, small_model, tellapart, tmp_path):
    made.of_bytes(photo_folder, "IMG_1.HEIC", b"\0\0\0\x18ftypheic" + bytes(64))
    made.of_bytes(photo_folder, "IMG_2.CR2", b"II*\0" + bytes(64))
    made.of_bytes(photo_folder, "IMG_3.dng", camera_files.dng())
    made.of_bytes(photo_folder, "IMG_4.CR3", bytes(64))
    made.of_bytes(photo_folder, "IMG_5.jxl", bytes(64))
    made.of_bytes(photo_folder, "notes.txt", b"no picture")
    out = tmp_path / "captions.jsonl"
    code, _, err = tellapart("caption", photo_folder, "--model", small_model, "--out", out)
    rows = {Path(row["file"]).name: row for row in map(json.loads, out.read_text().splitlines())}
    assert code == 1
    assert {name for name, row in rows.items() if "error" in row} == {
        "IMG_1.HEIC",
        "IMG_2.CR2",
        "IMG_4.CR3",
        "IMG_5.jxl",
    }
    assert all(f"{photo_folder / name}: {row['error']}\n" in err for name, row in rows.items() if "error" in row)
    assert "caption" in rows["IMG_3.dng"]
    assert "notes.txt" not in rows
    assert "4 photos could not be used" in err


def test_many_photos_that_cannot_be_opened_are_counted_and_only_a_few_named(photo_folder, small_model, tellapart):
    for number in range(40):
        made.of_bytes(photo_folder, f"IMG_{number:02}.CR3", bytes(64))
    code, lines, err = tellapart("caption", photo_folder, "--model", small_model)
    assert (code, len(lines.splitlines()), len(err.splitlines())) == (1, 6, 6)
    assert "IMG_04.CR3: is a RAW photo that we cannot open" in err
    assert err.splitlines()[-1].startswith("35 more photos: is a RAW photo that we cannot open")


def test_reasons_that_differ_in_a_number_are_one_and_others_are_not():
    lines: list[str] = []
    unusable = Unusable(lines.append)
    for number in range(6):
        unusable.add(f"{number}.jpg", f"is damaged ({number} bytes are missing)")
    unusable.add("a\n.jpg", "there is no such file")
    unusable.rest()
    assert len(unusable) == 7
    assert lines[4:] == [
        "4.jpg: is damaged (4 bytes are missing)",
        "a\\n.jpg: there is no such file",
        "1 more photo: is damaged (5 bytes are missing)",
    ]


# Folders and links that lead nowhere


def test_a_link_to_nowhere_is_called_that_on_the_command_line_too(tmp_path, small_model, tellapart):
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    code, _, err = tellapart("caption", tmp_path / "gone", "--model", small_model)
    assert (code, f"{tmp_path / 'gone'}: is a link to a file that does not exist" in err) == (1, True)
    with pytest.raises(UserError, match="gone: is a link to a folder that does not exist"):
        folder.read(tmp_path / "gone")
