"""Which photos are learned from, and which are held out."""

import json
import shutil

import pytest

from capscore.errors import UserError
from support.holiday import holiday
from tellapart.adapting import photos as photo_files


@pytest.fixture
def folder(tmp_path):
    return holiday(tmp_path / "photos", 40)


def held_out(photos):
    return {example.file.read_bytes() for example in photos.of("val")}


def sizes(photos):
    return len(photos.of("train")), len(photos.of("val"))


def test_half_is_held_out_by_what_the_photos_show_and_not_by_their_names(folder, tmp_path, monkeypatch):
    """Captions of a data file are not read; a part is the same one each time, and again half held out."""
    photos = photo_files.find(folder)
    assert sizes(photos) == (20, 20)
    other = tmp_path / "other"
    other.mkdir()
    for i, file in enumerate(sorted(folder.iterdir(), reverse=True)):
        shutil.copy(file, other / f"renamed{i:02}.png")
    assert held_out(photo_files.find(other)) == held_out(photos)
    images = [{"id": i, "file": f"photos/{i:02}.png", "captions": ["a secret"]} for i in range(40)]
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "mine", "images": images}))
    of_file = photo_files.find(tmp_path / "data.json")
    assert of_file.name == "mine"
    assert [example.captions for example in of_file.examples] == [()] * 40
    assert held_out(of_file) == held_out(photos)
    some = photos.some(10)
    assert [e.file for e in some.examples] == [e.file for e in photo_files.find(folder).some(10).examples]
    assert sizes(some) == (5, 5)
    monkeypatch.setattr(photo_files, "MOST_HELD_OUT", 7)  # a report needs no more
    assert sizes(photo_files.find(folder)) == (33, 7)


def test_a_copy_counts_once_and_photos_that_cannot_be_opened_are_named(folder, tmp_path):
    shutil.copy(folder / "00.png", folder / "copy.png")
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    photos = photo_files.find(folder)
    assert (len(photos.examples), photos.copies) == (40, 1)
    (problem,) = photos.problems
    assert "gone.png" in problem
    copies = tmp_path / "copies"
    copies.mkdir()
    for i in range(40):
        shutil.copy(folder / "00.png", copies / f"{i}.png")
    with pytest.raises(UserError, match=r"copies: all 40 photos are copies of one; there is nothing to tell apart\.$"):
        photo_files.find(copies)
