"""The photos of the album: small, credited, without metadata, in groups of look-alikes."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from runpy import run_path

import pytest
from PIL import Image

from tellapart import album
from tellapart.data import examples
from tellapart.data.media import photos

ALBUM = examples.read(album.HERE / "album.json")
CREDITS = (album.HERE / "CREDITS.md").read_text(encoding="utf-8")
LICENCES = {4: "CC BY 2.0", 7: "no known copyright restrictions"}
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_album.py"


def chunks(data):
    """The names of a WebP file's parts: VP8 is the picture; EXIF, XMP and ICCP would be metadata."""
    assert (data[:4], data[8:12]) == (b"RIFF", b"WEBP")
    names, at = [], 12
    while at < len(data):
        names.append(data[at : at + 4])
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    return names


def test_the_album_is_whole_and_as_large_as_it_should_be():
    files = list((album.HERE / "photos").iterdir())
    assert 60 <= len(files) <= 120
    assert {file.name for file in files} == {example.file.name for example in ALBUM.examples}
    assert sum(file.stat().st_size for file in files) <= 3_000_000
    assert (ALBUM.name, ALBUM.problems) == ("album", [])


@pytest.mark.parametrize("photo", ALBUM.examples, ids=lambda example: str(example.id))
def test_a_photo_may_be_handed_on_and_is_of_use(photo):
    """Licence, credit line, no metadata; a useful size, references, and no part in any training."""
    (line,) = [line for line in CREDITS.splitlines() if line.startswith(f"| {photo.file.name} |")]
    assert f"| photo {photo.id}, via COCO | [{LICENCES[photo.extra['license']]}](" in line
    assert chunks(photo.file.read_bytes()) == [b"VP8 "]
    with Image.open(photo.file) as image:
        assert not image.getexif()
        assert min(image.size) == 224
    assert photos.read(photo.file, 256).pixels.shape == (256, 256, 3)
    assert photo.split == "test"
    assert len(photo.captions) >= 5


def test_the_captions_are_credited_too():
    assert "The reference captions in `album.json` are COCO's, under [CC BY 4.0](" in " ".join(CREDITS.split())


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
    listed = [(id, group) for group, ids in run_path(str(SCRIPT))["GROUPS"].items() for id in ids]
    assert listed == [(example.id, example.extra["group"]) for example in ALBUM.examples]
