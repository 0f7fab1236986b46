"""Data sets in the forms that their authors publish, what is broken in them, and folders."""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter

import numpy as np
import pytest

from capscore.errors import UserError
from support.clips import write_clip
from support.written import put, touch
from tellapart import plugins
from tellapart.data import examples
from tellapart.data.examples import segment_of
from tellapart.data.items import open_path
from tellapart.data.readers import READERS, folder
from tellapart.data.readers.annotations import (
    read_coco,
    read_concadia,
    read_karpathy,
    read_msrvtt,
    read_nocaps,
)
from tellapart.data.readers.lines import read_conceptual, read_flickr, read_msvd


def karpathy(cocoid, split, filepath="val2014"):
    return {
        "filepath": filepath,
        "filename": f"COCO_{filepath}_{cocoid:012}.jpg",
        "imgid": 0,
        "cocoid": cocoid,
        "split": split,
        "sentids": [770337],
        "sentences": [{"raw": "A man with a red helmet.", "tokens": ["a", "man"], "imgid": 0, "sentid": 770337}],
    }


def coco(*ids):
    """Two captions for each image, not in the order of the images: that is how COCO has them."""
    turns = [(turn, i) for turn in (1, 2) for i in reversed(ids)]
    return {
        "info": {"year": 2014},
        "images": [{"id": i, "file_name": f"{i}.jpg", "license": 4, "height": 480, "width": 640} for i in ids],
        "annotations": [{"id": 100 * t + i, "image_id": i, "caption": f"caption {t} of {i}"} for t, i in turns],
    }


HELMET = ("A man with a red helmet.",)
TOKENS = """\
1000268201_693b08cb0e.jpg#0\tA child in a pink dress .
1000268201_693b08cb0e.jpg#1\tA girl going into a wooden building .
1001773457_577c3a7d70.jpg#0\tA black dog and a spotted dog are fighting
"""
CHILD, DOGS = ("A child in a pink dress .", "A girl going into a wooden building ."), TOKENS.split("\t")[3].strip()
CSV = "image,caption\n" + "".join(f"1000268201_693b08cb0e.jpg,{text}\n" for text in CHILD)
NOCAPS = [{"id": i, "file_name": f"{i}a.jpg", "domain": f"{d}-domain"} for i, d in enumerate(("in", "near", "out"))]
SIX = [{"id": n, "image_id": n % 3, "caption": f"caption {n}"} for n in range(6)]
URLS = ["http://a.example/x.JPG?imgmax=800", "https://b.example/y.png"]
CONCADIA = {
    "filename": "70.jpg",
    "split": "test",
    "caption": {"raw": "Reentry, December 27", "tokens": ["Reentry"]},
    "description": {"raw": "White streaks of light.", "tokens": ["White"]},
    "context": {"raw": "Apollo 8 ..."},
}
VIDEOS = [{"video_id": "video0", "split": "train", "category": 9}, {"video_id": "video7", "split": "validate"}]
SENTENCES = [{"video_id": f"video{7 * (number % 2)}", "caption": f"c{number}"} for number in range(4)]
MSVD_TEXT = "# comment\n-a_5_15 a squirrel eats\nb_c_1_2 two men\n-a_5_15 it eats a nut\n"
MSVD_TABLE = (
    "VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description\n"
    'b_c,1,2,3,clean,4,English,"two men, one dog"\n'
    "-a,5,15,3,clean,4,German,ein Eichhorn\n"
    "-a,5,15,3,clean,4,English,a squirrel eats\n"
)
MAPPING = {"youtube_mapping.txt": "-a_5_15 vid1\nb_c_1_2 vid1301\n"}
LISTS = {  # beside Flickr's captions; the last is no list of a split
    "Flickr_8k.trainImages.txt": "1000268201_693b08cb0e.jpg\n",
    "Flickr_8k.devImages.txt": "1001773457_577c3a7d70.jpg\n",
    "ImagesAndMoreImages.txt": "this is no list of a split",
}

