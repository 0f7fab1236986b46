"""What all HTML pages share: texts that do nothing, and thumbnails that say nothing of who took a photo."""

import base64
import html
import io
import re

import pytest
from PIL import Image

from tellapart.data.media.thumbnails import LONG_SIDE, thumbnail
from tellapart.html import escaped, render_page

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "</title></style><style>*{display:none}</style>",
    "<!-- -->&lt;&amp;&#60;script&#62;",
    "{title} {} {0.__class__} %s",
    "a cat 🐈‍⬛ on a naïve café's sofa, 猫",
]


def page(**texts):
    return render_page("page/page.html", body="", **texts).decode()


def picture(url):
    head, _, data = url.partition(",")
    assert head == "data:image/webp;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    image.load()
    return image


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_shown_as_it_is_and_does_nothing(text):
    harmless, hostile = (page(title=shown, subtitle=shown, footer=shown) for shown in ("x", text))
    assert re.findall(r"<[^>]*>", hostile) == re.findall(r"<[^>]*>", harmless)  # not one element or attribute more
    assert html.unescape(re.search(r"<h1>(.*)</h1>", hostile)[1]) == text
    assert html.unescape(escaped(text)) == text


def test_half_of_a_character_is_written_out():
    assert escaped("caf\udce9 \ud83d").isprintable()
    assert escaped("caf\udce9 \ud83d").encode("utf-8").startswith(b"caf")


def test_a_page_loads_nothing():
    content = page(title="title", subtitle="subtitle", footer="by somebody")
    assert not re.search(r"(?i)https?:|url\(|@import|//[a-z]|<script|<link|<iframe|src=", content)
    assert "default-src 'none';" in content


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
def test_what_a_photo_says_about_its_owner_does_not_reach_a_page(suffix, tmp_path):
    exif = Image.Exif()
    exif[0x013B] = "Secret Owner"  # artist
    exif.get_ifd(0x8825).update({1: "N", 2: (47.0, 22.0, 8.0), 3: "E", 4: (8.0, 32.0, 30.0)})  # GPS
    packet = b"<x:xmpmeta xmlns:x='adobe:ns:meta/'>Secret Owner</x:xmpmeta>"
    more = {"jpg": {"comment": b"Secret Owner", "xmp": packet}, "webp": {"xmp": packet}}.get(suffix, {})
    file = tmp_path / f"a.{suffix}"
    Image.new("RGB", (640, 480), "teal").save(file, exif=exif.tobytes(), icc_profile=b"Secret Owner", **more)
    assert b"Secret Owner" in file.read_bytes() or suffix == "png"  # PNG keeps it packed
    _, _, url = thumbnail(file)
    image = picture(url)
    assert not image.getexif()
    assert not {"exif", "xmp", "icc_profile", "comment"} & image.info.keys()
    assert b"Secret" not in base64.b64decode(url.partition(",")[2])


@pytest.mark.parametrize("size", [(1600, 900), (900, 1600), (320, 320), (40, 30), (5000, 3)])
def test_thumbnails_keep_their_proportions_and_are_never_enlarged(size, tmp_path):
    Image.new("RGB", size, "teal").save(tmp_path / "a.png")
    width, height, url = thumbnail(tmp_path / "a.png")
    scale = min(1, LONG_SIDE / max(size))
    assert (width, height) == picture(url).size
    assert (width, height) == (max(1, round(size[0] * scale)), max(1, round(size[1] * scale)))
