"""`caption --among`, with captions of a captioner, of a file and of a server."""

import json
import shutil

import pytest
from PIL import Image

from capscore.errors import UserError
from support.written import rows_of
from tellapart.data.items import Input
from tellapart.desk import resume
from tellapart.desk.captions_file import CaptionsFile


@pytest.fixture(autouse=True)
def cache(own_cache):
    return own_cache


@pytest.fixture
def among(tellapart, small_model, small_retriever, photo_folder):
    def run(*more, among=(photo_folder,)):
        return tellapart(
            "caption", photo_folder, "--model", small_model, "--among", *among, "--retriever", small_retriever, *more
        )

    return run


def test_every_photo_gets_a_caption_its_look_alikes_and_a_gap(among, photo_folder, tmp_path):
    code, _, err = among("--out", tmp_path / "out.jsonl")
    assert code == 0, err
    found = rows_of(tmp_path / "out.jsonl")
    files = sorted(str(file) for file in photo_folder.iterdir())
    assert [row["file"] for row in found] == files
    for row in found:
        assert row["caption"]
        assert len(row["look_alikes"]) == 5
        assert row["file"] not in row["look_alikes"]
        assert set(row["look_alikes"]) < set(files)
        assert -2 <= row["gap"] <= 2


def test_another_strength_makes_rows_anew_and_another_collection_only_if_asked(among, photo_folder, tmp_path):
    among("--out", tmp_path / "out.jsonl")
    among("--out", tmp_path / "same.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "same.jsonl").read_bytes()
    assert "6 kept" in among("--out", tmp_path / "out.jsonl")[2]
    _, _, err = among("--strength", 3, "--out", tmp_path / "out.jsonl")
    assert "6 made anew (another model or other settings)" in err
    part = sorted(photo_folder.iterdir())[:3]
    _, _, err = among("--strength", 3, "--out", tmp_path / "out.jsonl", among=part)
    assert "6 kept" in err
    _, _, err = among("--strength", 3, "--out", tmp_path / "out.jsonl", "--again", among=part)
    assert "6 made anew (--again)" in err
    assert {len(row["look_alikes"]) for row in rows_of(tmp_path / "out.jsonl")} == {2, 3}
    _, _, err = among("--k", 2, "--out", tmp_path / "out.jsonl")
    assert {len(row["look_alikes"]) for row in rows_of(tmp_path / "out.jsonl")} == {2}


@pytest.mark.parametrize("contrast", ["captions", "words"])
@pytest.mark.parametrize("name", ["o.jsonl", "o.csv"])
def test_captions_stay_when_the_collection_grows_and_new_ones_are_told_apart_from_them(
    among, photo_folder, tmp_path, contrast, name
):
    out, options = tmp_path / name, ("--contrast", contrast)
    new = photo_folder / "5.png"
    new.rename(tmp_path / "5.png")
    among(*options, "--out", out)
    before = CaptionsFile(out).rows
    (tmp_path / "5.png").rename(new)
    by_itself = among(*options)[1].splitlines()[-1].split("\t")[1]  # in so small a collection all are look-alikes
    _, _, err = among(*options, "--out", out)
    *kept, added = CaptionsFile(out).rows
    assert kept == before
    assert "5 kept (--again makes them anew), 1 new" in err
    assert added["file"].endswith("5.png")
    assert len(added["look_alikes"]) == 5
    if contrast == "captions":
        assert added["caption"] not in {row["caption"] for row in before}
        assert added["caption"] == by_itself


def test_again_makes_all_but_what_people_decided_and_goes_on_where_it_was_stopped(among, photo_folder, tmp_path):
    out = tmp_path / "out.jsonl"
    among("--out", out)
    file = CaptionsFile(out)
    made = [row["caption"] for row in file.rows]
    theirs = [{"caption": "mine"}, {"review": "approved", "logprob": -9.0}, *[{"logprob": -9.0}] * 4]
    file.keep([row | mark for row, mark in zip(file.rows, theirs, strict=True)])
    _, _, err = among("--again", "--out", out)
    found = rows_of(out)
    again = [row["caption"] for row in found]
    assert again[:2] == ["mine", made[1]]
    assert [row["logprob"] == -9.0 for row in found[1:]] == [True, False, False, False, False]
    assert "2 kept, 4 made anew (--again)" in err

    stopped = resume.arrange(found, {str(f): Input(str(f)) for f in sorted(photo_folder.iterdir())}, "", again=True)
    CaptionsFile(out).keep(stopped.all())  # what a kill leaves behind before the first is made
    _, _, err = among("--out", out)
    assert "2 kept, 4 made anew (--again)" in err
    assert [row["caption"] for row in rows_of(out)] == again


def test_what_cannot_be_read_is_named_once_and_a_copy_is_not_told_apart_from_its_photo(among, photo_folder, tmp_path):
    elsewhere, again = tmp_path / "elsewhere.png", photo_folder / "0-again.png"
    for broken in (photo_folder / "broken.png", elsewhere):
        broken.write_bytes(b"no photo")
    Image.open(photo_folder / "0.png").save(again, compress_level=0)  # the same picture in other bytes
    code, _, err = among("--out", tmp_path / "out.jsonl", "--k", "10", among=(photo_folder, elsewhere))
    assert (code, err.count("broken.png"), err.count("elsewhere.png")) == (1, 1, 1)
    assert "1 photo could not be used" in err
    by_name = {row["file"].rsplit("/", 1)[1]: row for row in rows_of(tmp_path / "out.jsonl")}
    assert "error" in by_name.pop("broken.png")
    assert len(by_name) == 7
    assert by_name["0.png"]["near_duplicates"] == [str(again)]
    assert by_name["0.png"]["caption"] == by_name["0-again.png"]["caption"]
    assert len(by_name["0.png"]["look_alikes"]) == len(by_name["1.png"]["look_alikes"]) == 5  # the two count once


@pytest.mark.parametrize("contrast", ["captions", "words"])
def test_pictures_in_memory_are_told_apart_as_their_files_are(contrast, small_model, small_retriever, photo_folder):
    from tellapart import load
    from tellapart.captioning.pipeline import RerankConfig

    files = sorted(photo_folder.iterdir())
    settings = {"among": files, "retriever": small_retriever, "rerank": RerankConfig(contrast=contrast, k=6)}
    captioner = load(small_model)
    of_files = list(captioner.caption(files, **settings))
    pictures = [Image.open(file).copy() for file in files]  # none of which has a name
    for caption, picture in zip(of_files, captioner.caption(pictures, **settings), strict=True):
        assert picture.look_alikes == caption.look_alikes
        assert set(picture.near_duplicates) - set(caption.near_duplicates) <= {caption.file}


# captions made elsewhere


def test_one_of_the_captions_of_the_same_photo_is_chosen(tellapart, small_retriever, photo_folder, tmp_path):
    said = {f"{i}.png": [f"a red bus {i}", f"a cat on the bed {i}"] for i in (0, 1, 2, 3, 4, 9)}
    lines = [json.dumps({"file": str(photo_folder / file), "captions": texts}) for file, texts in said.items()]
    (tmp_path / "candidates.jsonl").write_text("".join(f"{line}\n" for line in lines))
    arguments = ("--among", photo_folder, "--retriever", small_retriever, "--candidates", tmp_path / "candidates.jsonl")
    code, _, err = tellapart("caption", photo_folder, *arguments, "--out", tmp_path / "out.jsonl")
    *captioned, without = rows_of(tmp_path / "out.jsonl")
    assert (code, "9.png" in err, without["error"]) == (
        1,
        True,
        f"there is no caption of it in {tmp_path / 'candidates.jsonl'}",
    )
    for row in captioned:
        assert row["caption"] in said[row["file"].rsplit("/", 1)[1]]
        assert row["logprob"] is None


# what was there before


@pytest.mark.slow
def test_a_request_that_fails_leaves_the_captions_that_are_there(
    among, photo_folder, tmp_path, tellapart, small_retriever, serve
):
    out = tmp_path / "out.jsonl"
    among("--out", out)
    before = out.read_bytes()
    no_key = serve(lambda *_: (401, b"", {}))
    server = ("--endpoint", f"{no_key.url}/v1", "--endpoint-model", "m")
    code, _, _ = tellapart(
        "caption", photo_folder, "--among", photo_folder, "--retriever", small_retriever, *server, "--out", out
    )
    assert code == 2
    assert out.read_bytes() == before
    code, _, _ = tellapart("caption", photo_folder, *server, "--out", tmp_path / "new.jsonl")
    assert code == 2
    assert not (tmp_path / "new.jsonl").exists()


def test_a_photo_that_has_gone_bad_keeps_the_caption_that_it_had(among, photo_folder, tmp_path):
    out = tmp_path / "out.jsonl"
    among("--out", out)
    had = {row["file"]: row["caption"] for row in rows_of(out)}
    (photo_folder / "3.png").write_bytes(b"")
    code, _, err = among("--strength", "2", "--out", out)
    assert code == 1
    assert "3.png: the file is empty" in err
    found = {row["file"]: row for row in rows_of(out)}
    bad = str(photo_folder / "3.png")
    assert found[bad]["caption"] == had[bad]
    assert len(found) == 6


def test_two_runs_do_not_write_to_one_file(among, tmp_path):
    out = tmp_path / "out.jsonl"
    with CaptionsFile(out).writing():
        code, _, err = among("--out", out)
    assert code == 2
    assert "another process writes to this file" in err
    assert not out.exists()


# requests that are wrong, beside those of test_caption.py


def test_a_retriever_that_knows_none_of_the_captioners_words_is_refused(
    tellapart, small_model, small_retriever, photo_folder, tmp_path
):
    foreign = tmp_path / "foreign"
    shutil.copytree(small_retriever, foreign)
    content = json.loads((foreign / "vocabulary.json").read_text())
    content["words"] = [f"mot{i}" for i in range(len(content["words"]))]
    (foreign / "vocabulary.json").write_text(json.dumps(content))
    arguments = ("--model", small_model, "--among", photo_folder, "--retriever", foreign)
    code, _, err = tellapart("caption", photo_folder, *arguments)
    assert code == 2
    assert "knows none of the captioner's words" in err


# From Python


@pytest.fixture
def captioner(small_model):
    from tellapart import load

    return load(small_model)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", [str, lambda folder: folder, lambda folder: [str(folder)], lambda folder: iter(sorted(folder.iterdir()))]
)
def test_a_collection_can_be_named_in_python_as_on_the_command_line(
    captioner, small_retriever, photo_folder, tmp_path, form
):
    files = sorted(str(file) for file in photo_folder.iterdir())
    (of_files,) = {tuple(captioner.caption(files[:2], among=files, retriever=small_retriever))}
    assert all(len(row.look_alikes) == 5 for row in of_files)
    assert tuple(captioner.caption(files[:2], among=form(photo_folder), retriever=small_retriever)) == of_files
    images = [{"id": i, "file": f"photos/{i}.png"} for i in range(4)]
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "d", "images": images}))
    row = captioner.caption(photo_folder / "0.png", among=tmp_path / "data.json", retriever=small_retriever)
    assert set(row.look_alikes) == {str(photo_folder / f"{i}.png") for i in (1, 2, 3)}


