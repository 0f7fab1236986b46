from __future__ import annotations

import json
import re

import pytest

from tellapart import album, captioning
from tellapart.captioning import Caption
from tellapart.data import examples

PHOTOS = examples.read(album.HERE / "album.json").examples


@pytest.fixture
def demo(tellapart, small_model, monkeypatch):
    """The command, with the small model in the place of the embedded one."""
    monkeypatch.setitem(album.EMBEDDED, album.DEFAULT, small_model)
    return lambda *arguments: tellapart("demo", *arguments)


@pytest.fixture
def says(monkeypatch):
    """Put a captioner in place that says, of photo i, what `said(i)` returns: the fields of a Caption."""

    class Stub:
        def __init__(self, said):
            self.said = said

        def caption(self, photos):
            return (Caption(str(file), **self.said(i)) for i, file in enumerate(photos))

    return lambda said: monkeypatch.setattr(captioning, "load", lambda: Stub(said))


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_photo_of_the_album_is_captioned_and_on_the_page(demo, tmp_path, small_model):
    out = tmp_path / "new" / "demo"
    code, printed, _ = demo("--out", out)
    assert code == 0
    assert {file.name for file in out.iterdir()} == {"captions.jsonl", "report.html"}
    rows = rows_of(out / "captions.jsonl")
    assert [row["file"] for row in rows] == [str(photo.file) for photo in PHOTOS]
    assert all(set(row) == {"file", "caption", "logprob"} and row["logprob"] < 0 for row in rows)
    assert rows[7]["caption"] == captioning.load(small_model).caption(PHOTOS[7].file).text
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<figure>") == page.count("<img ") == len(PHOTOS)
    for photo in PHOTOS:
        assert page.count(f">{photo.file.name}<") == 1
        assert printed.count(photo.file.name) == 1


def test_captions_are_printed_in_groups_then_counted_then_the_page_is_named(says, tellapart, tmp_path):
    says(lambda i: {"text": f"caption {i // 2}", "logprob": -1.5})
    code, printed, err = tellapart("demo", "--out", tmp_path)
    assert (code, err) == (0, "")
    lines = printed.splitlines()
    headings = [line for line in lines[:-2] if line and not line.startswith(" ")]
    assert headings == [*dict.fromkeys(photo.extra["group"] or "other photos" for photo in PHOTOS)]
    first = lines.index(headings[0])
    assert lines[first + 2] == f"  {PHOTOS[1].file.name}  caption 0"
    different = (len(PHOTOS) + 1) // 2
    assert re.fullmatch(rf"{different} different captions for {len(PHOTOS)} photos, in \d+\.\d seconds", lines[-2])
    assert lines[-1] == str(tmp_path / "report.html")


def test_a_second_demo_replaces_the_first_and_leaves_the_rest_alone(says, tellapart, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for word in ("old", "new"):
        says(lambda i, word=word: {"text": f"{word} {i}", "logprob": -1.0})
        assert tellapart("demo", "--out", tmp_path)[0] == 0
    assert [row["caption"] for row in rows_of(tmp_path / "captions.jsonl")] == [f"new {i}" for i in range(len(PHOTOS))]
    assert ">old " not in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_the_page_credits_the_photos(says, tellapart, tmp_path):
    says(lambda i: {"text": "a photo", "logprob": -1.0})
    tellapart("demo", "--out", tmp_path)
    footer = (tmp_path / "report.html").read_text(encoding="utf-8").partition("<footer>")[2]
    assert "via COCO" in footer
    assert "CC BY 2.0 (creativecommons.org/licenses/by/2.0)" in footer
    assert all(str(photo.id) in footer for photo in PHOTOS if photo.extra["license"] == 7)


def test_a_photo_that_fails_is_named_everywhere(says, tellapart, tmp_path):
    says(lambda i: {"error": "is damaged (test)"} if i == 3 else {"text": "a photo", "logprob": -1.0})
    code, printed, err = tellapart("demo", "--out", tmp_path)
    assert code == 1
    assert err == f"{PHOTOS[3].file}: is damaged (test)\n"
    assert f"1 different caption for {len(PHOTOS)} photos" in printed
    assert rows_of(tmp_path / "captions.jsonl")[3] == {"file": str(PHOTOS[3].file), "error": "is damaged (test)"}
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("is damaged (test)") == 1


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_an_out_that_is_a_file_is_refused_before_the_work(out, tellapart, tmp_path, monkeypatch):
    monkeypatch.setattr(captioning, "load", lambda: pytest.fail("worked"))
    (tmp_path / "file").write_text("mine")
    code, printed, err = tellapart("demo", "--out", tmp_path / out)
    assert (code, printed) == (2, "")
    assert err.count("\n") == 1
    assert str(tmp_path / out) in err
    assert (tmp_path / "file").read_text() == "mine"
