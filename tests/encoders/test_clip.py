"""CLIP's image tower against transformers' own, from photo files on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("transformers", reason="CLIP is loaded with transformers")

from capscore.errors import UserError
from retrievers import tiny_clip
from tellapart.data.media import photos
from tellapart.encoders import towers

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory) -> Path:
    return tiny_clip.clip(tmp_path_factory.mktemp("models") / "tiny-clip")


@pytest.fixture(scope="module")
def siglip_folder(tmp_path_factory) -> Path:
    return tiny_clip.siglip(tmp_path_factory.mktemp("models") / "tiny-siglip")


@pytest.fixture
def folder(clip_folder, tmp_path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(clip_folder, tmp_path / "model"))


def load(folder: Path) -> towers.ClipEncoder:
    return towers.ClipEncoder(towers.load_clip(str(folder), CPU), CPU)


def draw(file: Path, width: int, height: int) -> Path:
    pixels = np.random.default_rng(width).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC).save(file)
    return file


@pytest.fixture
def files(tmp_path) -> list[Path]:
    """Wide, tall, square, smaller than the model's pictures, and a JPEG that could be decoded at half its size."""
    sizes = [(101, 64), (64, 333), (50, 50), (20, 31)]
    drawn = [draw(tmp_path / f"{i}.png", *size) for i, size in enumerate(sizes)]
    return [*drawn, draw(tmp_path / "large.jpg", 301, 200)]


def theirs(folder: Path, files: list[Path], model: str, processor: str):
    """What transformers makes of photos: its own pixels, and its model's output."""
    import transformers

    seen = [Image.open(file).convert("RGB") for file in files]
    pixels = getattr(transformers, processor).from_pretrained(folder)(seen, return_tensors="pt")["pixel_values"]
    network = getattr(transformers, model).from_pretrained(folder).eval()
    with torch.inference_mode():
        return pixels, network.get_image_features(pixel_values=pixels)


def ours(encoder: towers.ClipEncoder, files: list[Path]) -> np.ndarray:
    return np.stack([photos.read(file, encoder.config.image_size, encoder.fit).pixels for file in files])


@pytest.mark.parametrize(
    ("kind", "model", "processor", "class_tokens"),
    [
        ("clip_folder", "CLIPModel", "CLIPImageProcessorPil", 1),
        ("siglip_folder", "SiglipModel", "SiglipImageProcessorPil", 0),
    ],
)
def test_it_sees_what_transformers_sees(kind, model, processor, class_tokens, files, request):
    folder = request.getfixturevalue(kind)
    encoder = load(folder)
    pixels, expected = theirs(folder, files, model, processor)
    mine = ours(encoder, files)
    normalised = (mine / 255 - np.array(encoder.mean)) / np.array(encoder.std)
    step = 1 / 255 / min(encoder.std)
    difference = np.abs(normalised.transpose(0, 3, 1, 2) - pixels.numpy())
    assert difference.max() < 1.01 * step  # a pixel may be rounded to the next value
    assert (difference > 0.01 * step).mean() < 0.001
    grid, pooled, _ = encoder(mine)
    torch.testing.assert_close(pooled, expected.pooler_output, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(grid, expected.last_hidden_state[:, class_tokens:], atol=5e-3, rtol=1e-3)
    assert grid.shape == (len(files), encoder.regions, encoder.feature_size) == (5, 16, 32)
    assert pooled.shape == (5, encoder.pooled_size)


def test_clip_does_not_see_the_ends_of_a_wide_photo_and_siglip_does(clip_folder, siglip_folder, tmp_path):
    wide = np.zeros((40, 120, 3), np.uint8)
    wide[:, :30] = wide[:, 90:] = (255, 0, 0)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    for folder, red in ((clip_folder, False), (siglip_folder, True)):
        assert (ours(load(folder), [tmp_path / "wide.png"]).max() > 200) == red


def test_a_photo_of_one_pixel_by_many_costs_no_memory(clip_folder, tmp_path):
    Image.new("RGB", (60_000, 1), "blue").save(tmp_path / "line.png")
    fit = load(clip_folder).fit
    assert photos.read(tmp_path / "line.png", 2048, fit).pixels.shape == (2048, 2048, 3)  # 750 GB if done in two steps


def test_a_picture_in_memory_is_cropped_alike(clip_folder, files):
    encoder = load(clip_folder)
    for file in files:
        np.testing.assert_array_equal(
            photos.read(Image.open(file), 32, encoder.fit).pixels, photos.read(file, 32, encoder.fit).pixels
        )


# What the folder says, and what it leaves out


def test_a_folder_may_say_nothing_of_photos_or_name_its_file_otherwise_or_give_one_number_for_the_size(folder):
    tiny_clip.change(folder, "preprocessor_config.json", size=32, crop_size=32)
    assert load(folder).fit.crop  # the short side of a photo that is cropped
    tiny_clip.change(folder, "preprocessor_config.json", do_center_crop=False)
    assert not load(folder).fit.crop
    settings = json.loads((folder / "preprocessor_config.json").read_text()) | {"image_mean": [0.1, 0.2, 0.3]}
    (folder / "preprocessor_config.json").unlink()
    encoder = load(folder)
    assert encoder.fit.crop
    assert encoder.mean == [0.48145466, 0.4578275, 0.40821073]
    assert encoder.std == [0.26862954, 0.26130258, 0.27577711]
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    assert load(folder).mean == [0.1, 0.2, 0.3]


UNREADY = [
    {"crop_size": 64},
    {"size": {"shortest_edge": 40}},
    {"size": {"shortest_edge": 32}, "do_center_crop": False},  # not a square
    {"size": "large"},
    {"image_mean": [0.5]},
    {"image_std": 0.5},
    {"image_std": [0.5, 0.5, 0.0]},
    {"resample": 77},
]


def test_photos_that_cannot_be_made_ready_as_the_folder_says(clip_folder, folder):
    from transformers import CLIPModel

    network = CLIPModel.from_pretrained(clip_folder)
    whole = json.loads((folder / "preprocessor_config.json").read_text())
    model = towers.Pretrained("model", folder, towers.FAMILIES["clip"], network, "0")
    for settings in UNREADY:
        (folder / "preprocessor_config.json").write_text(json.dumps(whole | settings))
        with pytest.raises(UserError, match=r"preprocessor_config.json: photos cannot be made ready"):
            towers.ClipEncoder(model, CPU)


def test_the_identity_tells_ways_of_looking_and_weights_apart(clip_folder, folder):
    same = load(clip_folder).identity
    assert load(folder).identity == same | {"name": "model"}
    tiny_clip.change(folder, "preprocessor_config.json", image_mean=[0.5, 0.5, 0.5])
    assert load(folder).identity != same | {"name": "model"}
    assert json.loads(json.dumps(same)) == same  # as manifests keep it
