"""Clips on the command line: captions, segments, subtitles, look-alikes."""

import json
import shutil
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

import tellapart.album
from support.clips import write_clip
from support.written import rows_of
from tellapart import album

ALBUM = sorted((Path(tellapart.album.__file__).parent / "photos").glob("*.webp"))


def frame(number):
    with Image.open(ALBUM[number]) as photo:
        return np.asarray(photo.convert("RGB").resize((128, 96)))


def scenes(file, *numbers, seconds=1.0, codec="ffv1"):
    """A clip of album photos, each shown for some time."""
    count = round(25 * seconds)
    return write_clip(file, [pixels for number in numbers for pixels in [frame(number)] * count], codec=codec)


@pytest.fixture
def caption(tellapart, small_model):
    return lambda *arguments: tellapart("caption", "--model", small_model, *arguments)


def test_a_clip_is_captioned_by_its_middle_frame(caption, tmp_path):
    clip = scenes(tmp_path / "a.mkv", 3, 7, 3)
    for name, number in (("b.png", 7), ("c.png", 3)):
        Image.fromarray(frame(number)).save(tmp_path / name)
    code, _, _ = caption(tmp_path, "--out", tmp_path / "rows.jsonl")
    middle, same, other = rows_of(tmp_path / "rows.jsonl")
    assert (code, middle["file"]) == (0, str(clip))
    assert (middle["caption"], middle["logprob"]) == (same["caption"], pytest.approx(same["logprob"], abs=1e-4))
    assert abs(middle["logprob"] - other["logprob"]) > 1e-3


def test_segments_have_a_row_each_with_their_times_and_are_resumed(caption, tmp_path):
    clip = scenes(tmp_path / "a.mkv", 3, 7, 9)
    code, _, _ = caption(clip, "--segments", "1", "--out", tmp_path / "a.jsonl")
    rows = rows_of(tmp_path / "a.jsonl")
    assert code == 0
    assert [(row["file"], row["start"], row["end"]) for row in rows] == [
        (f"{clip}#t={n},{n + 1}", n, n + 1) for n in range(3)
    ]
    for number, row in zip((3, 7, 9), rows, strict=True):  # the same as a photo of that scene
        Image.fromarray(frame(number)).save(tmp_path / "photo.png")
        assert caption(tmp_path / "photo.png")[1].split("\t")[1].strip() == row["caption"]
    before = (tmp_path / "a.jsonl").read_bytes()
    assert "3 kept" in caption(clip, "--segments", "1", "--out", tmp_path / "a.jsonl")[2]
    assert (tmp_path / "a.jsonl").read_bytes() == before


@pytest.mark.parametrize("suffix", [".srt", ".vtt"])
def test_shots_become_subtitles_that_ffmpeg_reads(caption, tmp_path, suffix):
    clip = scenes(tmp_path / "a.mp4", 3, 7, 9, seconds=4, codec="libx264")
    out = tmp_path / f"a{suffix}"
    assert caption(clip, "--segments", "shots", "--out", out)[0] == 0
    with av.open(str(out)) as container:
        starts = [float(packet.pts * packet.time_base) for packet in container.demux() if packet.size]
    assert starts == pytest.approx([0, 4, 8], abs=0.05)


@pytest.mark.slow
def test_segments_of_a_video_are_told_apart_from_each_other(caption, tmp_path):
    clip = scenes(tmp_path / "a.mp4", 3, 7, 9, 11, codec="libx264")
    code, _, err = caption(clip, "--segments", "1", "--among", clip, "--out", tmp_path / "a.jsonl")
    assert code == 0, err
    rows = rows_of(tmp_path / "a.jsonl")
    assert len(rows) == 4
    assert all(name.startswith(f"{clip}#t=") for row in rows for name in row["look_alikes"])


@pytest.mark.slow
def test_lookalikes_of_a_folder_of_clips(tellapart, tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    for number, content in enumerate([(3, 7), (3, 7), (20, 30), (25, 35)]):
        scenes(folder / f"{number}.mkv", *content, seconds=0.3)
    (folder / "1.mkv").write_bytes((folder / "0.mkv").read_bytes())
    code, _, err = tellapart("lookalikes", folder, "--out", tmp_path / "groups.json")
    assert code == 0, err
    groups = json.loads((tmp_path / "groups.json").read_text())
    assert [row["copies"] for row in groups["photos"]] == [[1], [0], [], []]


@pytest.fixture
def of_clips(tmp_path, small_model):
    """As the small model, but it sees three frames."""
    folder = tmp_path / "of_clips"
    shutil.copytree(small_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["encoder"]["frames"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("among", [False, True])
def test_by_default_clips_have_a_captioner_of_their_own(
    tellapart, tmp_path, small_model, small_retriever, of_clips, monkeypatch, among
):
    files = tmp_path / "files"
    files.mkdir()
    scenes(files / "a.mkv", 3, 7, 9)
    Image.fromarray(frame(7)).save(files / "b.png")
    scenes(files / "c.mkv", 2, 5)
    monkeypatch.setitem(album.EMBEDDED, album.DEFAULT, small_model)
    monkeypatch.setitem(album.EMBEDDED, album.CLIPS, of_clips)
    more = ["--among", files, "--retriever", small_retriever] if among else []
    for name, model in (("both", []), ("photos", ["--model", small_model]), ("clips", ["--model", of_clips])):
        code, _, err = tellapart("caption", files, *model, *more, "--out", tmp_path / f"{name}.jsonl")
        assert code == 0, err
    both, photos, clips = (
        [(row["caption"], round(row["logprob"], 4)) for row in rows_of(tmp_path / f"{name}.jsonl")]
        for name in ("both", "photos", "clips")
    )
    assert both == [clips[0], photos[1], clips[2]]
    assert both != photos
    assert "3 kept" in tellapart("caption", files, *more, "--out", tmp_path / "both.jsonl")[2]


def test_serve_has_the_same_default(tellapart, tmp_path, small_model, of_clips, monkeypatch):
    pytest.importorskip("fastapi")
    from tellapart import web
    from tellapart.desk.serve.database import Photos
    from tellapart.desk.serve.job import Job, Jobs

    files = tmp_path / "files"
    files.mkdir()
    scenes(files / "a.mkv", 3, 7, 9)
    Image.fromarray(frame(7)).save(files / "b.png")
    monkeypatch.setitem(album.EMBEDDED, album.DEFAULT, small_model)
    monkeypatch.setitem(album.EMBEDDED, album.CLIPS, of_clips)
    monkeypatch.setattr(web, "run", lambda *_: None)
    at_once = lambda _, kind, work: work(Job(id=1, kind=kind))  # noqa: E731 - not beside the server
    monkeypatch.setattr(Jobs, "start", at_once)
    assert tellapart("caption", files, "--among", files, "--out", tmp_path / "c.jsonl")[0] == 0
    expected = [(row["caption"], round(row["logprob"], 4)) for row in rows_of(tmp_path / "c.jsonl")]
    for model, is_default in (([], True), (["--model", small_model], False)):
        assert tellapart("serve", files, *model)[0] == 0
        found = [(photo.caption, round(photo.row["logprob"], 4)) for photo in Photos(files).all()]
        assert (found[0] == expected[0], found[1]) == (is_default, expected[1])