# the reader, its source and what lies beside it, and (id, split, captions, file) of each example
PUBLISHED = {
    "Karpathy's COCO": (
        read_karpathy,
        {"dataset_coco.json": {"images": [karpathy(9, "restval"), karpathy(7, "train", "train2014")]}},
        [
            (9, "train", HELMET, "val2014/COCO_val2014_000000000009.jpg"),
            (7, "train", HELMET, "train2014/COCO_train2014_000000000007.jpg"),
        ],
    ),
    "Karpathy's Flickr8k": (  # neither cocoid nor filepath
        read_karpathy,
        {
            "dataset_flickr8k.json": {
                "images": [{"imgid": 3, "filename": "2.jpg", "split": "train", "sentences": [{"raw": "A black dog ."}]}]
            },
            "Flicker8k_Dataset/2.jpg": "",
        },
        [(3, "train", ("A black dog .",), "Flicker8k_Dataset/2.jpg")],
    ),
    "COCO": (  # the split is in the name of the file, photos are where archives unpack them
        read_coco,
        {"annotations/captions_val2014.json": coco(7, 8), "val2014/7.jpg": "", "images/val2014/8.jpg": ""},
        [
            (7, "val", ("caption 1 of 7", "caption 2 of 7"), "val2014/7.jpg"),
            (8, "val", ("caption 1 of 8", "caption 2 of 8"), "images/val2014/8.jpg"),
        ],
    ),
    "COCO without a split": (read_coco, {"captions.json": coco(1)}, [(1, "", None, None)]),
    "COCO's training set": (read_coco, {"captions_train2017.json": coco(1)}, [(1, "train", None, None)]),
    "nocaps": (
        read_nocaps,
        {"nocaps_val_4500_captions.json": {"images": NOCAPS, "annotations": SIX}, "images/1a.jpg": ""},
        [
            (0, "in", ("caption 0", "caption 3"), None),
            (1, "near", ("caption 1", "caption 4"), "images/1a.jpg"),
            (2, "out", ("caption 2", "caption 5"), None),
        ],
    ),
    "nocaps' list": (  # of the test set, without domains and captions
        read_nocaps,
        {"nocaps_test_image_info.json": {"images": [{"id": 7, "file_name": "x.jpg"}]}},
        [(7, "test", (), None)],
    ),
    "Conceptual Captions": (  # photos by number, or by the checksum of their URL
        read_conceptual,
        {
            "Validation_GCC-1.1.0-Validation.tsv": "".join(f"caption {n}\t{url}\n" for n, url in enumerate(URLS)),
            "images/00000/000000000.jpg": "",
            f"images/{zlib.crc32(URLS[1].encode())}.jpg": "",
        },
        [
            ("val-0", "val", ("caption 0",), "images/00000/000000000.jpg"),
            ("val-1", "val", ("caption 1",), f"images/{zlib.crc32(URLS[1].encode())}.jpg"),
        ],
    ),
    "Conceptual Captions' training set": (
        read_conceptual,
        {"Train_GCC-training.tsv": "a bus\thttp://a.example/1.jpg"},
        [("train-0", "train", ("a bus",), None)],
    ),
    "Concadia": (
        read_concadia,
        {"wiki_split.json": {"images": [CONCADIA], "dataset": "wiki"}, "images/70.jpg": ""},
        [("70.jpg", "test", ("Reentry, December 27",), "images/70.jpg")],
    ),
    "MSR-VTT": (
        read_msrvtt,
        {"videodatainfo_2016.json": {"videos": VIDEOS, "sentences": SENTENCES}, "TrainValVideo/video7.mp4": "x"},
        [("video0", "train", ("c0", "c2"), None), ("video7", "val", ("c1", "c3"), "TrainValVideo/video7.mp4")],
    ),
    "MSVD's text": (
        read_msvd,
        {"AllVideoDescriptions.txt": MSVD_TEXT, **MAPPING},
        [
            ("-a_5_15", "train", ("a squirrel eats", "it eats a nut"), None),
            ("b_c_1_2", "test", ("two men",), None),
        ],
    ),
    "MSVD's table": (
        read_msvd,
        {"video_corpus.csv": MSVD_TABLE, **MAPPING},
        [("-a_5_15", "train", ("a squirrel eats",), None), ("b_c_1_2", "test", ("two men, one dog",), None)],
    ),
    "Flickr's tokens": (  # the line ends of Windows, blank lines, lists of the splits, and photos beside the folder
        read_flickr,
        {
            "Flickr8k_text/Flickr8k.token.txt": ("\n" + TOKENS + "in_no.jpg#0\tA photo .\n\n").replace("\n", "\r\n"),
            **{f"Flickr8k_text/{name}": text for name, text in LISTS.items()},
            "Flicker8k_Dataset/1000268201_693b08cb0e.jpg": "",
        },
        [
            ("1000268201_693b08cb0e.jpg", "train", CHILD, "Flicker8k_Dataset/1000268201_693b08cb0e.jpg"),
            ("1001773457_577c3a7d70.jpg", "val", (DOGS,), None),
            ("in_no.jpg", "", ("A photo .",), None),
        ],
    ),
    "Flickr's CSV": (read_flickr, {"captions.txt": CSV}, [("1000268201_693b08cb0e.jpg", "", CHILD, None)]),
    "a comma in a caption": (
        read_flickr,
        {"captions.txt": 'image,caption\na.jpg,"A man, a ""big"" dog ."\nb.jpg,A man, a dog .\n'},
        [("a.jpg", "", ('A man, a "big" dog .',), None), ("b.jpg", "", ("A man, a dog .",), None)],
    ),
    "CSV with the number of the comment": (
        read_flickr,
        {"captions.txt": "image_name,comment_number,comment\na.jpg,0, Two guys .\na.jpg,1, Two men , talking .\n"},
        [("a.jpg", "", ("Two guys .", "Two men , talking ."), None)],
    ),
    "results.csv with its line that lacks a bar": (
        read_flickr,
        {
            "results.csv": "image_name| comment_number| comment\n"
            "2.jpg| 3| A dog | with a bar .\n2.jpg| 4   A dog runs .\n"
        },
        [("2.jpg", "", ("A dog | with a bar .", "A dog runs ."), None)],
    ),
}


