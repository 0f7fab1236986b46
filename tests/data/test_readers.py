"""The files have the forms that their authors publish: Karpathy's dataset_*.json, COCO's annotations, Flickr's text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from capscore.errors import UserError
from support.written import put, touch
from tellapart.data import examples
from tellapart.data.readers import READERS, folder
from tellapart.data.readers.annotations import read_coco, read_karpathy
from tellapart.data.readers.lines import read_flickr


def by_id(dataset: examples.DataSet) -> dict[object, examples.Example]:
    return {example.id: example for example in dataset.examples}


@pytest.mark.parametrize("name", READERS)
def test_every_format_in_the_table_can_be_loaded_and_has_a_line(name):
    assert callable(READERS[name].load())
    assert READERS[name].description


def test_a_format_that_is_not_built_is_not_in_the_table():
    assert set(READERS) == {
        *("karpathy", "coco", "flickr", "nocaps", "conceptual", "concadia", "imagecode", "msrvtt", "msvd", "folder")
    }


# Karpathy


def karpathy_image(cocoid: int, split: str, filepath: str = "val2014") -> dict[str, object]:
    return {
        "filepath": filepath,
        "filename": f"COCO_{filepath}_{cocoid:012}.jpg",
        "imgid": 0,
        "cocoid": cocoid,
        "split": split,
        "sentids": [770337],
        "sentences": [{"raw": "A man with a red helmet.", "tokens": ["a", "man"], "imgid": 0, "sentid": 770337}],
    }


def test_karpathys_coco_has_coco_ids_raw_captions_and_restval_as_train(tmp_path):
    images = [
        karpathy_image(391895, "test"),
        karpathy_image(522418, "restval"),
        karpathy_image(9, "train", "train2014"),
    ]
    dataset = read_karpathy(put(tmp_path / "dataset_coco.json", {"images": images, "dataset": "coco"}))
    assert dataset.name == "coco"
    assert dataset.problems == []
    assert [(example.id, example.split) for example in dataset.examples] == [
        (391895, "test"),
        (522418, "train"),
        (9, "train"),
    ]
    assert dataset.examples[0].captions == ("A man with a red helmet.",)
    assert dataset.examples[2].file == tmp_path / "train2014" / "COCO_train2014_000000000009.jpg"


def test_karpathys_flickr_files_have_no_coco_ids_and_no_filepath(tmp_path):
    image = {"imgid": 3, "filename": "2513260012.jpg", "split": "train", "sentences": [{"raw": "A black dog ."}]}
    touch(tmp_path / "Flicker8k_Dataset" / "2513260012.jpg")
    dataset = read_karpathy(put(tmp_path / "dataset_flickr8k.json", {"images": [image], "dataset": "flickr8k"}))
    file = tmp_path / "Flicker8k_Dataset" / "2513260012.jpg"
    assert dataset.examples == [examples.Example(3, file, "train", ("A black dog .",))]


def test_photos_that_lie_in_one_folder_are_found_although_the_file_names_two(tmp_path):
    photo = tmp_path / "elsewhere" / "COCO_val2014_000000000042.jpg"
    touch(photo)
    source = put(tmp_path / "dataset_coco.json", {"images": [karpathy_image(42, "test")]})
    assert read_karpathy(source, tmp_path / "elsewhere").examples[0].file == photo


def test_a_broken_image_is_named_in_karpathys_words(tmp_path):
    broken = [
        {"imgid": 1, "split": "test", "sentences": []},
        {**karpathy_image(2, "test"), "sentences": "A dog."},
        {**karpathy_image(3, "test"), "sentences": [{"tokens": ["a"]}]},
        {**karpathy_image(4, "test"), "split": ["test"]},
        {"filename": "a.jpg"},
        "a.jpg",
    ]
    source = put(tmp_path / "dataset_coco.json", {"images": [karpathy_image(42, "test"), *broken]})
    dataset = read_karpathy(source)
    assert [example.id for example in dataset.examples] == [42, 3]
    assert dataset.problems == [
        f'{source}: image 1: "filename" is missing.',
        f'{source}: image 2: "sentences" must be a list of strings, not a string.',
        f'{source}: image 3: "sentences" number 1 must be a string, not null.',
        f'{source}: image 4: "split" must be a string, not a list.',
        f'{source}: image number 6: "cocoid" or "imgid" is missing.',
        f"{source}: image number 7: it must be an object, not a string.",
    ]


def test_a_folder_of_photos_that_is_not_there_is_refused(tmp_path):
    source = put(tmp_path / "dataset_coco.json", {"images": []})
    with pytest.raises(UserError, match="nowhere: there is no such folder"):
        read_karpathy(source, tmp_path / "nowhere")


def test_coco_annotations_are_not_taken_for_karpathys(tmp_path):
    source = put(tmp_path / "captions_val2014.json", {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": []})
    with pytest.raises(UserError, match="tellapart prepare coco"):
        read_karpathy(source)


# COCO


def coco_annotations(*ids: int) -> dict[str, object]:
    """Two captions for each image, not in the order of the images: that is how COCO has them."""
    return {
        "info": {"year": 2014},
        "images": [{"id": i, "file_name": f"{i}.jpg", "license": 4, "height": 480, "width": 640} for i in ids],
        "annotations": [
            {"id": 100 * turn + i, "image_id": i, "caption": f"caption {turn} of {i}"}
            for turn in (1, 2)
            for i in reversed(ids)
        ],
    }


def test_coco_captions_come_to_their_images(tmp_path):
    dataset = read_coco(put(tmp_path / "captions_val2014.json", coco_annotations(7, 8)))
    assert by_id(dataset)[7].captions == ("caption 1 of 7", "caption 2 of 7")
    assert [example.id for example in dataset.examples] == [7, 8]


def test_the_split_of_coco_is_in_the_name_of_the_file(tmp_path):
    assert read_coco(put(tmp_path / "captions_val2014.json", coco_annotations(1))).examples[0].split == "val"
    assert read_coco(put(tmp_path / "captions_train2017.json", coco_annotations(1))).examples[0].split == "train"
    assert read_coco(put(tmp_path / "captions.json", coco_annotations(1))).examples[0].split == ""


def test_the_licence_of_a_coco_photo_is_kept(tmp_path):
    assert read_coco(put(tmp_path / "captions_val2014.json", coco_annotations(1))).examples[0].extra == {"license": 4}


def test_coco_photos_are_found_where_its_archives_unpack_them(tmp_path):
    touch(tmp_path / "val2014" / "7.jpg", tmp_path / "images" / "val2014" / "8.jpg")
    dataset = read_coco(put(tmp_path / "annotations" / "captions_val2014.json", coco_annotations(7, 8)))
    assert by_id(dataset)[7].file == tmp_path / "val2014" / "7.jpg"
    assert by_id(dataset)[8].file == tmp_path / "images" / "val2014" / "8.jpg"


def test_a_folder_of_coco_annotations_is_one_data_set(tmp_path):
    put(tmp_path / "captions_train2014.json", coco_annotations(1, 2))
    put(tmp_path / "captions_val2014.json", coco_annotations(3))
    put(tmp_path / "instances_val2014.json", "not captions")
    dataset = read_coco(tmp_path)
    assert {example.id: example.split for example in dataset.examples} == {1: "train", 2: "train", 3: "val"}


def test_a_photo_in_two_files_of_annotations_is_kept_once(tmp_path):
    put(tmp_path / "captions_train2014.json", coco_annotations(1))
    put(tmp_path / "captions_val2014.json", coco_annotations(1, 2))
    dataset = read_coco(tmp_path)
    assert {example.id: example.split for example in dataset.examples} == {1: "train", 2: "val"}
    assert len(dataset.problems) == 1
    assert "captions_val2014.json: image 1:" in dataset.problems[0]


def test_a_folder_without_annotations_is_refused(tmp_path):
    with pytest.raises(UserError, match="no file captions_"):
        read_coco(tmp_path)


def test_a_coco_caption_without_an_image_is_named(tmp_path):
    lost = [{"id": 5, "image_id": 99, "caption": "lost"}, {"caption": "lost"}, "lost", {"id": 6, "image_id": [7]}]
    content = {
        "images": [{"id": 7, "file_name": "7.jpg"}],
        "annotations": [*lost, {"image_id": "7", "caption": "found"}],
    }
    source = put(tmp_path / "captions_val2014.json", content)
    dataset = read_coco(source)
    assert dataset.examples[0].captions == ("found",)
    names = ["annotation 5", "annotation number 2", "annotation number 3", "annotation 6"]
    assert dataset.problems == [
        f'{source}: {name}: "image_id" must be the id of an image in this file.' for name in names
    ]


def test_a_coco_caption_that_is_empty_is_left_out_and_its_image_named(tmp_path):
    content = {
        "images": [{"id": 7, "file_name": "7.jpg"}],
        "annotations": [{"id": 1, "image_id": 7, "caption": "\n"}, {"id": 2, "image_id": 7, "caption": "A dog.\n"}],
    }
    dataset = read_coco(put(tmp_path / "captions_val2014.json", content))
    assert dataset.examples[0].captions == ("A dog.",)
    assert len(dataset.problems) == 1
    assert 'image 7: "annotations" number 1 is empty.' in dataset.problems[0]


# Flickr

TOKENS = """\
1000268201_693b08cb0e.jpg#0\tA child in a pink dress .
1000268201_693b08cb0e.jpg#1\tA girl going into a wooden building .
1001773457_577c3a7d70.jpg#0\tA black dog and a spotted dog are fighting
"""
CAPTIONS = {
    "1000268201_693b08cb0e.jpg": ("A child in a pink dress .", "A girl going into a wooden building ."),
    "1001773457_577c3a7d70.jpg": ("A black dog and a spotted dog are fighting",),
}


def captions_of(source: Path) -> dict[object, tuple[str, ...]]:
    dataset = read_flickr(source)
    assert dataset.problems == []
    return {example.id: example.captions for example in dataset.examples}


def test_flickr_tokens_are_a_name_a_number_and_a_caption(tmp_path):
    assert captions_of(put(tmp_path / "Flickr8k.token.txt", TOKENS)) == CAPTIONS


def test_windows_line_ends_and_blank_lines_do_no_harm(tmp_path):
    source = tmp_path / "Flickr8k.token.txt"
    source.write_bytes(("\n" + TOKENS + "\n\n").replace("\n", "\r\n").encode())
    assert captions_of(source) == CAPTIONS


def test_flickr_captions_as_csv(tmp_path):
    lines = ["image,caption", *(f"{name},{text}" for name, texts in CAPTIONS.items() for text in texts)]
    assert captions_of(put(tmp_path / "captions.txt", "\n".join(lines))) == CAPTIONS


def test_a_comma_in_a_caption_stays_quoted_or_not(tmp_path):
    text = 'image,caption\na.jpg,"A man, a ""big"" dog ."\nb.jpg,A man, a dog .\n'
    assert captions_of(put(tmp_path / "captions.txt", text)) == {
        "a.jpg": ('A man, a "big" dog .',),
        "b.jpg": ("A man, a dog .",),
    }


def test_csv_with_the_number_of_the_comment(tmp_path):
    text = "image_name,comment_number,comment\na.jpg,0, Two young guys .\na.jpg,1, Two men , talking .\n"
    assert captions_of(put(tmp_path / "captions.txt", text)) == {"a.jpg": ("Two young guys .", "Two men , talking .")}


def test_a_quotation_mark_left_open_costs_one_line(tmp_path):
    source = put(tmp_path / "captions.txt", 'image,caption\na.jpg,"A man\nb.jpg,A "dog"\nc.jpg,A cat\n')
    dataset = read_flickr(source)
    assert {example.id for example in dataset.examples} == {"b.jpg", "c.jpg"}
    assert len(dataset.problems) == 1
    assert dataset.problems[0].startswith(f"{source}: line 2: ")


def test_flickr30k_results_csv_with_its_line_that_lacks_a_bar(tmp_path):
    text = (
        "image_name| comment_number| comment\n"
        "2199200615.jpg| 3| A brown dog | with a bar .\n"
        "2199200615.jpg| 4   A dog runs across the grass .\n"
    )
    captions = ("A brown dog | with a bar .", "A dog runs across the grass .")
    assert captions_of(put(tmp_path / "results.csv", text)) == {"2199200615.jpg": captions}


def test_lists_beside_the_captions_give_the_splits(tmp_path):
    put(tmp_path / "Flickr_8k.trainImages.txt", "1000268201_693b08cb0e.jpg\n")
    put(tmp_path / "Flickr_8k.devImages.txt", "1001773457_577c3a7d70.jpg\n")
    put(tmp_path / "Flickr_8k.testImages.txt", "\n")
    put(tmp_path / "ImagesAndMoreImages.txt", "this is no list of a split")
    extra = "1002674143_1b742ab4b8.jpg#0\tA photo in no list .\n"
    dataset = read_flickr(put(tmp_path / "Flickr8k.token.txt", TOKENS + extra))
    assert [example.split for example in dataset.examples] == ["train", "val", ""]
    assert dataset.problems == []


def test_a_photo_in_two_lists_is_told(tmp_path):
    """Nobody should train on a test photo without knowing."""
    put(tmp_path / "Flickr_8k.testImages.txt", "1000268201_693b08cb0e.jpg\n")
    put(tmp_path / "Flickr_8k.trainImages.txt", "1000268201_693b08cb0e.jpg\n")
    dataset = read_flickr(put(tmp_path / "Flickr8k.token.txt", TOKENS))
    assert len(dataset.problems) == 1
    assert "1000268201_693b08cb0e.jpg" in dataset.problems[0]
    assert by_id(dataset)["1000268201_693b08cb0e.jpg"].split == "test"


def test_a_listed_photo_that_has_no_captions_is_told(tmp_path):
    put(tmp_path / "Flickr_8k.testImages.txt", "1000268201_693b08cb0e.jpg\nnowhere.jpg\n")
    dataset = read_flickr(put(tmp_path / "Flickr8k.token.txt", TOKENS))
    assert len(dataset.problems) == 1
    assert "1 of its 2 names are not in the data: 'nowhere.jpg'." in dataset.problems[0]


def test_the_name_in_flickr8k_that_is_no_photo_is_left_out_and_named(tmp_path):
    source = put(tmp_path / "Flickr8k.token.txt", TOKENS + "2258277193_586949ec62.jpg.1#0\tsome small dogs .\n")
    dataset = read_flickr(source)
    assert set(by_id(dataset)) == set(CAPTIONS)
    assert dataset.problems == [f"{source}: line 4: '2258277193_586949ec62.jpg.1' is not the name of a photo."]


def test_a_line_without_a_caption_is_named_by_number(tmp_path):
    source = put(tmp_path / "Flickr8k.token.txt", TOKENS + "a line that was cu")
    dataset = read_flickr(source)
    assert set(by_id(dataset)) == set(CAPTIONS)
    assert len(dataset.problems) == 1
    assert dataset.problems[0].startswith(f"{source}: line 4: ")


def test_flickr_photos_are_found_beside_the_folder_of_the_text(tmp_path):
    photo = tmp_path / "Flicker8k_Dataset" / "1000268201_693b08cb0e.jpg"
    touch(photo)
    dataset = read_flickr(put(tmp_path / "Flickr8k_text" / "Flickr8k.token.txt", TOKENS))
    assert by_id(dataset)["1000268201_693b08cb0e.jpg"].file == photo


# A folder


def test_a_folder_is_read_with_the_folders_in_it_sorted_without_hidden_files_and_other_files(tmp_path):
    photos = ["b.jpg", "a/c.PNG", "a/B.webp", ".hidden.jpg", ".cache/d.jpg", "notes.txt", "._b.jpg"]
    touch(*(tmp_path / name for name in photos))
    dataset = folder.read(tmp_path)
    assert [example.id for example in dataset.examples] == ["a/B.webp", "a/c.PNG", "b.jpg"]
    assert dataset.examples[0].file == tmp_path / "a" / "B.webp"
    assert {example.captions for example in dataset.examples} == {()}


def test_links_that_lead_in_a_circle_are_walked_once(tmp_path):
    touch(tmp_path / "a" / "dog.jpg", tmp_path / "z" / "cat.jpg")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a" / "self")
    (tmp_path / "a" / "aside").symlink_to(tmp_path / "z")
    assert [example.id for example in folder.read(tmp_path).examples] == ["a/dog.jpg", "z/cat.jpg"]


def test_links_to_folders_elsewhere_are_named_in_one_sentence_and_not_followed(tmp_path):
    touch(tmp_path / "elsewhere" / "sub" / "dog.jpg", tmp_path / "album" / "a" / "cat.jpg")
    (tmp_path / "album" / "a" / "first").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "album" / "second").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "album" / "up").symlink_to(tmp_path)
    found = folder.read(tmp_path / "album")
    assert [example.id for example in found.examples] == ["a/cat.jpg"]
    (problem,) = found.problems
    assert "3 links to folders outside of it, not followed: a/first, second, up;" in problem


def test_a_folder_that_is_named_may_be_a_link(tmp_path):
    touch(tmp_path / "elsewhere" / "dog.jpg")
    (tmp_path / "album").symlink_to(tmp_path / "elsewhere")
    found = folder.read(tmp_path / "album")
    assert [example.id for example in found.examples] == ["dog.jpg"]
    assert found.problems == []


def test_names_that_are_not_utf_8_go_through_json_and_back(tmp_path):
    odd = os.fsencode(tmp_path) + b"/\xff\xfe caf\xe9.jpg"
    touch(Path(os.fsdecode(odd)))
    examples.write(folder.read(tmp_path), tmp_path / "data.json")
    again = examples.read(tmp_path / "data.json")
    assert [os.fsencode(example.file) for example in again.examples] == [odd]


def test_odd_but_legal_names_are_photos_too(tmp_path):
    names = ["new\nline.jpg", " space .jpg", "#hash?.jpg", "狗.jpg", "..jpg.jpg"]
    touch(*(tmp_path / name for name in names))
    assert {example.file.name for example in folder.read(tmp_path).examples} == set(names) - {"..jpg.jpg"}


def test_a_folder_without_photos_is_refused(tmp_path):
    touch(tmp_path / "notes.txt")
    with pytest.raises(UserError, match="no photos in this folder"):
        folder.read(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        folder.read(tmp_path / "nowhere")
