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


def test_half_is_held_out_by_what_the_photos_show_and_not_by_their_names(folder, tmp_path):
    found = photo_files.find(folder)
    assert (len(found.of("train")), len(found.of("val"))) == (20, 20)
    other = tmp_path / "other"
    other.mkdir()
    for i, file in enumerate(sorted(folder.iterdir(), reverse=True)):
        shutil.copy(file, other / f"renamed{i:02}.png")
    assert held_out(photo_files.find(other)) == held_out(found)


def test_many_photos_have_no_more_held_out_than_a_report_needs(folder, monkeypatch):
    monkeypatch.setattr(photo_files, "MOST_HELD_OUT", 7)
    found = photo_files.find(folder)
    assert (len(found.of("train")), len(found.of("val"))) == (33, 7)


def test_a_copy_counts_once_whatever_its_metadata(folder):
    shutil.copy(folder / "00.png", folder / "copy.png")
    found = photo_files.find(folder)
    assert len(found.examples) == 40
    assert found.copies == 1


def test_photos_that_cannot_be_opened_are_named_and_the_others_used(folder):
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    found = photo_files.find(folder)
    assert len(found.examples) == 40
    assert found.copies == 0
    assert len(found.problems) == 1
    assert "gone.png" in found.problems[0]


def test_a_folder_of_copies_of_one_photo_is_refused(folder, tmp_path):
    copies = tmp_path / "copies"
    copies.mkdir()
    for i in range(40):
        shutil.copy(folder / "00.png", copies / f"{i}.png")
    with pytest.raises(UserError, match=r"copies: all 40 photos are copies of one; there is nothing to tell apart\.$"):
        photo_files.find(copies)


def test_captions_of_a_data_file_are_not_read(folder, tmp_path):
    images = [{"id": i, "file": f"photos/{i:02}.png", "captions": ["a secret"]} for i in range(40)]
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "mine", "images": images}))
    found = photo_files.find(tmp_path / "data.json")
    assert found.name == "mine"
    assert [example.captions for example in found.examples] == [()] * 40
    assert held_out(found) == held_out(photo_files.find(folder))


def test_some_photos_are_the_same_ones_each_time_and_again_half_held_out(folder):
    found = photo_files.find(folder).some(10)
    assert [example.file for example in found.examples] == [e.file for e in photo_files.find(folder).some(10).examples]
    assert (len(found.of("train")), len(found.of("val"))) == (5, 5)
