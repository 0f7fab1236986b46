"""`adapt` with vision-language models of transformers and with ClipCap, on the command line, from tiny folders."""

import json

import pytest
import torch
from safetensors.torch import load_file

from support.holiday import holiday

pytest.importorskip("transformers", reason="these models are loaded with transformers")

from support import tiny_language_models, tiny_vlms
from tellapart import models
from tellapart.adapting import adapt as adapting
from tellapart.adapting.verdict import Check
from tellapart.captioners import language_models
from tellapart.encoders.encoder import Encoder
from tellapart.models import vision_language
from tellapart.recipe import EncoderConfig

CPU = torch.device("cpu")
FAST = {"optim.lr": 1e-2, "objective.policy.samples": 2, "max_steps": 2, "save_minutes": 0, "log_steps": 1}
TOWERS = {"blip": "vision_model.", "git": "git.image_encoder.", "llava": "model.vision_tower."}


@pytest.fixture(autouse=True)
def quick(own_cache, monkeypatch):
    """Two steps, after which the judge and the guards agree to whatever comes."""
    monkeypatch.setattr(adapting.verdict, "checks", lambda *_, **__: [Check("all", True, "they agree")])
    usual = adapting._Adapting.__init__

    def fast(self, *given, overrides, **more):
        usual(self, *given, overrides=FAST, **more)

    monkeypatch.setattr(adapting._Adapting, "__init__", fast)


@pytest.fixture
def folder(tmp_path):
    return holiday(tmp_path / "holiday", 33)


def changed(before, after):
    """Names of the weights that differ."""
    old, new = (load_file(place / "model.safetensors") for place in (before, after))
    assert old.keys() == new.keys()
    return {name for name in old if not torch.equal(old[name], new[name])}


@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [*TOWERS])
def test_a_vision_language_model_learns_but_for_its_tower(
    tellapart, folder, small_retriever, tmp_path, monkeypatch, kind, lora
):
    monkeypatch.setattr(adapting, "LARGE", 0 if lora else 10**9)
    model, out = tiny_vlms.TINY[kind](tmp_path / kind), tmp_path / "out"
    given = ("adapt", folder, "--model", model, "--retriever", small_retriever, "--minutes", "5", "--out", out)
    code, said, err = tellapart(*given)
    assert code == 0, err
    assert "is kept" in said
    new = changed(model, out)
    assert new
    assert not any(name.startswith(TOWERS[kind]) for name in new)
    if lora:  # matrices of blocks, and no vector, embedding or output
        assert all(name.endswith(".weight") and any(part.isdigit() for part in name.split(".")) for name in new)
    code, said, err = tellapart("caption", folder / "00.png", "--model", out)
    assert code == 0, err
    assert said.startswith(f"{folder / '00.png'}\t")


def clipcap(folder, language_model, **settings):
    tokenizer = language_models.tokenizer(str(language_model))
    encoder = Encoder(EncoderConfig(image_size=64, grid=2))
    given = {"language_model": str(language_model), "prefix": 2, **settings}
    sizes = {"regions": encoder.feature_size}
    torch.manual_seed(0)
    captioner = models.build_captioner("clipcap", given, vocab_size=len(tokenizer), feature_sizes=sizes)
    folder.mkdir()
    models.describe(folder, "clipcap", captioner, tokenizer, {"regions": encoder.identity})
    models.save_weights(folder / "model.safetensors", captioner)
    return folder


@pytest.mark.parametrize("learned_by", ["all", pytest.param("lora", marks=pytest.mark.slow), "lora again"])
def test_clipcap_learns(tellapart, folder, small_retriever, tmp_path, monkeypatch, learned_by):
    monkeypatch.setattr(adapting, "LARGE", 10**9 if learned_by == "all" else 0)
    language_model = tiny_language_models.save(tmp_path / "gpt2", "gpt2")
    monkeypatch.setenv("TELLAPART_ENCODERS", str(language_model))
    settings = {"lora_rank": 2} if learned_by == "lora again" else {}
    model, out = clipcap(tmp_path / "model", language_model, **settings), tmp_path / "out"
    given = ("adapt", folder, "--model", model, "--retriever", small_retriever, "--minutes", "5", "--out", out)
    code, said, err = tellapart(*given)
    assert code == 0, err
    assert "is kept" in said
    monkeypatch.delenv("TELLAPART_ENCODERS")  # all that was learned is in the folder's own weights
    code, said, err = tellapart("caption", folder / "00.png", "--model", out)
    assert code == 0, err


def test_a_model_that_only_generates_is_refused_in_one_sentence(tellapart, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(vision_language, "_taken_apart", lambda *_: None)
    code, said, err = tellapart("adapt", folder, "--model", tiny_vlms.git(tmp_path / "git"), "--out", tmp_path / "out")
    assert (code, said) == (2, "")
    assert err.splitlines()[-1:] == [
        "tellapart adapt: this model can only be asked by transformers' generate, and cannot be trained."
    ]
    assert not (tmp_path / "out").exists()


def test_a_run_over_a_model_elsewhere_is_not_believed(tmp_path, monkeypatch):
    base = tiny_vlms.blip(tmp_path / "elsewhere" / "blip")
    run = tmp_path / "run"
    run.mkdir()
    said = {"name": str(base), "sha256": "0" * 64, "lora": {"rank": 1, "alpha": 1}}
    content = {"format": 1, "captioner": "vision_language", "settings": {}, "encoder": {}, "base": said}
    (run / "config.json").write_text(json.dumps(content))
    with pytest.raises(models.UserError, match="does not decide what is read from outside of its own folder"):
        models.load(run, CPU)
    monkeypatch.setenv("TELLAPART_ENCODERS", str(base))
    with pytest.raises(models.UserError, match="with weights 00000000; now they are"):
        models.load(run, CPU)
