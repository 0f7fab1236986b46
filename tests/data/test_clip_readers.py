"""MSR-VTT and MSVD as published, and folders of clips."""

import json
from collections import Counter

import numpy as np
import pytest

from capscore.errors import UserError
from support.clips import write_clip
from tellapart.__main__ import main
from tellapart.data import examples
from tellapart.data.examples import segment_of
from tellapart.data.items import open_path
from tellapart.data.readers import folder
from tellapart.data.readers.annotations import read_imagecode, read_msrvtt
from tellapart.data.readers.lines import read_msvd


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def splits(dataset):
    return Counter(example.split for example in dataset.examples)


def test_msrvtt_has_the_captions_of_each_clip_and_its_split(tmp_path):
    videos = [{"video_id": "video0", "split": "train", "category": 9}, {"video_id": "video7", "split": "validate"}]
    sentences = [{"video_id": f"video{7 * (number % 2)}", "caption": f"c{number}"} for number in range(4)]
    (tmp_path / "TrainValVideo").mkdir()
    (tmp_path / "TrainValVideo" / "video7.mp4").write_bytes(b"x")
    dataset = read_msrvtt(put(tmp_path / "videodatainfo_2016.json", {"videos": videos, "sentences": sentences}))
    assert [(e.id, e.split, e.captions) for e in dataset.examples] == [
        ("video0", "train", ("c0", "c2")),
        ("video7", "val", ("c1", "c3")),
    ]
    assert dataset.kind == "videos"
    assert dataset.examples[1].file == tmp_path / "TrainValVideo" / "video7.mp4"


def test_photos_names_the_folder_of_the_clips_or_the_one_above_them(tmp_path):
    source = put(tmp_path / "texts" / "videodatainfo.json", {"videos": [{"video_id": "video7"}], "sentences": []})
    put(tmp_path / "media" / "TestVideo" / "video7.mp4", "x")
    for given in (tmp_path / "media", tmp_path / "media" / "TestVideo"):
        (example,) = read_msrvtt(source, given).examples
        assert example.file == tmp_path / "media" / "TestVideo" / "video7.mp4"
    put(tmp_path / "media" / "video7.mp4", "x")
    assert read_msrvtt(source, tmp_path / "media").examples[0].file == tmp_path / "media" / "video7.mp4"


def test_msrvtt_without_splits_gets_those_of_the_papers_by_number(tmp_path):
    videos = [{"video_id": f"video{number}"} for number in range(10_000)]
    dataset = read_msrvtt(put(tmp_path / "videodatainfo.json", {"videos": videos, "sentences": []}))
    assert splits(dataset) == {"train": 6513, "val": 497, "test": 2990}
    assert [dataset.examples[number].split for number in (6512, 6513, 7009, 7010)] == ["train", "val", "val", "test"]


def test_msrvtts_broken_records_are_named(tmp_path):
    videos = [{"video_id": 5}, "x", {"split": "train"}, {"video_id": "video1", "split": 3}, {"video_id": "video2"}]
    sentences = [{"video_id": "video2", "caption": "a"}, {"video_id": "gone", "caption": "b"}, None]
    source = put(tmp_path / "videodatainfo.json", {"videos": videos, "sentences": sentences})
    dataset = read_msrvtt(source)
    assert [e.id for e in dataset.examples] == ["video2"]
    assert len(dataset.problems) == 6
    assert all(str(source) in problem for problem in dataset.problems)


MSVD_TEXT = "# comment\n-a_5_15 a squirrel eats\nb_c_1_2 two men\n-a_5_15 it eats a nut\nno clip\n"
MSVD_TABLE = (
    "VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description\n"
    'b_c,1,2,3,clean,4,English,"two men, one dog"\n'
    "-a,5,15,3,clean,4,German,ein Eichhorn\n"
    "-a,5,15,3,clean,4,English,a squirrel eats\n"
)
MAPPING = "-a_5_15 vid1\nb_c_1_2 vid1301\n"


@pytest.mark.parametrize(
    ("name", "text", "captions", "problems"),
    [
        ("AllVideoDescriptions.txt", MSVD_TEXT, [("a squirrel eats", "it eats a nut"), ("two men",)], 1),
        ("video_corpus.csv", MSVD_TABLE, [("a squirrel eats",), ("two men, one dog",)], 0),
    ],
)
def test_msvd_in_both_forms(tmp_path, name, text, captions, problems):
    put(tmp_path / "youtube_mapping.txt", MAPPING)
    dataset = read_msvd(put(tmp_path / name, text))
    assert [(e.id, e.split) for e in dataset.examples] == [("-a_5_15", "train"), ("b_c_1_2", "test")]
    assert [e.captions for e in dataset.examples] == captions
    assert len(dataset.problems) == problems
    assert dataset.kind == "videos"


