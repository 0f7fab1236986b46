from __future__ import annotations

import gzip
import json
import os
import resource
from pathlib import Path

import pytest

from capscore.errors import UserError
from tellapart.data import examples
from tellapart.data.examples import DataSet, Example


def data_file(path: Path, **content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def one_photo(file: Path) -> DataSet:
    return DataSet("toy", [Example(1, file)])


def file_written_for(photo: Path, path: Path) -> str:
    examples.write(one_photo(photo), path)
    return str(json.loads(path.read_text())["images"][0]["file"])


def test_a_record_becomes_an_example(tmp_path):
    record = {"id": 5, "file": "photos/dog.jpg", "split": "val", "captions": ["a dog", "a white dog"], "license": 4}
    dataset = examples.read(data_file(tmp_path / "captions.json", dataset="toy", images=[record]))
    file = tmp_path / "photos" / "dog.jpg"
    assert dataset.examples == [Example(5, file, "val", ("a dog", "a white dog"), {"license": 4})]
    assert (dataset.name, dataset.kind, dataset.problems) == ("toy", "images", [])


def test_photos_without_captions_and_split_are_a_data_set(tmp_path):
    dataset = examples.read(data_file(tmp_path / "album.json", images=[{"id": "a", "file": "a.jpg"}]))
    assert dataset.examples == [Example("a", tmp_path / "a.jpg", "", ())]
    assert dataset.name == "album"


def test_clips_are_read_from_videos(tmp_path):
    path = data_file(tmp_path / "clips.json", dataset="msrvtt", videos=[{"id": "video7", "file": "video7.mp4"}])
    dataset = examples.read(path)
    assert dataset.kind == "videos"
    examples.write(dataset, path)
    assert [record["id"] for record in json.loads(path.read_text())["videos"]] == ["video7"]


def test_a_split_holds_its_own_photos_in_order(tmp_path):
    records = [{"id": i, "file": f"{i}.jpg", "split": split} for i, split in enumerate(["train", "test", "train"])]
    dataset = examples.read(data_file(tmp_path / "captions.json", images=records))
    assert [example.id for example in dataset.split("train")] == [0, 2]


def test_unknown_keys_survive_reading_and_writing(tmp_path):
    record = {"id": 1, "file": "a.jpg", "split": "", "captions": [], "description": "white", "boxes": [[0, 0, 1.5, 2]]}
    content = {"dataset": "toy", "licence": {"name": "CC BY"}, "images": [record]}
    path = data_file(tmp_path / "captions.json", **content)
    examples.write(examples.read(path), path)
    assert json.loads(path.read_text()) == content


def test_a_gzipped_data_file_says_the_same_as_a_plain_one(tmp_path):
    plain = data_file(tmp_path / "captions.json", dataset="toy", images=[{"id": 1, "file": "a.jpg"}])
    packed = tmp_path / "captions.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert examples.read(packed) == examples.read(plain)
    examples.write(examples.read(plain), packed)
    assert json.loads(gzip.decompress(packed.read_bytes()))["images"][0]["file"] == "a.jpg"


def test_a_byte_order_mark_does_no_harm(tmp_path):
    path = tmp_path / "captions.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"images": [{"id": 1, "file": "a.jpg"}]}).encode())
    assert len(examples.read(path).examples) == 1


def test_a_photo_beside_or_below_the_json_is_written_relative_to_it(tmp_path):
    assert file_written_for(tmp_path / "photos" / "dog.jpg", tmp_path / "captions.json") == "photos/dog.jpg"


def test_a_photo_elsewhere_is_written_with_its_whole_path(tmp_path):
    (tmp_path / "data").mkdir()
    photo = tmp_path / "photos" / "dog.jpg"
    assert file_written_for(photo, tmp_path / "data" / "captions.json") == str(photo)


def test_a_folder_with_the_data_can_be_moved(tmp_path):
    (tmp_path / "here").mkdir()
    examples.write(one_photo(tmp_path / "here" / "dog.jpg"), tmp_path / "here" / "captions.json")
    (tmp_path / "here").rename(tmp_path / "there")
    assert examples.read(tmp_path / "there" / "captions.json").examples[0].file == tmp_path / "there" / "dog.jpg"


def test_a_photo_one_folder_up_is_found(tmp_path):
    path = data_file(tmp_path / "json" / "captions.json", images=[{"id": 1, "file": "../photos/dog.jpg"}])
    assert examples.read(path).examples[0].file == tmp_path / "photos" / "dog.jpg"


def test_one_folder_up_from_a_link_is_up_from_where_the_link_leads(tmp_path):
    (tmp_path / "far" / "json").mkdir(parents=True)
    (tmp_path / "json").symlink_to(tmp_path / "far" / "json")
    path = data_file(tmp_path / "json" / "captions.json", images=[{"id": 1, "file": "../dog.jpg"}])
    assert examples.read(path).examples[0].file == tmp_path / "far" / "dog.jpg"


def test_photos_lie_beside_the_link_when_the_data_file_is_a_link(tmp_path):
    """As in the cache of the Hugging Face hub, where every file is a link to a blob in another folder."""
    blob = data_file(tmp_path / "blobs" / "4f2a", images=[{"id": 1, "file": "dog.jpg"}])
    (tmp_path / "snapshot").mkdir()
    link = tmp_path / "snapshot" / "captions.json"
    link.symlink_to(blob)
    assert examples.read(link).examples[0].file == tmp_path / "snapshot" / "dog.jpg"


def test_a_photo_that_is_below_the_json_through_a_link_is_written_relative(tmp_path):
    (tmp_path / "data" / "photos").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    photo = tmp_path / "link" / "photos" / "dog.jpg"
    assert file_written_for(photo, tmp_path / "data" / "captions.json") == "photos/dog.jpg"


def test_a_relative_path_to_the_json_gives_absolute_photos(tmp_path, monkeypatch):
    data_file(tmp_path / "captions.json", images=[{"id": 1, "file": "dog.jpg"}])
    monkeypatch.chdir(tmp_path)
    assert examples.read("captions.json").examples[0].file == tmp_path / "dog.jpg"


def test_a_photo_whose_name_is_not_utf_8_is_found_again(tmp_path):
    photo = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jpg"))
    photo.write_bytes(b"a photo")
    examples.write(one_photo(photo), tmp_path / "captions.json")
    assert examples.read(tmp_path / "captions.json").examples[0].file.read_bytes() == b"a photo"


def test_when_the_disk_is_full_the_old_file_stays_and_nothing_else(tmp_path):
    path = data_file(tmp_path / "captions.json", images=[])
    before = path.read_bytes()
    large = DataSet("toy", [Example(i, tmp_path / f"{i}.jpg", captions=("a dog in the snow",)) for i in range(1000)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # files may not grow past this: as good as a full disk
    try:
        with pytest.raises(
            UserError,
            match=r"captions\.json: the file cannot be written \(File too large\); what was there before is untouched",
        ):
            examples.write(large, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_when_writing_is_interrupted_the_old_file_stays_and_nothing_else(tmp_path, monkeypatch):
    def interrupt(_file: int) -> None:
        raise KeyboardInterrupt

    path = data_file(tmp_path / "captions.json", images=[])
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        examples.write(one_photo(tmp_path / "dog.jpg"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_writing_to_a_folder_that_does_not_exist_makes_it(tmp_path):
    examples.write(one_photo(tmp_path / "dog.jpg"), tmp_path / "new" / "captions.json")
    assert len(examples.read(tmp_path / "new" / "captions.json").examples) == 1


def test_writing_to_the_name_of_a_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="this is a folder"):
        examples.write(one_photo(tmp_path / "dog.jpg"), tmp_path)


def test_writing_to_something_that_is_no_regular_file_is_refused_and_leaves_it(tmp_path):
    pipe = tmp_path / "captions.json"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="not a regular file"):
        examples.write(one_photo(tmp_path / "dog.jpg"), pipe)
    assert pipe.is_fifo()


def test_writing_through_a_link_leaves_the_link(tmp_path):
    (tmp_path / "real.json").write_text("{}")
    (tmp_path / "captions.json").symlink_to("real.json")
    examples.write(one_photo(tmp_path / "dog.jpg"), tmp_path / "captions.json")
    assert (tmp_path / "captions.json").is_symlink()
    assert len(examples.read(tmp_path / "real.json").examples) == 1


def test_writing_to_a_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        examples.write(one_photo(tmp_path / "dog.jpg"), tmp_path / ("x" * 300))
    assert list(tmp_path.iterdir()) == []
