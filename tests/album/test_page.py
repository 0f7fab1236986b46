from __future__ import annotations

import base64
import io
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from tellapart.album.page import LONG_SIDE, Row, write_page
from tellapart.errors import UserError

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "' onload='alert(1)",
    "</figcaption></style><style>*{display:none}</style>",
    "<!-- -->&lt;&amp;&#60;script&#62;",
    "{title} {} {0.__class__} %s",
    "https://example.com/ javascript:alert(1)",
    "a cat 🐈‍⬛ on a naïve café's sofa, 猫",
    "\u202eright to left override",
    "line\nbreak\tand tab",
]


class Page(HTMLParser):
    """What a browser would make of the page: its elements, and the texts of paragraphs and headings."""

    def __init__(self, file: Path):
        super().__init__()
        self.source = file.read_bytes().decode("utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # kind (class, or the tag), text
        self.inside = ""  # the one of these tags that is open
        self.feed(self.source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag in ("p", "h1", "h2", "title", "footer"):
            self.inside = tag
            self.texts.append((dict(attributes).get("class") or tag, ""))

    def handle_data(self, data: str) -> None:
        if self.inside:
            kind, text = self.texts[-1]
            self.texts[-1] = kind, text + data

    def handle_endtag(self, tag: str) -> None:
        if tag == self.inside:
            self.inside = ""

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, kind: str) -> list[str]:
        return [text for name, text in self.texts if name == kind]


def photo(file: Path, size: tuple[int, int] = (64, 48), colour: str = "teal", **options: object) -> Path:
    Image.new("RGB", size, colour).save(file, **options)
    return file


def picture(source: str | None) -> Image.Image:
    assert source
    head, _, data = source.partition(",")
    assert head == "data:image/webp;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    image.load()
    return image


def test_one_figure_with_one_picture_for_each_row(tmp_path: Path):
    colours = ["red", "green", "blue"]
    rows = [Row(photo(tmp_path / f"{c}.png", colour=c), f"something {c}", note=f"note {c}") for c in colours]
    write_page(rows, tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert len(page.of("figure")) == len(page.of("img")) == 3
    assert page.text("caption") == [img["alt"] for img in page.of("img")] == [f"something {c}" for c in colours]
    assert page.text("note") == [f"note {c}" for c in colours]
    assert page.text("file") == [f"{c}.png" for c in colours]
    for channel, img in zip((0, 1, 2), page.of("img"), strict=True):
        pixel = picture(img["src"]).convert("RGB").getpixel((9, 9))
        assert isinstance(pixel, tuple)
        assert max(range(3), key=pixel.__getitem__) == channel


def test_groups_stand_in_the_order_of_their_first_photos_and_the_rest_at_the_end(tmp_path: Path):
    file = photo(tmp_path / "a.png")
    groups = ["cats", "", "dogs", "cats"]
    write_page([Row(file, "an animal", group) for group in groups], tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert page.text("h2") == [
        "cats\u20022 photos, 1 different caption",
        "dogs\u20021 photo, 1 different caption",
        "other photos\u20021 photo, 1 different caption",
    ]
    assert len(page.of("figure")) == 4


def test_photos_without_groups_need_no_heading(tmp_path: Path):
    write_page([Row(photo(tmp_path / "a.png"), "a cat")], tmp_path / "page.html")
    assert Page(tmp_path / "page.html").of("h2") == []


def test_no_photos_make_a_page_that_says_so(tmp_path: Path):
    write_page([], tmp_path / "page.html", title="Nothing")
    page = Page(tmp_path / "page.html")
    assert page.of("figure") == []
    assert "0 photos, 0 different captions" in page.source


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_shown_as_it_is_and_does_nothing(text: str, tmp_path: Path):
    file = photo(tmp_path / "a.png")
    write_page([Row(file, "a cat", "cats", "a note")], tmp_path / "harmless.html", title="title", credit="credit")
    write_page([Row(file, text, text, text)], tmp_path / "hostile.html", title=text, credit=text)
    harmless, hostile = Page(tmp_path / "harmless.html"), Page(tmp_path / "hostile.html")
    structure = [[(tag, sorted(given)) for tag, given in page.elements] for page in (harmless, hostile)]
    assert structure[0] == structure[1]  # not one element or attribute more
    assert hostile.of("img")[0]["alt"] == text
    for kind in ("caption", "note", "title", "h1", "footer"):
        assert hostile.text(kind) == [text]


@pytest.mark.parametrize("name", ["<script>alert(1)<&script>.png", "\"' onload='x.png", "🐈 naïve.png", "a\nb.png"])
def test_a_hostile_file_name_is_shown_as_it_is(name: str, tmp_path: Path):
    write_page([Row(photo(tmp_path / name, format="PNG"), "a cat")], tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert page.of("script") == []
    assert page.text("file") == [name]
    assert len(page.of("img")) == 1


def test_a_file_name_that_is_not_utf_8_has_its_photo_and_a_readable_name(tmp_path: Path):
    name = os.fsdecode(b"caf\xe9.png")
    photo(tmp_path / "a.png").rename(tmp_path / name)
    write_page([Row(tmp_path / name, "half of a character: \ud83d")], tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert page.text("file") == ["caf?.png"]
    assert page.text("caption") == ["half of a character: ?"]
    assert len(page.of("img")) == 1


def test_the_page_stands_alone(tmp_path: Path):
    write_page([Row(photo(tmp_path / "a.png"), "a cat", "cats")], tmp_path / "page.html", credit="by somebody")
    page = Page(tmp_path / "page.html")
    assert not re.search(r"(?i)https?:|url\(|@import|//[a-z]", re.sub(r"data:[^\"]*", "", page.source))
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "link", "iframe", "object", "base", "a", "form"})
    assert all("src" not in given or str(given["src"]).startswith("data:") for _, given in page.elements)
    policy = next(given["content"] for given in page.of("meta") if "http-equiv" in given)
    assert str(policy).startswith("default-src 'none';")
    assert str(tmp_path) not in page.source  # where somebody keeps photos is nobody's business


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
def test_what_a_photo_says_about_its_owner_does_not_reach_the_page(suffix: str, tmp_path: Path):
    exif = Image.Exif()
    exif[0x013B] = "Secret Owner"  # artist
    exif.get_ifd(0x8825).update({1: "N", 2: (47.0, 22.0, 8.0), 3: "E", 4: (8.0, 32.0, 30.0)})  # GPS
    packet = b"<x:xmpmeta xmlns:x='adobe:ns:meta/'>Secret Owner</x:xmpmeta>"
    more = {"jpg": {"comment": b"Secret Owner", "xmp": packet}, "webp": {"xmp": packet}}.get(suffix, {})
    file = photo(tmp_path / f"a.{suffix}", (640, 480), exif=exif.tobytes(), icc_profile=b"Secret Owner", **more)
    assert b"Secret Owner" in file.read_bytes() or suffix == "png"  # PNG keeps it packed
    write_page([Row(file, "a cat")], tmp_path / "page.html")
    (img,) = Page(tmp_path / "page.html").of("img")
    image = picture(img["src"])
    assert not image.getexif()
    assert not {"exif", "xmp", "icc_profile", "comment"} & image.info.keys()
    assert b"Secret" not in base64.b64decode(str(img["src"]).partition(",")[2])


@pytest.mark.parametrize("size", [(1600, 900), (900, 1600), (320, 320), (40, 30), (5000, 3)])
def test_thumbnails_keep_their_proportions_and_are_never_enlarged(size: tuple[int, int], tmp_path: Path):
    write_page([Row(photo(tmp_path / "a.png", size), "a cat")], tmp_path / "page.html")
    (img,) = Page(tmp_path / "page.html").of("img")
    image = picture(img["src"])
    assert (str(image.width), str(image.height)) == (img["width"], img["height"])
    scale = min(1, LONG_SIDE / max(size))
    assert image.size == (max(1, round(size[0] * scale)), max(1, round(size[1] * scale)))


def test_a_photo_that_cannot_be_shown_keeps_its_place_and_says_why(tmp_path: Path):
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    rows = [
        Row(tmp_path / "gone.jpg", "a cat that was here"),
        Row(tmp_path / "broken.jpg", ""),
        Row(photo(tmp_path / "a.png"), "a cat"),
    ]
    write_page(rows, tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert len(page.of("figure")) == 3
    assert len(page.of("img")) == 1
    assert page.text("caption") == ["a cat that was here", "a cat"]
    assert page.text("note")[0] == "there is no such file"
    assert len(page.text("note")) == 2


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path):
    with pytest.raises(UserError, match="folder"):
        write_page([], tmp_path)
