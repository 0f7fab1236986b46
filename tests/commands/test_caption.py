import csv
import json
import math
import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from capscore.errors import UserError
from support.killed import run_killed
from support.written import put, rows_of
from tellapart.captioning.captioner import CaptionerProposer, load
from tellapart.captioning.pipeline import RerankConfig, tell_apart
from tellapart.decoding.rules import Search
from tellapart.desk.context import Context
from tellapart.errors import BadPhoto

MARK = -1000.5


def mark(path):
    """Change what is in the rows, but not the captions: a row that is made again has another log p."""
    path.write_text("".join(json.dumps(row | {"logprob": MARK}) + "\n" for row in rows_of(path)))


@pytest.fixture
def caption(tellapart, small_model):
    return lambda *arguments: tellapart("caption", "--model", small_model, *arguments)


def test_each_photo_gets_a_line_or_a_row_in_order(caption, photo_folder, tmp_path, small_model):
    out, lines = tmp_path / "o.jsonl", caption(photo_folder)[1].splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(photo_folder / f"{i}.png") for i in range(6)]
    files = [photo_folder / f"{i}.png" for i in (4, 0, 2)]
    assert caption(*files, "--out", out)[0] == 0
    rows = rows_of(out)
    assert [f"{row['file']}\t{row['caption']}" for row in rows] == [lines[i] for i in (4, 0, 2)]
    alone = load(small_model).caption(files[1])
    assert (rows[1]["caption"], rows[1]["logprob"]) == (alone.text, pytest.approx(alone.logprob, abs=1e-4))


def test_bad_photos_are_named_and_the_rest_captioned(caption, photo_folder, tmp_path):
    (photo_folder / "3.png").write_bytes((photo_folder / "3.png").read_bytes()[:60])
    (photo_folder / "empty.jpg").touch()
    code, _, err = caption(photo_folder, tmp_path / "missing.jpg", "--out", tmp_path / "o.jsonl")
    rows = {row["file"].rsplit("/")[-1]: row for row in rows_of(tmp_path / "o.jsonl")}
    assert code == 1
    assert {name for name, row in rows.items() if "error" in row} == {"3.png", "empty.jpg", "missing.jpg"}
    assert sum("caption" in row for row in rows.values()) == 5
    assert "empty.jpg: the file is empty" in err
    assert "missing.jpg: there is no such file" in err


def test_a_data_file_gives_rows_with_ids_by_its_splits_and_past_broken_records(caption, photo_folder, tmp_path):
    records = [{"id": i, "file": f"photos/{i}.png", "split": split} for i, split in ((7, "a"), (2, "b"), (1, "a"))]
    records[0]["file"] = 3
    data = put(tmp_path / "data.json", {"dataset": "d", "images": records})
    for options, code, ids, word in (
        ((), 1, [2, 1], '"file" must be a string'),
        (("--split", "a"), 1, [1], "7"),
        (("--split", "b"), 1, [2], "7"),
        (("--split", "c"), 2, [], "has no split 'c'; it has 'a', 'b'"),
    ):
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        ended, _, err = caption(data, *options, "--out", out)
        assert (ended, [row["id"] for row in rows_of(out)] if out.exists() else []) == (code, ids)
        assert word in err


