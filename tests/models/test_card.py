import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
import yaml

import tellapart
from capscore.errors import UserError
from support import hub_server
from tellapart import hub, models

CPU = torch.device("cpu")


def front_matter(card):
    return yaml.safe_load(card.split("---\n")[1])


def test_a_saved_folder_says_what_the_original_says(small_model, photo_folder, tmp_path):
    original = tellapart.load(small_model)
    original.save_pretrained(tmp_path / "saved", metrics={"CIDEr-D": 0.51234})
    parts = {"config.json", "vocabulary.json", "model.safetensors", "README.md"}
    assert {file.name for file in (tmp_path / "saved").iterdir()} == parts
    again = tellapart.PhotoCaptioner.from_pretrained(tmp_path / "saved")
    photos = sorted(photo_folder.glob("*.png"))
    said, expected = ([(row.text, row.logprob) for row in one.caption(photos)] for one in (again, original))
    assert said == expected


def test_the_card_says_what_is_known(small_model, tmp_path):
    captioner = tellapart.load(small_model)
    captioner.save_pretrained(tmp_path / "saved", metrics={"CIDEr-D": 0.51234})
    card = (tmp_path / "saved" / "README.md").read_text()
    assert front_matter(card) == {
        "library_name": "tellapart",
        "pipeline_tag": "image-to-text",
        "license": "other",
        "language": "en",
        "tags": ["image-captioning", "tellapart", "transformer"],
    }
    for said in ("| CIDEr-D | 0.5123 |", "15 words", "width 32", captioner.encoder.weights_sha256, "64 x 64 pixels"):
        assert said in card
    captioner.save_pretrained(tmp_path / "saved", card="# Mine\n")
    assert (tmp_path / "saved" / "README.md").read_text() == "# Mine\n"


def test_a_run_folder_is_shared_by_its_best_weights(small_model, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(small_model, run)
    (run / "model.safetensors").rename(run / "best.safetensors")
    tellapart.load(run).save_pretrained(tmp_path / "saved")
    saved, _ = models.read_tensors(tmp_path / "saved" / "model.safetensors")
    best, _ = models.read_tensors(run / "best.safetensors")
    assert saved.keys() == best.keys()
    assert all(torch.equal(saved[name], best[name]) for name in best)


def test_what_has_no_weights_of_its_own_is_refused(small_model, tmp_path):
    with pytest.raises(UserError, match="not an ensemble"):
        tellapart.load(f"{small_model}+{small_model}").save_pretrained(tmp_path / "saved")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is not a folder"):
        tellapart.load(small_model).save_pretrained(tmp_path / "file")
    with pytest.raises(UserError, match="owner/name"):
        tellapart.load(small_model).push_to_hub("../mine")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


# The hub, in processes of their own: huggingface_hub reads where it is once, when it is imported.

SHARE = """
import sys, tellapart
captioner = tellapart.load(sys.argv[1])
print(captioner.push_to_hub("me/tiny", private=True, token="hf_secret", metrics={"CIDEr-D": 0.5}))
print(tellapart.load("me/tiny").caption(sys.argv[2]).text)
print(captioner.caption(sys.argv[2]).text)
"""


@pytest.fixture
def on_hub(tmp_path):
    """Run Python or a command with a hub of our own: returns exit code, stdout and stderr."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}

    def run(url, *arguments, **more):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=environment | {"HF_ENDPOINT": url} | more,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.slow
def test_a_model_is_put_onto_the_hub_and_fetched_from_there(on_hub, small_model, photo_folder):
    with hub_server.running() as server:
        code, out, err = on_hub(server.url, "-c", SHARE, small_model, photo_folder / "0.png")
        assert code == 0, err
        address, fetched, original = out.splitlines()
        assert address == f"{server.url}/me/tiny/commit/{hub_server.COMMIT}"
        assert fetched == original
        files = server.repos["me/tiny"]
        assert {"config.json", "vocabulary.json", "model.safetensors", "README.md"} <= files.keys()
        assert json.loads(files["config.json"])["captioner"] == "transformer"
        assert "| CIDEr-D | 0.5 |" in files["README.md"].decode()
        assert server.private["me/tiny"]
        assert server.tokens == {"Bearer hf_secret"}


FETCH = """
import sys, tellapart
print(tellapart.load("me/tiny").caption(sys.argv[1]).text)
try:
    tellapart.load("me/other")
except tellapart.UserError as error:
    print(error)
"""


@pytest.mark.slow
def test_only_the_parts_of_a_model_are_fetched_and_a_missing_one_is_named(on_hub, small_model, photo_folder):
    """And where the hub does not answer, what was fetched before is used."""
    with hub_server.running() as server:
        parts = {file.name: file.read_bytes() for file in small_model.iterdir()}
        server.repos["me/tiny"] = parts | {"modeling.py": b"raise SystemExit(9)", "pytorch_model.bin": b"pickle"}
        code, out, err = on_hub(server.url, "-c", FETCH, photo_folder / "0.png")
        assert code == 0, err
        said, sentence = out.splitlines()
        assert said == tellapart.load(small_model).caption(photo_folder / "0.png").text
        assert {name.removeprefix("me/tiny/") for name in server.fetched} == parts.keys()
        assert "config.json of me/other was wanted" in sentence
        assert "a local folder" in sentence
    code, after, err = on_hub(server.url, "-c", FETCH, photo_folder / "0.png")
    assert code == 0, err
    assert after.splitlines()[0] == said
    assert "config.json of me/other was wanted (127.0.0.1 does not answer: Connection refused)" in after


def test_a_folder_that_is_not_there_is_no_hub_id_where_others_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub.could_be("runs/mistyped")
    (tmp_path / "runs").mkdir()
    for name in ("runs/mistyped", "plain", "a/b/c", "./a", "/a/b", "a b/c", ""):
        assert not hub.could_be(name)


def test_without_huggingface_hub_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "package_folder", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'tellapart\[hub\]'"):
        models.load("me/tiny", CPU)
