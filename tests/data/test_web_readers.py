"""nocaps, Conceptual Captions and Concadia in the forms that their authors publish."""

import zlib

import pytest

from capscore.errors import UserError
from support.written import put, touch
from tellapart.data import examples
from tellapart.data.readers.annotations import read_concadia, read_nocaps
from tellapart.data.readers.lines import read_conceptual


def test_nocaps_has_its_domains_as_splits(tmp_path):
    domains = ("in-domain", "near-domain", "out-domain")
    images = [
        {"id": i, "file_name": f"{i}a.jpg", "domain": d, "open_images_id": f"{i}a"} for i, d in enumerate(domains)
    ]
    told = [{"id": n, "image_id": n % 3, "caption": f"caption {n}"} for n in range(6)]
    touch(tmp_path / "images" / "1a.jpg")
    content = {"licenses": [], "info": {}, "images": images, "annotations": told}
    dataset = read_nocaps(put(tmp_path / "nocaps_val_4500_captions.json", content))
    assert (dataset.name, dataset.problems) == ("nocaps", [])
    assert [example.split for example in dataset.examples] == ["in", "near", "out"]
    assert dataset.examples[1].captions == ("caption 1", "caption 4")
    assert dataset.examples[1].file == tmp_path / "images" / "1a.jpg"


def test_nocaps_test_list_has_neither_domains_nor_captions(tmp_path):
    content = {"images": [{"id": 7, "file_name": "x.jpg"}]}
    dataset = read_nocaps(put(tmp_path / "nocaps_test_image_info.json", content))
    assert [(example.split, example.captions) for example in dataset.examples] == [("test", ())]


def test_conceptual_captions_finds_photos_by_number_or_by_the_checksum_of_their_url(tmp_path):
    urls = ["http://a.example/x.JPG?imgmax=800", "https://b.example/y.png", "http://c.example/z.jpg"]
    lines = "".join(f"caption {n}\t{url}\n" for n, url in enumerate(urls)) + "no url here\n"
    touch(tmp_path / "photos" / "00000" / "000000000.jpg", tmp_path / "photos" / f"{zlib.crc32(urls[1].encode())}.jpg")
    source = put(tmp_path / "Validation_GCC-1.1.0-Validation.tsv", lines)
    dataset = read_conceptual(source, tmp_path / "photos")
    assert [(e.id, e.split, e.captions, e.extra["url"]) for e in dataset.examples] == [
        (f"val-{n}", "val", (f"caption {n}",), url) for n, url in enumerate(urls)
    ]
    assert [example.file.is_file() for example in dataset.examples] == [True, True, False]
    assert dataset.problems == [f"{source}: line 4: it is not a caption, a tab and a URL."]


def test_the_training_file_of_conceptual_captions_is_the_training_split(tmp_path):
    dataset = read_conceptual(put(tmp_path / "Train_GCC-training.tsv", "a bus\thttp://a.example/1.jpg"))
    assert dataset.examples[0].split == "train"
    with pytest.raises(UserError, match="not Conceptual Captions"):
        read_conceptual(put(tmp_path / "other.tsv", "a bus\n"))


def test_both_files_of_conceptual_captions_become_one_data_file_with_two_splits(tmp_path, tellapart):
    """Both count their lines from 0; they were two data files of one name, and none had both splits."""
    sources = [tmp_path / "Train_GCC-training.tsv", tmp_path / "Validation_GCC-1.1.0-Validation.tsv"]
    put(sources[0], "a bus\thttp://a.example/1.jpg\na dog\thttp://a.example/2.jpg\n")
    put(sources[1], "a cat\thttp://a.example/3.jpg\n")
    touch(tmp_path / "cc" / "training" / "00000" / "000000000.jpg", tmp_path / "cc" / "training" / "000000001.jpg")
    touch(tmp_path / "cc" / "validation" / "other.jpg")
    out = tmp_path / "concap.json"
    code, printed, err = tellapart("prepare", "conceptual", *sources, "--photos", tmp_path / "cc", "--out", out)
    assert code == 1  # the photo of the validation file is not there, and is not the first of the training
    assert "1 of 3 photos cannot be found" in err
    assert "3 photos, 3 captions (2 train, 1 val)" in printed
    assert [(e.id, e.split) for e in examples.read(out, needs_files=False).examples] == [
        ("train-0", "train"),
        ("train-1", "train"),
        ("val-0", "val"),
    ]


def test_parts_with_the_same_ids_or_of_other_data_sets_are_not_joined(tmp_path, tellapart):
    first, second = (put(tmp_path / name, "a bus\thttp://a.example/1.jpg\n") for name in ("a.tsv", "b.tsv"))
    code, _, err = tellapart("prepare", "conceptual", first, second, "--out", tmp_path / "data.json")
    assert (code, err) == (2, f"tellapart prepare: {first} and {second} both have a photo with the id 0.\n")
    assert not (tmp_path / "data.json").exists()


def test_concadia_has_captions_and_descriptions(tmp_path):
    image = {
        "filename": "70.jpg",
        "split": "test",
        "caption": {"raw": "Reentry, December 27", "tokens": ["Reentry"]},
        "description": {"raw": "White streaks of light.", "tokens": ["White"]},
        "context": {"raw": "Apollo 8 ..."},
        "orig_filename": "Apollo.jpg",
    }
    touch(tmp_path / "resized" / "70.jpg")
    dataset = read_concadia(
        put(tmp_path / "wiki_split.json", {"images": [image], "dataset": "wiki"}), tmp_path / "resized"
    )
    (example,) = dataset.examples
    assert (example.id, example.split, example.captions) == ("70.jpg", "test", ("Reentry, December 27",))
    assert example.extra["descriptions"] == ["White streaks of light."]
    assert example.file == tmp_path / "resized" / "70.jpg"
    with pytest.raises(UserError, match="not Concadia"):
        read_concadia(put(tmp_path / "other.json", {"images": [{"filename": "1.jpg"}]}))


def test_a_prepared_file_keeps_the_second_text(tmp_path, tellapart):
    image = {"filename": "1.jpg", "split": "test", "caption": {"raw": "Kigali"}, "description": {"raw": "A city."}}
    source = put(tmp_path / "wiki_split.json", {"images": [image]})
    code, _, err = tellapart("prepare", "concadia", source, "--out", tmp_path / "data.json")
    assert code == 1  # the photo is not there, which is counted
    assert "1 of 1 photo cannot be found" in err
    assert examples.read(tmp_path / "data.json").examples[0].extra["descriptions"] == ["A city."]