def written(tmp_path, files):
    first, *_ = [put(tmp_path / name, content) for name, content in files.items()]
    return first


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_data_set_as_its_authors_publish_it(name, tmp_path):
    read, files, expected = PUBLISHED[name]
    dataset = read(written(tmp_path, files))
    assert dataset.problems == []
    assert dataset.kind == ("videos" if read in (read_msrvtt, read_msvd) else "images")
    for example, (id, split, captions, file) in zip(dataset.examples, expected, strict=True):
        assert (example.id, example.split) == (id, split)
        assert captions in (None, example.captions)
        assert file is None or example.file == tmp_path / file
    if read is read_coco:
        assert {example.extra["license"] for example in dataset.examples} == {4}
    if read is read_concadia:
        assert dataset.examples[0].extra["descriptions"] == ["White streaks of light."]


# the reader, the source, the ids that can be used, and what is said of the rest
BROKEN = {
    "Karpathy's": (
        read_karpathy,
        {
            "dataset_coco.json": {
                "images": [
                    karpathy(42, "test"),
                    {"imgid": 1, "split": "test", "sentences": []},
                    {**karpathy(2, "test"), "sentences": "A dog."},
                    {**karpathy(3, "test"), "sentences": [{"tokens": ["a"]}]},
                    {**karpathy(4, "test"), "split": ["test"]},
                    {"filename": "a.jpg"},
                    "a.jpg",
                ]
            }
        },
        [42, 3],
        [
            'image 1: "filename" is missing.',
            'image 2: "sentences" must be a list of strings, not a string.',
            'image 3: "sentences" number 1 must be a string, not null.',
            'image 4: "split" must be a string, not a list.',
            'image number 6: "cocoid" or "imgid" is missing.',
            "image number 7: it must be an object, not a string.",
        ],
    ),
    "COCO's": (
        read_coco,
        {
            "captions_val2014.json": {
                "images": [{"id": 7, "file_name": "7.jpg"}],
                "annotations": [
                    {"id": 5, "image_id": 99, "caption": "lost"},
                    {"caption": "lost"},
                    "lost",
                    {"id": 6, "image_id": [7]},
                    {"image_id": 7, "caption": "\n"},
                    {"image_id": "7", "caption": "found\n"},
                ],
            }
        },
        [7],
        [
            'image 7: "annotations" number 1 is empty.',
            *(
                f'{which}: "image_id" must be the id of an image in this file.'
                for which in ("annotation 5", "annotation number 2", "annotation number 3", "annotation 6")
            ),
        ],
    ),
    "MSR-VTT's": (
        read_msrvtt,
        {
            "videodatainfo.json": {
                "videos": [
                    {"video_id": 5},
                    "x",
                    {"split": "x"},
                    {"video_id": "v1", "split": 3},
                    {"video_id": "video2"},
                ],
                "sentences": [{"video_id": "video2", "caption": "a"}, {"video_id": "gone", "caption": "b"}, None],
            }
        },
        ["video2"],
        [
            'video 5: "video_id" must be a string, not a number.',
            "video number 2: it must be an object, not a string.",
            'video number 3: "video_id" is missing.',
            "video 'v1': \"split\" must be a string, not a number.",
            'sentence number 2: "video_id" must be the id of a clip in this file.',
            'sentence number 3: "video_id" must be the id of a clip in this file.',
        ],
    ),
    "Flickr's": (
        read_flickr,
        {"Flickr8k.token.txt": TOKENS + "2258277193_586949ec62.jpg.1#0\tsome small dogs .\na line that was cu"},
        ["1000268201_693b08cb0e.jpg", "1001773457_577c3a7d70.jpg"],
        [
            "line 4: '2258277193_586949ec62.jpg.1' is not the name of a photo.",
            "line 5: it has no photo and caption in the form of the other lines.",
        ],
    ),
    "a quotation mark left open": (  # costs one line
        read_flickr,
        {"captions.txt": 'image,caption\na.jpg,"A man\nb.jpg,A "dog"\nc.jpg,A cat\n'},
        ["b.jpg", "c.jpg"],
        ["line 2: it has no photo and caption in the form of the other lines."],
    ),
    "a name in a list that is not in the data": (
        read_flickr,
        {"Flickr8k.token.txt": TOKENS, "Flickr_8k.testImages.txt": "1000268201_693b08cb0e.jpg\nnowhere.jpg\n"},
        ["1000268201_693b08cb0e.jpg", "1001773457_577c3a7d70.jpg"],
        ["1 of its 2 names are not in the data: 'nowhere.jpg'."],
    ),
    "a photo in two lists": (  # nobody should train on a test photo without knowing
        read_flickr,
        {
            "Flickr8k.token.txt": TOKENS,
            "Flickr_8k.testImages.txt": "1000268201_693b08cb0e.jpg\n",
            "Flickr_8k.trainImages.txt": "1000268201_693b08cb0e.jpg\n",
        },
        ["1000268201_693b08cb0e.jpg", "1001773457_577c3a7d70.jpg"],
        ["'1000268201_693b08cb0e.jpg' is in the test split already, and stays there."],
    ),
    "Conceptual Captions'": (
        read_conceptual,
        {"a.tsv": "a bus\thttp://a.example/1.jpg\nno url here\n"},
        [0],
        ["line 2: it is not a caption, a tab and a URL."],
    ),
    "MSVD's": (
        read_msvd,
        {"AllVideoDescriptions.txt": MSVD_TEXT + "no clip\n"},
        ["-a_5_15", "b_c_1_2"],
        [
            "line 5: it has no clip and description in the form of the others.",
            "has 2 clips, not 1,970, and there is no youtube_mapping.txt beside it: the splits are not known.",
        ],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named_in_the_words_of_its_format_and_the_rest_is_used(name, tmp_path):
    read, files, ids, problems = BROKEN[name]
    dataset = read(written(tmp_path, files))
    assert [example.id for example in dataset.examples] == ids
    for sentence, problem in zip(dataset.problems, problems, strict=True):
        assert sentence.startswith(f"{tmp_path}{os.sep}")
        assert sentence.endswith(f": {problem}")


def test_other_formats_are_refused_and_every_one_in_the_table_can_be_loaded_and_has_a_line(tmp_path):
    for read, files, said in (
        (read_karpathy, {"captions_val2014.json": coco(1)}, "tellapart prepare coco"),
        (read_conceptual, {"other.tsv": "a bus\n"}, "not Conceptual Captions"),
        (read_concadia, {"other.json": {"images": [{"filename": "1.jpg"}]}}, "not Concadia"),
        (read_msvd, {"a.txt": "hello\n"}, "not MSVD's descriptions"),
        (read_flickr, {"a.txt": "hello\n"}, "these are not Flickr captions"),
        (folder.read, {"notes.txt": "x"}, "there is no such folder|is not a folder"),
    ):
        with pytest.raises(UserError, match=said):
            read(written(tmp_path, files))
    assert all(callable(entry.load()) and entry.description for entry in READERS.values())


def test_photos_may_lie_in_another_folder_than_the_file_says(tmp_path):
    photo = tmp_path / "elsewhere" / "COCO_val2014_000000000042.jpg"
    touch(photo)
    source = put(tmp_path / "dataset_coco.json", {"images": [karpathy(42, "test")]})
    assert read_karpathy(source, tmp_path / "elsewhere").examples[0].file == photo
    with pytest.raises(UserError, match="nowhere: there is no such folder"):
        read_karpathy(source, tmp_path / "nowhere")
    source = put(tmp_path / "texts" / "videodatainfo.json", {"videos": [{"video_id": "video7"}], "sentences": []})
    put(tmp_path / "media" / "TestVideo" / "video7.mp4", "x")
    for place in (tmp_path / "media", tmp_path / "media" / "TestVideo"):  # that of the clips, or the one above
        assert read_msrvtt(source, place).examples[0].file == tmp_path / "media" / "TestVideo" / "video7.mp4"


def test_a_folder_of_coco_annotations_is_one_data_set_and_a_photo_in_two_files_is_kept_once(tmp_path):
    put(tmp_path / "captions_train2014.json", coco(1, 2))
    put(tmp_path / "captions_val2014.json", coco(1, 3))
    put(tmp_path / "instances_val2014.json", "not captions")
    dataset = read_coco(tmp_path)
    assert {example.id: example.split for example in dataset.examples} == {1: "train", 2: "train", 3: "val"}
    (problem,) = dataset.problems
    assert "captions_val2014.json: image 1:" in problem
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no file captions_"):
        read_coco(tmp_path / "empty")


def splits(dataset):
    return Counter(example.split for example in dataset.examples)


def test_clips_without_splits_get_those_of_the_papers(tmp_path):
    videos = [{"video_id": f"video{number}"} for number in range(10_000)]
    dataset = read_msrvtt(put(tmp_path / "videodatainfo.json", {"videos": videos, "sentences": []}))
    assert splits(dataset) == {"train": 6513, "val": 497, "test": 2990}
    assert [dataset.examples[number].split for number in (6512, 6513, 7009, 7010)] == ["train", "val", "val", "test"]
    names = [f"clip{number:04}_0_9" for number in range(1970)]
    dataset = read_msvd(put(tmp_path / "AllVideoDescriptions.txt", "\n".join(f"{n} text" for n in reversed(names))))
    assert splits(dataset) == {"train": 1200, "val": 100, "test": 670}
    assert [str(e.id) for e in dataset.examples] == names


def test_imagecodes_sets_are_ten_frames_of_their_shot(tmp_path, pytestconfig):
    plugins.load(str(pytestconfig.rootpath / "scripts" / "imagecode.py"))
    read = READERS.pop("imagecode").load()
    black, white = np.zeros((48, 64, 3), np.uint8), np.full((48, 64, 3), 255, np.uint8)
    (tmp_path / "videos").mkdir()
    write_clip(tmp_path / "videos" / "video5.mp4", [black] * 50 + [white] * 50)
    one = {"video": "video5", "split": "test", "descriptions": {"3": "x"}}
    sets = [one | {"set": f"s{shot}_{start}", "shot": shot, "start": start} for shot, start in ((2, 0), (2, 1), (7, 0))]
    dataset = read(put(tmp_path / "imagecode.json", {"sets": [*sets, "broken"]}))
    assert [str(e.id) for e in dataset.examples] == [f"s2_{start}-{n}" for start in (0, 1) for n in range(10)]
    times = [2 + 0.1 * n + 0.05 for n in range(20)]  # the second shot lasts from 2 to 4 s, a set for one second
    assert [segment_of(e.file).start for e in dataset.examples] == pytest.approx(times, abs=1e-3)
    assert [e.captions for e in dataset.examples[:4]] == [(), (), (), ("x",)]
    assert dataset.examples[0].extra == {"set": "s2_0"}
    assert len(dataset.problems) == 2


# Folders


def test_a_folder_is_read_with_the_folders_in_it_sorted_without_hidden_files_and_other_files(tmp_path):
    odd = ["new\nline.jpg", " space .jpg", "#hash?.jpg", "狗.jpg", os.fsdecode(b"\xff\xfe caf\xe9.jpg")]
    names = ["b.jpg", "a/c.PNG", "a/B.webp", ".hidden.jpg", ".cache/d.jpg", "notes.txt", "._b.jpg", "..jpg.jpg", *odd]
    touch(*(tmp_path / name for name in names))
    dataset = folder.read(tmp_path)
    assert [example.id for example in dataset.examples] == sorted(["a/B.webp", "a/c.PNG", "b.jpg", *odd])
    assert {example.file for example in dataset.examples} == {tmp_path / str(e.id) for e in dataset.examples}
    assert {example.captions for example in dataset.examples} == {()}
    examples.write(dataset, tmp_path / "data.json")  # also names that are not UTF-8 go through JSON and back
    assert examples.read(tmp_path / "data.json").examples == dataset.examples


def test_links_that_lead_in_a_circle_are_walked_once_and_the_folder_itself_may_be_a_link(tmp_path):
    touch(tmp_path / "album" / "a" / "dog.jpg", tmp_path / "album" / "z" / "cat.jpg")
    (tmp_path / "album" / "a" / "up").symlink_to(tmp_path / "album")
    (tmp_path / "album" / "a" / "self").symlink_to(tmp_path / "album" / "a" / "self")
    (tmp_path / "album" / "a" / "aside").symlink_to(tmp_path / "album" / "z")
    (tmp_path / "link").symlink_to(tmp_path / "album")
    for place in ("album", "link"):
        dataset = folder.read(tmp_path / place)
        assert [example.id for example in dataset.examples] == ["a/dog.jpg", "z/cat.jpg"]
        assert dataset.problems == []

    touch(tmp_path / "elsewhere" / "sub" / "dog.jpg")  # links to there are named in one sentence and not followed
    (tmp_path / "album" / "a" / "first").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "album" / "second").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "album" / "above").symlink_to(tmp_path)
    dataset = folder.read(tmp_path / "album")
    assert [example.id for example in dataset.examples] == ["a/dog.jpg", "z/cat.jpg"]
    (problem,) = dataset.problems
    assert "3 links to folders outside of it, not followed: a/first, above, second;" in problem


