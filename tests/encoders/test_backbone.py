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
from support.stores import store_folder
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


@pytest.fixture
def hub_cache(monkeypatch, tmp_path) -> Path:
    """What was fetched from the hub, which does not answer."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def pixels(count=2, size=64) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def theirs(folder: Path, seen: np.ndarray, mean=MEAN, std=STD, model="AutoModel", method="__call__"):
    """transformers' own output for the same pixels, normalised here by hand."""
    import transformers

    images = (seen / 255 - np.array(mean)) / np.array(std)
    images = torch.from_numpy(images.transpose(0, 3, 1, 2)).float()
    with torch.inference_mode():
        return getattr(getattr(transformers, model).from_pretrained(folder).eval(), method)(pixel_values=images)


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
    folder = tiny_clip.clip(tmp_path / "clip")
    encoder = load(EncoderConfig(str(folder), tiny_clip.SIZE, 4), CPU)
    seen = pixels(size=tiny_clip.SIZE)
    expected = theirs(folder, seen, encoder.mean, encoder.std, "CLIPVisionModel").last_hidden_state[:, 1:]
    torch.testing.assert_close(encoder(seen).grid, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (7, 7)])
def test_any_map_becomes_any_grid_and_a_second_one_shows_it_at_another_scale(shape):
    feature_map = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(0))
    for grid, coarse, (pooling, reduce) in product((1, 2, 5, 9), (0, 2), {"avg": np.mean, "max": np.max}.items()):
        cells = pool(feature_map, EncoderConfig(grid=grid, pooling=pooling, coarse=coarse)).grid
        assert cells.shape == (2, grid**2 + coarse**2, 3)
        for photo, of_photo in zip(cells, feature_map.numpy(), strict=True):
            np.testing.assert_allclose(photo[: grid**2], adaptive(of_photo, grid, reduce), atol=1e-6)
            if coarse:
                np.testing.assert_allclose(photo[grid**2 :], adaptive(of_photo, coarse, reduce), atol=1e-6)


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


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("bert", (64, 2), r"of the type 'bert', which is not a vision model\.$"),
        ("vit", (), r"cannot encode photos of 256 x 256 pixels; it was made for 64"),
        ("resnet", (4,), "^encoder: image_size must be "),
        ("resnet", (64, 65), "^encoder: grid must be "),
        ("resnet", (64, 2, "median"), "^encoder: pooling must be "),
        ("resnet", (64, 2, "avg", -1), "^encoder: coarse must be "),
        ("resnet", (64, 2, "projected"), "those in which photos and captions meet are clip and siglip"),
    ],
)
def test_networks_that_see_otherwise_and_settings_that_cannot_be_are_refused(saved, kind, settings, said):
    with pytest.raises(UserError, match=said):
        load(EncoderConfig(str(saved(kind)), *settings), CPU)


def test_a_model_that_neither_this_machine_nor_the_hub_has_is_asked_for_by_file(hub_cache):
    for name, hub in {"resnet101": "microsoft/resnet-101", "nobody/no-such-net": "nobody/no-such-net"}.items():
        with pytest.raises(UserError, match=f"config.json of {hub} was wanted .*a local folder") as error:
            load(EncoderConfig(name), CPU)
        assert "\n" not in str(error.value)


def in_hub_cache(folder: Path, cache: Path, name: str) -> None:
    kept = cache / f"models--{name.replace('/', '--')}"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, kept / "snapshots" / ("0" * 40))


def test_a_short_name_stands_for_a_model_of_the_hub(saved, hub_cache):
    in_hub_cache(saved("resnet"), hub_cache, "microsoft/resnet-50")
    for name in ("resnet50", "microsoft/resnet-50"):
        encoder = load(EncoderConfig(name, 64, 2), CPU)
        assert encoder.identity["name"] == name  # as it was given: it can be found by it again
        torch.testing.assert_close(
            encoder(pixels()).grid, load(EncoderConfig(str(saved("resnet")), 64, 2), CPU)(pixels()).grid
        )


def test_a_download_that_lacks_its_weights_asks_for_them(folder, hub_cache):
    (folder / "model.safetensors").unlink()
    in_hub_cache(folder, hub_cache, "some/net")
    with pytest.raises(UserError, match=r"some/net: model.safetensors was wanted, .*a local folder"):
        load(EncoderConfig("some/net", 64, 2), CPU)


@pytest.mark.parametrize("name", ["eye", "a/b/c", "/no/folder", ""])
def test_a_name_of_nothing_is_answered_with_all_that_there_is(name):
    with pytest.raises(UserError, match=r"^there is no encoder .*resnet152.*--from ARCHIVE") as error:
        load(EncoderConfig(name), CPU)
    assert all(known in str(error.value) for known in ENCODERS)


# In use


def test_without_transformers_it_says_how_to_get_it(saved, monkeypatch):
    monkeypatch.setattr(pretrained, "package_folder", lambda name: None)
    for name in (str(saved("resnet")), "resnet50"):
        with pytest.raises(UserError, match=r"pip install 'tellapart\[backbones\]'"):
            load(EncoderConfig(name), CPU)


def test_a_captioner_of_a_backbone_captions_photos(saved, tellapart, photo_folder, tmp_path, monkeypatch):
    encoder = load(EncoderConfig(str(saved("vit")), 64, 4, "max"), CPU)
    settings = ("--encoder", saved("vit"), "--image-size", 64, "--grid", 4, "--pooling", "max")
    code, out, _ = tellapart("features", photo_folder, *settings, "--out", tmp_path / "features")
    store = store_folder(tmp_path / "features", "photos", encoder)
    assert (code, out) == (0, f"{store}: 6 photos added, 0 were there\n")
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
    folder = getattr(tiny_clip, kind)(tmp_path / kind)
    encoder = load(EncoderConfig(str(folder), pooling="projected"), CPU)
    seen = pixels(size=tiny_clip.SIZE)
    expected = theirs(folder, seen, encoder.mean, encoder.std, method="get_image_features").pooler_output
    found = encoder(seen)
    torch.testing.assert_close(found.grid, expected[:, None], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.pooled, expected, atol=1e-5, rtol=1e-4)
    assert (encoder.regions, encoder.feature_size) == (1, expected.shape[1])
    assert not torch.allclose(found.pooled.norm(dim=1), torch.ones(len(seen)), atol=1e-2)


def test_efficientnet_has_no_projected_vector():
    with pytest.raises(UserError, match="pooling projected is for CLIP and SigLIP"):
        load(EncoderConfig(pooling="projected"), CPU)