def test_a_collection_is_looked_at_on_the_device_of_the_captioner(captioner, photo_folder, monkeypatch):
    class Seen(Exception):
        pass

    def load(name, *, device="auto"):
        raise Seen(device)

    monkeypatch.setattr("tellapart.models.retrievers.load", load)
    with pytest.raises(Seen, match=f"^{captioner.device}$"):
        list(captioner.caption([photo_folder / "0.png"], among=photo_folder))


@pytest.mark.parametrize(
    ("among", "error", "about"),
    [
        *((wrong, TypeError, "among: must name photos") for wrong in (3, [None], [b"photos"], [["photos"]], True)),
        *((empty, UserError, "no photo") for empty in ([], "nowhere", ["nowhere"], "empty")),
    ],
)
def test_a_collection_has_photos(captioner, small_retriever, photo_folder, tmp_path, monkeypatch, among, error, about):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=about):
        captioner.caption(photo_folder / "0.png", among=among, retriever=small_retriever)


def test_photos_of_a_collection_that_cannot_be_used_are_logged(captioner, small_retriever, photo_folder, caplog):
    (photo_folder / "broken.png").write_bytes(b"no photo")
    row = captioner.caption(photo_folder / "0.png", among=photo_folder, retriever=small_retriever)
    assert len(row.look_alikes) == 5
    (record,) = caplog.records
    assert "broken.png: is not a photo" in record.getMessage()