def test_msvds_splits_go_by_the_order_of_names_if_all_clips_are_in_it(tmp_path):
    names = [f"clip{number:04}_0_9" for number in range(1970)]
    dataset = read_msvd(put(tmp_path / "AllVideoDescriptions.txt", "\n".join(f"{n} text" for n in reversed(names))))
    assert splits(dataset) == {"train": 1200, "val": 100, "test": 670}
    assert [str(e.id) for e in dataset.examples] == names
    assert dataset.problems == []


def test_msvd_with_some_clips_only_has_no_splits_and_says_so(tmp_path):
    dataset = read_msvd(put(tmp_path / "AllVideoDescriptions.txt", MSVD_TEXT))
    assert splits(dataset) == {"": 2}
    assert "the splits are not known" in dataset.problems[-1]


def test_what_is_no_msvd_is_refused(tmp_path):
    with pytest.raises(UserError, match="not MSVD's descriptions"):
        read_msvd(put(tmp_path / "a.txt", "hello\n"))


def test_imagecodes_sets_are_ten_frames_of_their_shot(tmp_path):
    black, white = np.zeros((48, 64, 3), np.uint8), np.full((48, 64, 3), 255, np.uint8)
    (tmp_path / "videos").mkdir()
    write_clip(tmp_path / "videos" / "video5.mp4", [black] * 50 + [white] * 50)
    one = {"video": "video5", "split": "test", "descriptions": {"3": "x"}}
    sets = [one | {"set": f"s{shot}_{start}", "shot": shot, "start": start} for shot, start in ((2, 0), (2, 1), (7, 0))]
    dataset = read_imagecode(put(tmp_path / "imagecode.json", {"sets": [*sets, "broken"]}))
    assert [str(e.id) for e in dataset.examples] == [f"s2_{start}-{n}" for start in (0, 1) for n in range(10)]
    times = [2 + 0.1 * n + 0.05 for n in range(20)]  # the second shot lasts from 2 to 4 s, a set for one second
    assert [segment_of(e.file).start for e in dataset.examples] == pytest.approx(times, abs=1e-3)
    assert [e.captions for e in dataset.examples[:4]] == [(), (), (), ("x",)]
    assert dataset.examples[0].extra == {"set": "s2_0"}
    assert len(dataset.problems) == 2


def test_a_folder_of_clips_is_a_data_set_of_clips(tmp_path):
    for name in ("a.mp4", "b/c.MKV", "notes.txt"):
        put(tmp_path / name, "x")
    dataset = folder.read(tmp_path)
    assert ([e.id for e in dataset.examples], dataset.kind) == (["a.mp4", "b/c.MKV"], "videos")
    examples.write(dataset, tmp_path / "data.json")
    assert open_path(tmp_path / "data.json", takes=("clips",)).kind == "clips"
    assert open_path(tmp_path, takes=("clips",)).kind == "clips"


def test_photos_and_clips_of_a_folder_are_one_data_set(tmp_path):
    for name in ("a.mp4", "b.jpg"):
        put(tmp_path / name, "x")
    assert [e.id for e in folder.read(tmp_path).examples] == ["a.mp4", "b.jpg"]


def test_a_folder_of_clips_is_refused_where_only_photos_are_taken(tmp_path):
    put(tmp_path / "a.mp4", "x")
    with pytest.raises(UserError, match="has clips, and this takes photos"):
        open_path(tmp_path, takes=("photos",))


def test_prepare_makes_a_data_file_of_videos(tmp_path, capsys):
    content = {"videos": [{"video_id": "video0"}], "sentences": [{"video_id": "video0", "caption": "a car"}]}
    source = put(tmp_path / "videodatainfo.json", content)
    put(tmp_path / "videos" / "video0.mp4", "x")
    assert main(["prepare", "msrvtt", str(source), "--out", str(tmp_path / "data.json")]) == 0
    assert "1 clip, 1 caption (1 train)" in capsys.readouterr().out
    written = json.loads((tmp_path / "data.json").read_text())
    assert written["videos"] == [{"id": "video0", "file": "videos/video0.mp4", "split": "train", "captions": ["a car"]}]
