from __future__ import annotations

import importlib.util
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from tellapart import album
from tellapart.data import examples
from tellapart.data.examples import Example
from tellapart.data.media import photos

ALBUM = examples.read(album.HERE / "album.json")
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_album.py"


@pytest.fixture(params=ALBUM.examples, ids=lambda example: str(example.id))
def photo(request: pytest.FixtureRequest) -> Example:
    return request.param


def chunks(data: bytes) -> list[bytes]:
    """The names of a WebP file's parts: VP8 is the picture; EXIF, XMP and ICCP would be metadata."""
    assert data[:4] == b"RIFF"
    assert data[8:12] == b"WEBP"
    names, at = [], 12
    while at < len(data):
        names.append(data[at : at + 4])
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    return names


def test_the_album_is_as_large_as_it_should_be():
    files = list((album.HERE / "photos").iterdir())
    assert 60 <= len(files) <= 120
    assert {file.name for file in files} == {example.file.name for example in ALBUM.examples}
    assert sum(file.stat().st_size for file in files) <= 3_000_000


def test_nothing_in_the_data_file_was_left_out():
    assert ALBUM.name == "album"
    assert ALBUM.problems == []


def test_a_photo_may_be_handed_on(photo: Example):
    assert photo.extra["license"] in (4, 7)
    assert photo.split == "test"  # no captioner was trained on it


def test_a_photo_has_its_credit_line(photo: Example):
    credits = (album.HERE / "CREDITS.md").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in credits if line.startswith(f"| {photo.file.name} |")]
    licence = {4: "CC BY 2.0", 7: "no known copyright restrictions"}[photo.extra["license"]]
    assert f"| photo {photo.id}, via COCO | [{licence}](" in line


def test_the_captions_are_credited_too():
    text = (album.HERE / "CREDITS.md").read_text(encoding="utf-8")
    assert "The reference captions in `album.json` are COCO's, under [CC BY 4.0](" in " ".join(text.split())


def test_a_photo_opens_and_is_of_a_useful_size(photo: Example):
    assert photos.read(photo.file, 256).pixels.shape == (256, 256, 3)
    with Image.open(photo.file) as image:
        assert min(image.size) == 224


def test_a_photo_has_no_metadata(photo: Example):
    assert chunks(photo.file.read_bytes()) == [b"VP8 "]
    with Image.open(photo.file) as image:
        assert not image.getexif()


def test_a_photo_has_its_references(photo: Example):
    assert len(photo.captions) >= 5


def test_groups_have_look_alikes_and_some_photos_stand_alone():
    groups = Counter(example.extra["group"] for example in ALBUM.examples)
    alone = groups.pop("")
    assert len(groups) >= 8
    assert min(groups.values()) >= 3
    assert alone >= 3
    names = [example.extra["group"] for example in ALBUM.examples]
    assert sum(a != b for a, b in pairwise(names)) == len(groups)  # each group is in one piece
    assert names[-1] == ""


@pytest.mark.skipif(not SCRIPT.exists(), reason="the script does not come with the package")
def test_the_script_lists_the_photos_of_the_album():
    spec = importlib.util.spec_from_file_location("make_album", SCRIPT)
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    listed = [(id, group) for group, ids in script.GROUPS.items() for id in ids]
    assert listed == [(example.id, example.extra["group"]) for example in ALBUM.examples]
