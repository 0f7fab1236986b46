"""Data files: read and written as they were, with photos by names that stay true."""

from __future__ import annotations

import gzip
import json
import os
import resource
from pathlib import Path

import pytest

from capscore.errors import UserError
from support.written import put
from tellapart.data import examples
from tellapart.data.examples import DataSet, Example


def images(*records, **content):
    return content | {"images": list(records)}


def one_photo(file):
    return DataSet("toy", [Example(1, file)])


def test_a_record_becomes_an_example_and_unknown_keys_survive(tmp_path):
    record = {"id": 5, "file": "photos/dog.jpg", "split": "val", "captions": ["a dog", "a white dog"], "license": 4}
    content = images(record, dataset="toy", licence={"name": "CC BY"})
    dataset = examples.read(put(tmp_path / "captions.json", content))
    file = tmp_path / "photos" / "dog.jpg"
    assert dataset.examples == [Example(5, file, "val", ("a dog", "a white dog"), {"license": 4})]
    assert (dataset.name, dataset.kind, dataset.problems) == ("toy", "images", [])
    examples.write(dataset, tmp_path / "captions.json")
    assert json.loads((tmp_path / "captions.json").read_text()) == content


def test_photos_without_captions_and_split_are_a_data_set_and_clips_another(tmp_path):
    dataset = examples.read(put(tmp_path / "album.json", images({"id": "a", "file": "a.jpg"})))
    assert (dataset.name, dataset.examples) == ("album", [Example("a", tmp_path / "a.jpg", "", ())])
    assert (dataset.split(""), dataset.split("train")) == (dataset.examples, [])
    path = put(tmp_path / "clips.json", {"dataset": "msrvtt", "videos": [{"id": "video7", "file": "video7.mp4"}]})
    dataset = examples.read(path)
    assert dataset.kind == "videos"
    examples.write(dataset, path)
    assert [record["id"] for record in json.loads(path.read_text())["videos"]] == ["video7"]


def test_a_gzipped_data_file_and_one_with_a_byte_order_mark_say_the_same_as_a_plain_one(tmp_path):
    plain = put(tmp_path / "captions.json", images({"id": 1, "file": "a.jpg"}, dataset="toy"))
    packed, marked = tmp_path / "captions.json.gz", tmp_path / "marked.json"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert examples.read(packed) == examples.read(marked) == examples.read(plain)
    examples.write(examples.read(plain), packed)
    assert json.loads(gzip.decompress(packed.read_bytes()))["images"][0]["file"] == "a.jpg"


def test_a_photo_is_written_relative_to_the_json_where_it_lies_below_it(tmp_path):
    (tmp_path / "data" / "photos").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for photo, data, name in (
        ("photos/dog.jpg", "captions.json", "photos/dog.jpg"),
        ("photos/dog.jpg", "data/captions.json", str(tmp_path / "photos/dog.jpg")),  # elsewhere: its whole path
        ("link/photos/dog.jpg", "data/captions.json", "photos/dog.jpg"),  # below it through a link
    ):
        examples.write(one_photo(tmp_path / photo), tmp_path / data)
        assert json.loads((tmp_path / data).read_text())["images"][0]["file"] == name


def test_photos_are_found_one_folder_up_beside_a_link_and_from_a_relative_path(tmp_path, monkeypatch):
    record = {"id": 1, "file": "../photos/dog.jpg"}
    path = put(tmp_path / "json" / "captions.json", images(record))
    assert examples.read(path).examples[0].file == tmp_path / "photos" / "dog.jpg"
    (tmp_path / "far" / "json").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "json")
    path = put(tmp_path / "link" / "captions.json", images(record))  # up is up from where the link leads
    assert examples.read(path).examples[0].file == tmp_path / "far" / "photos" / "dog.jpg"
    # As in the cache of the Hugging Face hub, where every file is a link to a blob in another folder.
    blob = put(tmp_path / "blobs" / "4f2a", images({"id": 1, "file": "dog.jpg"}))
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "captions.json").symlink_to(blob)
    assert examples.read(tmp_path / "snapshot" / "captions.json").examples[0].file == tmp_path / "snapshot" / "dog.jpg"
    monkeypatch.chdir(tmp_path / "snapshot")
    assert examples.read("captions.json").examples[0].file == tmp_path / "snapshot" / "dog.jpg"


def test_a_folder_with_the_data_can_be_moved_and_names_need_not_be_utf_8(tmp_path):
    photo = Path(os.fsdecode(os.fsencode(tmp_path) + b"/here/caf\xe9.jpg"))
    photo.parent.mkdir()
    photo.write_bytes(b"a photo")
    examples.write(one_photo(photo), tmp_path / "here" / "captions.json")
    (tmp_path / "here").rename(tmp_path / "there")
    assert examples.read(tmp_path / "there" / "captions.json").examples[0].file.read_bytes() == b"a photo"


# Writing


def test_when_the_disk_is_full_or_writing_is_interrupted_the_old_file_stays_and_nothing_else(tmp_path, monkeypatch):
    path = put(tmp_path / "captions.json", images())
    before = path.read_bytes()
    large = DataSet("toy", [Example(i, tmp_path / f"{i}.jpg", captions=("a dog in the snow",)) for i in range(1000)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # files may not grow past this: as good as a full disk
    said = r"captions\.json: the file cannot be written \(File too large\); what was there before is untouched"
    try:
        with pytest.raises(UserError, match=said):
            examples.write(large, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before

    def interrupt(_file):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        examples.write(one_photo(tmp_path / "dog.jpg"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_folder_is_made_and_a_link_stays_a_link(tmp_path):
    examples.write(one_photo(tmp_path / "dog.jpg"), tmp_path / "new" / "captions.json")
    assert len(examples.read(tmp_path / "new" / "captions.json").examples) == 1
    put(tmp_path / "real.json", "{}")
    (tmp_path / "captions.json").symlink_to("real.json")
    examples.write(one_photo(tmp_path / "dog.jpg"), tmp_path / "captions.json")
    assert (tmp_path / "captions.json").is_symlink()
    assert len(examples.read(tmp_path / "real.json").examples) == 1


def test_what_is_no_file_is_refused_and_left(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for name, said in (("", "this is a folder"), ("pipe.json", "not a regular file"), ("x" * 300, "cannot be written")):
        with pytest.raises(UserError, match=said):
            examples.write(one_photo(tmp_path / "dog.jpg"), tmp_path / name)
    assert (tmp_path / "pipe.json").is_fifo()
    assert list(tmp_path.iterdir()) == [tmp_path / "pipe.json"]
