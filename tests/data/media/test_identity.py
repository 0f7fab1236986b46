"""A photo is known by what it shows: metadata makes no difference, every change of the picture does."""

import io

import numpy as np
import pytest
from PIL import ExifTags, Image, PngImagePlugin

from tellapart.data.media.identity import picture_sha256

PIXELS = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)


def exif(**entries):
    data = Image.Exif()
    for name, value in entries.items():
        data[ExifTags.Base[name]] = value
    return data


def saved(kind, pixels=PIXELS, **options):
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, kind, **options)
    return data.getvalue()


METADATA = {"exif": exif(ImageDescription="grandma", Artist="me", DateTime="2024:01:01 00:00:00")}
COMMENTS = PngImagePlugin.PngInfo()
COMMENTS.add_text("Description", "grandma")
COMMENTS.add_itxt("XML:com.adobe.xmp", "<x/>")


@pytest.mark.parametrize(
    ("kind", "options", "metadata"),
    [
        ("JPEG", {}, METADATA | {"comment": b"a comment", "icc_profile": b"profile" * 20_000, "xmp": b"<x:xmpmeta/>"}),
        ("JPEG", {"progressive": True}, METADATA | {"dpi": (300, 300)}),
        ("JPEG", {"subsampling": 0, "restart_marker_blocks": 1}, METADATA),
        ("PNG", {}, METADATA | {"pnginfo": COMMENTS, "dpi": (300, 300)}),
        ("WEBP", {"lossless": True}, METADATA | {"xmp": b"<x:xmpmeta/>"}),
        ("WEBP", {"quality": 80}, METADATA),
        ("TIFF", {}, METADATA | {"dpi": (300, 300)}),
        ("GIF", {}, {"comment": b"a comment"}),
    ],
)
def test_metadata_makes_no_other_photo_and_a_pixel_does(kind, options, metadata):
    plain, tagged = saved(kind, **options), saved(kind, **options, **metadata)
    assert plain != tagged
    assert picture_sha256(plain) == picture_sha256(tagged)
    other = PIXELS.copy()
    other[20:28, 20:28] = 255 - other[20:28, 20:28]
    assert picture_sha256(saved(kind, other, **options)) != picture_sha256(plain)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_photo_that_is_turned_by_its_metadata_is_another_one(kind):
    upright, tagged, turned = (saved(kind, exif=exif(**tags)) for tags in ({}, {"Orientation": 1}, {"Orientation": 6}))
    assert picture_sha256(upright) == picture_sha256(tagged) != picture_sha256(turned)
    if kind == "JPEG":
        assert picture_sha256(upright) == picture_sha256(upright + b"appended by a phone")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP"])
def test_broken_files_are_known_by_something(kind):
    whole = saved(kind)
    draw = np.random.default_rng(1)
    for _ in range(150):
        broken = bytearray(whole[: draw.integers(1, len(whole))])
        broken[draw.integers(len(broken))] ^= 255
        assert len(picture_sha256(bytes(broken))) == 64
