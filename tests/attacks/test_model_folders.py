"""Hostile model folders and archives: nothing outside of a folder is read; nothing grows or hangs."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from capscore import files, ngrams
from capscore.errors import UserError
from tellapart import models
from tellapart.encoders.loading import load as load_encoder
from tellapart.features import importing
from tellapart.models import networks
from tellapart.models.retrievers import load as load_retriever
from tellapart.recipe import EncoderConfig

CPU = torch.device("cpu")


def refusal(make, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        make(*arguments)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@pytest.fixture(params=["captioner", "retriever"])
def folder(request, small_model, small_retriever, tmp_path_factory):
    source = small_model if request.param == "captioner" else small_retriever
    return Path(shutil.copytree(source, tmp_path_factory.mktemp("folder") / request.param))


def load(folder):
    if "retriever" in str(files.real(folder)):
        return load_retriever(folder, device="cpu")
    return models.load(folder, CPU)


def change(folder, **parts):
    """Other values in objects of config.json."""
    config = json.loads((folder / "config.json").read_text())
    for part, values in parts.items():
        config[part] |= values
    (folder / "config.json").write_text(json.dumps(config))


# Sizes


@pytest.mark.parametrize(
    "value", [2**31, 10**30, -1, 0, 1.5, float("nan"), float("inf"), True, None, "1", [1], {"a": 1}]
)
def test_every_setting_of_a_model_folder_is_checked_before_anything_is_made(folder, value):
    settings = json.loads((folder / "config.json").read_text())["settings"]
    for name, right in settings.items():
        if isinstance(right, float) and value in (0, True):
            continue
        if name == "encoder_layers" and value == 0:
            continue
        change(folder, settings={name: value})
        refusal(load, folder)
        change(folder, settings={name: right})
    load(folder)


def test_sizes_that_the_weights_do_not_have_take_no_memory(folder, monkeypatch):
    """Each within its range, all together 4 GB."""
    asked = []
    make = networks.make_network
    monkeypatch.setattr(networks, "make_network", lambda *a: asked.append(torch.empty(0).device.type) or make(*a))
    large = {"width": 8192, "feed_forward": 32768, "heads": 2, "channels": 4096, "word_size": 4096, "size": 16384}
    settings = json.loads((folder / "config.json").read_text())["settings"]
    change(folder, settings={name: value for name, value in large.items() if name in settings})
    assert "is a checkpoint of another model" in refusal(load, folder)
    assert asked == ["meta"]


def test_a_thousand_layers_of_the_widest_are_too_many(small_model, tmp_path):
    folder = Path(shutil.copytree(small_model, tmp_path / "model"))
    change(folder, settings={"width": 65536, "feed_forward": 65536, "decoder_layers": 20})
    assert "weights with these settings; 2147483648 is the most" in refusal(load, folder)


# Files that are none, and links


@pytest.mark.parametrize("name", ["config.json", "vocabulary.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to a device"])
def test_what_is_no_file_is_refused_at_once(folder, name, kind):
    file = folder / name
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero" if kind == "device" else "/dev/random")
    assert name in refusal(load, folder)


@pytest.mark.parametrize("name", ["config.json", "vocabulary.json", "model.safetensors"])
@pytest.mark.parametrize("relative", [True, False])
def test_a_link_that_leads_out_of_a_model_folder_is_not_followed(folder, name, relative, tmp_path):
    (tmp_path / "secrets").mkdir()
    (folder / name).rename(tmp_path / "secrets" / name)
    (folder / name).symlink_to(Path("..", "secrets", name) if relative else tmp_path / "secrets" / name)
    assert "outside of the folder" in refusal(load, folder)


def test_links_within_a_folder_and_to_a_folder_are_followed(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "weights")
    (folder / "model.safetensors").symlink_to("weights")
    (tmp_path / "link").symlink_to(folder)
    load(tmp_path / "link")


def test_the_links_of_the_hub_s_cache_are_followed(folder, tmp_path):
    """models--owner--name/snapshots/REVISION/config.json -> ../../blobs/HASH"""
    repository = tmp_path / "models--owner--name"
    (repository / "blobs").mkdir(parents=True)
    snapshot = Path(shutil.copytree(folder, repository / "snapshots" / folder.name))
    for number, file in enumerate(sorted(snapshot.iterdir())):
        shutil.move(file, repository / "blobs" / str(number))
        file.symlink_to(Path("..", "..", "blobs", str(number)))
    load(snapshot)
    (snapshot / "vocabulary.json").unlink()
    (snapshot / "vocabulary.json").symlink_to(folder / "vocabulary.json")
    assert "outside of the folder" in refusal(load, snapshot)


# The encoder that a model names


@pytest.fixture
def backbone(tmp_path):
    pytest.importorskip("transformers", reason="backbones are loaded with transformers")
    from encoders import tiny_backbones

    return tiny_backbones.save(tmp_path / "eyes" / "vit", "vit", image_mean=[0.5, 0.4, 0.3])


@pytest.mark.parametrize("how", ["absolute", "relative", "above"])
def test_a_model_does_not_say_which_folder_its_encoder_is_read_from(backbone, how, monkeypatch):
    identity = json.loads(json.dumps(load_encoder(EncoderConfig(str(backbone), 64, 2), CPU).identity))
    monkeypatch.chdir(backbone.parent.parent)
    if how == "above":
        (backbone.parent / "here").mkdir()
        monkeypatch.chdir(backbone.parent / "here")
    identity["name"] = {"absolute": str(backbone), "relative": "eyes/vit", "above": "../vit"}[how]
    opened = []
    monkeypatch.setattr(files, "read_bytes", lambda path, **_: opened.append(path))
    assert "TELLAPART_ENCODERS" in refusal(models.encoder_from, identity, CPU)
    assert not opened


def test_a_folder_that_the_user_names_may_be_read_wherever_the_model_says_it_is(backbone, tmp_path, monkeypatch):
    identity = json.loads(json.dumps(load_encoder(EncoderConfig(str(backbone), 64, 2), CPU).identity))
    moved = Path(shutil.move(backbone, tmp_path / "moved"))
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("TELLAPART_ENCODERS", os.pathsep.join([str(tmp_path / "other"), str(moved)]))
    assert models.encoder_from(identity, CPU).weights_sha256 == identity["weights_sha256"]
    identity["weights_sha256"] = "0" * 64
    assert "00000000" in refusal(models.encoder_from, identity, CPU)


def test_a_folder_of_transformers_reads_nothing_outside_itself(backbone, tmp_path):
    encoder = EncoderConfig(str(backbone), 64, 2)
    load_encoder(encoder, CPU)
    weights = backbone / "model.safetensors"
    weights.rename(tmp_path / "elsewhere.safetensors")
    weights.symlink_to(tmp_path / "elsewhere.safetensors")
    assert "outside of the folder" in refusal(load_encoder, encoder, CPU)
    weights.unlink()
    shutil.copy(tmp_path / "elsewhere.safetensors", weights)
    load_encoder(encoder, CPU)
    (backbone / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    assert "adapter_config.json" in refusal(load_encoder, encoder, CPU)
    (backbone / "adapter_config.json").unlink()
    index = {"metadata": {}, "weight_map": {"layernorm.bias": "../../elsewhere.safetensors"}}
    (backbone / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "outside of the folder" in refusal(load_encoder, encoder, CPU)


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 2**31},
        {"num_hidden_layers": 100_000},
        {"hidden_size": 2**40},
        {"hidden_size": 10**6},
        {"intermediate_size": 10**9},
        {"image_size": 10**6},
        {"depths": [1] * 100_000},
        {"backbone": "resnet50", "use_pretrained_backbone": True},
        {"_attn_implementation": "somebody/kernels"},
        {"text_config": {"num_hidden_layers": 2**31}},
    ],
    ids=str,
)
def test_a_config_of_transformers_that_asks_for_too_much(backbone, values):
    config = json.loads((backbone / "config.json").read_text()) | values
    (backbone / "config.json").write_text(json.dumps(config))
    assert str(backbone) in refusal(load_encoder, EncoderConfig(str(backbone), 64, 2), CPU)


def test_a_tokenizer_reads_nothing_outside_its_folder(tmp_path):
    pytest.importorskip("transformers", reason="CLIP is loaded with transformers")
    from retrievers import tiny_clip

    folder = tiny_clip.clip(tmp_path / "clip")
    load_retriever(folder, device="cpu")
    shutil.copy(folder / "tokenizer.json", tmp_path / "elsewhere.json")
    tiny_clip.change(folder, "tokenizer_config.json", tokenizer_file=str(tmp_path / "elsewhere.json"))
    assert "outside of the folder" in refusal(load_retriever, folder)
    tiny_clip.change(folder, "tokenizer_config.json", tokenizer_file="/gone/long/ago/tokenizer.json")
    load_retriever(folder, device="cpu")


# Archives that users are sent


def zeros(name, megabytes):
    """A zip archive of one array that is far larger than the archive."""
    packed = io.BytesIO()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (megabytes, 1 << 18)}
    )
    with (
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(name, "w") as file,
    ):
        file.write(header.getvalue())
        for _ in range(megabytes):
            file.write(bytes(1 << 20))
    return packed.getvalue()


def test_features_that_unpack_to_too_much_are_those_of_one_photo_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "_LARGEST", 1 << 20)
    (tmp_path / "a.npz").write_bytes(zeros("features.npy", 2))
    np.savez(tmp_path / "b.npz", features=np.ones((2, 3), np.float32))
    np.save(tmp_path / "c.npy", np.zeros((3, 1 << 18), np.float32))
    bad, good, plain = importing.read(importing.expand([tmp_path]), lambda _: True)
    for broken in (bad, plain):
        assert "1 MB is the most" in broken.reason
    assert good.features.shape == (2, 3)


def test_pipes_among_features_are_refused(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    assert "not a regular file" in refusal(importing.expand, [tmp_path])


def test_document_frequencies_that_unpack_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_TEXT", 1 << 20)
    (tmp_path / "df.npz").write_bytes(zeros("counts.npy", 2))
    assert "more than 1 MB" in refusal(ngrams.load, tmp_path / "df.npz")
