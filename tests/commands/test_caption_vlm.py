"""`caption`, `--among` and `evaluate` with vision-language models of transformers, from tiny saved folders."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("transformers", reason="these models are loaded with transformers")

from support import tiny_vlms
from support.written import rows_of

KINDS = ("blip", "git", "llava")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("vlms")
    return {kind: tiny_vlms.TINY[kind](root / kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_photos_are_captioned_and_told_apart(
    tellapart, folders, photo_folder, small_retriever, own_cache, kind, tmp_path
):
    code, out, err = tellapart("caption", photo_folder, "--model", folders[kind])
    assert code == 0, err
    captions = dict(line.split("\t") for line in out.splitlines())
    assert list(captions) == [str(photo_folder / f"{i}.png") for i in range(6)]
    assert set(" ".join(captions.values()).split()) <= set(tiny_vlms.WORDS)  # no special token shows
    rows = tmp_path / "rows.jsonl"
    among = ("--among", photo_folder, "--retriever", small_retriever, "--out", rows)
    code, _, err = tellapart("caption", photo_folder, "--model", folders[kind], *among)
    assert code == 0, err
    found = rows_of(rows)
    assert [row["file"] for row in found] == list(captions)
    assert all(row["caption"] and row["logprob"] < 0 and len(row["look_alikes"]) <= 5 for row in found)
    code, _, err = tellapart("caption", photo_folder, "--model", folders[kind], *among)
    assert "6 kept" in err


def test_prompt_and_number_type_count(tellapart, folders, photo_folder, tmp_path):
    photo = photo_folder / "1.png"
    said = {}
    for name, options in {
        "default": (),
        "same": ("--prompt", "a picture of"),
        "other": ("--prompt", "the red cat"),
        "coarse": ("--dtype", "bf16", "--beam", "1"),
    }.items():
        out = tmp_path / f"{name}.jsonl"
        code, _, err = tellapart("caption", photo, "--model", folders["blip"], "--out", out, *options)
        assert code == 0, err
        said[name] = json.loads(out.read_text())["logprob"]
    assert said["default"] == said["same"] != said["other"]
    assert said["coarse"] != said["default"]


def test_each_word_may_be_contrasted(tellapart, folders, photo_folder, small_retriever, own_cache):
    contrast = ("--among", photo_folder, "--retriever", small_retriever, "--contrast", "words", "--min-words", "2")
    code, out, err = tellapart("caption", photo_folder / "0.png", "--model", folders["llava"], *contrast)
    assert code == 0, err
    assert len(out.split("\t")[1].split()) >= 2


@pytest.mark.usefixtures("own_cache")
def test_a_model_that_answers_questions_is_shown_what_to_tell_apart(
    tellapart, folders, photo_folder, small_retriever, tmp_path, monkeypatch
):
    from tellapart.models.vision_language import Loaded

    asked, answer = [], Loaded.answer
    monkeypatch.setattr(
        Loaded, "answer", lambda self, image, *rest: asked.append((image.size, *rest)) or answer(self, image, *rest)
    )
    rows = tmp_path / "rows.jsonl"
    contrast = ("--among", photo_folder, "--retriever", small_retriever, "--contrast", "prompt", "--answers", "2")
    code, _, err = tellapart("caption", photo_folder, "--model", folders["llava"], *contrast, "--out", rows)
    assert code == 0, err
    assert all(json.loads(line)["caption"] for line in rows.read_text().splitlines())
    assert 1 <= len(asked) <= 6
    assert all(size == (768, 832) and "photo 1 is the first" in prompt for size, prompt, *_ in asked)
    code, out, err = tellapart("caption", photo_folder, "--model", folders["blip"], *contrast)
    assert (code, out) == (2, "")
    assert "answer no questions" in err


@pytest.mark.slow
def test_it_is_evaluated_beside_others(tellapart, folders, photo_folder, small_retriever, own_cache, tmp_path):
    images = [{"id": i, "file": f"{i}.png", "split": "test", "captions": ["a red bus", "a cat"]} for i in range(6)]
    data = photo_folder / "data.json"
    data.write_text(json.dumps({"dataset": "tiny", "images": images}))
    models = (folders["blip"], folders["git"])
    options = ("--data", data, "--retriever", small_retriever, "--metrics", "CIDEr-D", "--out", tmp_path / "out")
    code, _, err = tellapart("evaluate", *models, *options)
    assert code == 0, err
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results["tiny"]) == 2
    assert all(row["CIDEr-D"] >= 0 for row in results["tiny"].values())


def test_a_model_that_is_not_here_and_no_network_is_one_sentence(photo_folder):
    command = [sys.executable, "-m", "tellapart", "caption", str(photo_folder / "0.png"), "--model"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    run = subprocess.run([*command, "Salesforce/blip-x"], env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert len(run.stderr.splitlines()) == 1
    assert "config.json of Salesforce/blip-x was wanted" in run.stderr
    assert "a local folder with the files of the model can be given instead" in run.stderr