def test_a_folder_of_clips_is_a_data_set_of_clips_and_one_of_both_is_of_photos(tmp_path):
    for name in ("a.mp4", "b/c.MKV", "notes.txt"):
        put(tmp_path / "clips" / name, "x")
    dataset = folder.read(tmp_path / "clips")
    assert ([e.id for e in dataset.examples], dataset.kind) == (["a.mp4", "b/c.MKV"], "videos")
    examples.write(dataset, tmp_path / "data.json")
    for path in (tmp_path / "data.json", tmp_path / "clips"):
        assert open_path(path, takes=("clips",)).kind == "clips"
        with pytest.raises(UserError, match="has clips, and this takes photos"):
            open_path(path, takes=("photos",))
    touch(tmp_path / "clips" / "b.jpg")
    assert [e.id for e in folder.read(tmp_path / "clips").examples] == ["a.mp4", "b.jpg", "b/c.MKV"]
    touch(tmp_path / "none" / "notes.txt")
    with pytest.raises(UserError, match="no photos in this folder"):
        folder.read(tmp_path / "none")


# What `prepare` makes of them


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
    read = examples.read(out, needs_files=False).examples
    assert [(e.id, e.split) for e in read] == [("train-0", "train"), ("train-1", "train"), ("val-0", "val")]

    first, second = (put(tmp_path / name, "a bus\thttp://a.example/1.jpg\n") for name in ("a.tsv", "b.tsv"))
    code, _, err = tellapart("prepare", "conceptual", first, second, "--out", tmp_path / "data.json")
    assert (code, err) == (2, f"tellapart prepare: {first} and {second} both have a photo with the id 0.\n")
    assert not (tmp_path / "data.json").exists()


def test_a_prepared_file_keeps_the_second_text_and_videos(tmp_path, tellapart):
    source = put(tmp_path / "wiki_split.json", {"images": [CONCADIA]})
    code, _, err = tellapart("prepare", "concadia", source, "--out", tmp_path / "data.json")
    assert (code, "1 of 1 photo cannot be found" in err) == (1, True)
    assert examples.read(tmp_path / "data.json").examples[0].extra["descriptions"] == ["White streaks of light."]
    content = {"videos": [{"video_id": "video0"}], "sentences": [{"video_id": "video0", "caption": "a car"}]}
    put(tmp_path / "videos" / "video0.mp4", "x")
    code, out, _ = tellapart(
        "prepare", "msrvtt", put(tmp_path / "videodatainfo.json", content), "--out", tmp_path / "clips.json"
    )
    assert (code, "1 clip, 1 caption (1 train)" in out) == (0, True)
    stored = json.loads((tmp_path / "clips.json").read_text())
    assert stored["videos"] == [{"id": "video0", "file": "videos/video0.mp4", "split": "train", "captions": ["a car"]}]