def test_a_folder_without_a_photo_is_a_wrong_request_and_beside_others_a_failed_input(caption, photo_folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert caption(empty)[0] == 2
    code, out, err = caption(empty, photo_folder)
    assert (code, len(out.splitlines())) == (1, 6)
    assert "there are no photos in this folder" in err


def test_only_what_is_missing_changed_or_made_otherwise_is_made_again(caption, photo_folder, tmp_path):
    out = tmp_path / "o.jsonl"
    caption(photo_folder, "--out", out)
    mark(out)
    marked = out.read_text()
    code, _, err = caption(photo_folder, "--out", out)
    assert (code, out.read_text()) == (0, marked)
    assert "6 kept" in err
    Image.new("RGB", (50, 50), "red").save(photo_folder / "2.png")
    caption(photo_folder, "--out", out)
    assert [row["logprob"] == MARK for row in rows_of(out)] == [True, True, False, True, True, True]
    caption(photo_folder, "--beam", 2, "--out", out)
    assert not any(row["logprob"] == MARK for row in rows_of(out))


def test_new_photos_are_put_where_they_belong_and_rows_of_other_photos_stay(caption, photo_folder, tmp_path):
    out = tmp_path / "o.csv"
    Image.new("RGB", (9, 9)).save(tmp_path / "other.png")
    caption(tmp_path / "other.png", "--out", out)
    for i in (1, 4):
        (photo_folder / f"{i}.png").rename(tmp_path / f"{i}.png")
    caption(photo_folder, "--out", out)
    for i in (1, 4):
        (tmp_path / f"{i}.png").rename(photo_folder / f"{i}.png")
    caption(photo_folder, "--out", out)
    with out.open(newline="") as file:
        names = [row["file"].rsplit("/")[-1] for row in csv.DictReader(file)]
    assert names == ["other.png", *(f"{i}.png" for i in range(6))]


def test_a_file_that_is_no_captions_file_is_left_alone(caption, photo_folder, tmp_path):
    for name, text in (("notes.csv", "my,notes\n1,2\n"), ("notes.jsonl", '{"a": 1}\n'), ("notes.txt", "x")):
        notes = tmp_path / name
        notes.write_text(text)
        code, _, err = caption(photo_folder, "--out", notes)
        assert (code, notes.read_text()) == (2, text)
        assert name in err


@pytest.mark.slow
def test_a_process_that_is_killed_again_and_again_loses_nothing(tellapart, small_model, photo_folder, tmp_path):
    for i in range(6, 120):
        Image.new("RGB", (300, 300), (i, 2 * i, 0)).save(photo_folder / f"{i:03}.png")
    command, out = ("caption", photo_folder, "--model", small_model, "--out"), tmp_path / "killed.jsonl"
    assert tellapart(*command, tmp_path / "whole.jsonl")[0] == 0
    kept = 0
    for last, share in [(1, 0.6), (2, 0.4)]:  # which write is cut short, and where
        before = whole_rows(out)
        run_killed(out, last, share, *command, out)
        assert whole_rows(out)[: len(before)] == before
        assert len(whole_rows(out)) > kept
        kept = len(whole_rows(out))
    assert kept < 120
    assert tellapart(*command, out)[0] == 0
    assert [(row["file"], row["caption"]) for row in rows_of(out)] == [
        (row["file"], row["caption"]) for row in rows_of(tmp_path / "whole.jsonl")
    ]


def whole_rows(out):
    """Without what is left of a line that was cut short."""
    return [json.loads(line) for line in out.read_text().split("\n")[:-1]] if out.exists() else []


@pytest.mark.slow
def test_ctrl_c_says_that_the_run_can_go_on(start_tellapart, small_model, photo_folder, tmp_path):
    for i in range(6, 1200):  # so many that a tester who is kept waiting still finds it at work
        Image.new("RGB", (30, 30), (i % 256, 0, 0)).save(photo_folder / f"{i:04}.png")
    process = start_tellapart("caption", photo_folder, "--model", small_model, "--out", tmp_path / "o.jsonl")
    deadline = time.monotonic() + 180
    while (
        not ((tmp_path / "o.jsonl").exists() and (tmp_path / "o.jsonl").stat().st_size) and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "the same command continues from here" in err


@pytest.mark.slow
def test_a_name_that_is_not_utf8_is_captioned_and_printed_as_it_is(start_tellapart, small_model, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    name = os.fsencode(folder) + b"/caf\xe9.png"
    Image.new("RGB", (30, 30), "blue").save(os.fsdecode(name))
    process = start_tellapart("caption", folder, "--model", small_model, errors="surrogateescape")
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 0
    assert os.fsencode(out.split("\t")[0]) == name
    process = start_tellapart("caption", folder, "--model", small_model, "--out", tmp_path / "o.jsonl")
    assert process.wait(timeout=180) == 0
    assert os.fsencode(rows_of(tmp_path / "o.jsonl")[0]["file"]) == name


SERVER = "--endpoint http://localhost:1/v1 --endpoint-model m"


def test_python_refuses_what_the_command_line_does(small_model):
    captioner, collection = load(small_model), SimpleNamespace(identity="")
    for search, settings, about in (
        (Search(groups=2), {"contrast": "words"}, "two ways to search"),
        (Search(min_words=20), {}, "captions have room for 19 words"),
        (Search(), {"contrast": "prompt"}, "--contrast prompt needs"),
    ):
        with pytest.raises(UserError, match=about):
            CaptionerProposer(captioner, search, RerankConfig(**settings))
    with pytest.raises(UserError, match="--n-best lists captions and --among chooses one"):
        tell_apart(CaptionerProposer(captioner, Search(n_best=2)), collection, listed=True)
    with pytest.raises(UserError, match="--context and --contrast words"):
        RerankConfig(contrast="words", context=Context())
    with pytest.raises(UserError, match="--diverse finds captions that differ"):
        captioner.caption(["x.jpg"], search=Search(groups=2))


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(start_tellapart, small_model, photo_folder):
    process = start_tellapart("caption", photo_folder, "--model", small_model)
    process.stdout.close()
    assert process.wait(timeout=180) == 141
    assert process.stderr.read() == ""


# In Python


def test_captions_in_python_are_in_order_and_do_not_depend_on_their_neighbours(small_model, photo_folder, tmp_path):
    captioner = load(small_model)
    files = [photo_folder / f"{i}.png" for i in (5, 3, 0, 1, 2, 4)]
    rows = list(captioner.caption(files))
    assert [row.file for row in rows] == list(map(str, files))
    assert [row.text for row in rows] == [captioner.caption(str(file)).text for file in files]
    assert math.isfinite(rows[0].logprob)
    assert captioner.caption(Image.open(files[0])).text == rows[0].text
    with pytest.raises(BadPhoto, match=r"missing\.jpg: there is no such file"):
        captioner.caption(tmp_path / "missing.jpg")
    good, bad = captioner.caption([files[0], tmp_path / "missing.jpg"])
    assert (good.error, bad.error) == ("", "there is no such file")


def test_models_with_other_words_or_weights_than_they_say_are_refused(small_model, tmp_path):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(small_model, folder)
    vocabulary = json.loads((folder / "vocabulary.json").read_text())
    vocabulary["words"].append("extra")
    (folder / "vocabulary.json").write_text(json.dumps(vocabulary))
    with pytest.raises(UserError, match=r"vocabulary\.json has 16 tokens, the model 15"):
        load(folder)
    shutil.copy(small_model / "vocabulary.json", folder)
    config = json.loads((folder / "config.json").read_text())
    config["encoder"]["weights_sha256"] = "0" * 64
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="weights 00000000"):
        load(folder)
    (folder / "model.safetensors").write_bytes(torch.zeros(3).numpy().tobytes())
    with pytest.raises(UserError, match=r"model\.safetensors is not a safetensors file"):
        load(folder)
