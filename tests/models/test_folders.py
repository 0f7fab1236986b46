"""Model folders: the mean of captioners by arithmetic on their weights, bases, how they are loaded, and weights in 8
bits."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from capscore.errors import UserError
from tellapart import models
from tellapart.data.tokenizers import WordTokenizer
from tellapart.models import _allowed
from tellapart.models import weights as packing
from tellapart.models.averaging import average

ENCODER = {"name": "efficientnet_lite2", "image_size": 64, "grid": 2, "weights_sha256": "0"}
DROPOUT = 0.2
SMALL = {"width": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feed_forward": 8, "dropout": DROPOUT}


def captioner(folder: Path, seed: int, captions: str = "a dog runs", **settings: float) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    words = WordTokenizer.build([captions], 1)
    network = models.build_captioner(
        "transformer", SMALL | settings, vocab_size=len(words), feature_sizes={"regions": 4}
    )
    folder.mkdir()
    models.describe(folder, "transformer", network, words, {"regions": ENCODER})
    models.save_weights(folder / "model.safetensors", network)
    return network.state_dict()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    config = models.read_config(folder, "captioner")
    network = models.build_captioner(
        "transformer", SMALL, vocab_size=config.settings["vocab_size"], feature_sizes={"regions": 4}
    )
    models.load_weights(folder, network)
    return network.state_dict()


@pytest.mark.parametrize(
    ("shares", "counts"),
    [
        (None, (1 / 3, 1 / 3, 1 / 3)),
        ([1, 3, 0], (0.25, 0.75, 0)),  # proportions
        ([1, 0.5, -0.5], (1, 0.5, -0.5)),  # what one run learned is added to another
    ],
)
def test_weights_are_averaged_number_by_number(tmp_path, shares, counts):
    runs = [captioner(tmp_path / str(seed), seed) for seed in range(3)]
    average([tmp_path / "0", tmp_path / "1", tmp_path / "2"], tmp_path / "mean", shares)
    for name, mean in weights(tmp_path / "mean").items():
        expected = sum(count * run[name] for count, run in zip(counts, runs, strict=True))
        torch.testing.assert_close(mean, expected)


def test_the_mean_is_a_model_like_any_other_and_runs_may_differ_in_dropout(tmp_path):
    captioner(tmp_path / "0", 0)
    captioner(tmp_path / "1", 1, dropout=0.5)
    average([tmp_path / "0", tmp_path / "1"], tmp_path / "mean")
    assert models.read_config(tmp_path / "mean", "captioner").settings["dropout"] == DROPOUT  # the first one's
    loaded = models.load(tmp_path / "mean", torch.device("cpu"))
    assert loaded.inputs == {"regions": ENCODER}
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("a dog runs")) == "a dog runs"


@pytest.mark.parametrize(
    ("more", "shares", "sentence"),
    [
        ({"captions": "a cat sits"}, None, "have different vocabularies: there is no mean of the two"),
        ({"width": 16}, None, "differ in their config.json: there is no mean of the two"),
        ({}, [1.0], "there are 2 models and 1 shares; each model has one"),
        ({}, [1.0, -1.0], "the shares of all models together must be above 0, not 0"),
    ],
)
def test_what_has_no_mean_is_refused(tmp_path, more, shares, sentence):
    captioner(tmp_path / "0", 0)
    captioner(tmp_path / "1", 1, **more)
    with pytest.raises(UserError, match=sentence):
        average([tmp_path / "0", tmp_path / "1"], tmp_path / "mean", shares)
    assert not (tmp_path / "mean").exists()


# Bases: a run that was trained over another model does not decide what is read from this machine


@pytest.mark.parametrize("name", ["../secret", "models/../../secret", "secret", "/elsewhere/secret"])
def test_a_base_outside_of_the_folder_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / "here" / "secret").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match="does not decide what is read"):
        _allowed(name, tmp_path / "sent" / "run")


def test_embedded_models_hub_ids_and_neighbours_are_bases(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("plain", "Salesforce/blip-image-captioning-base", str(tmp_path / "before")):
        assert _allowed(name, tmp_path / "run") == name


def test_loading_a_captioner_loads_no_compiler():
    """torch's compiler takes longer to load than a captioner does, and drawing weights without memory asked for it."""
    script = "import sys, torch; from tellapart import models; models.load('plain', torch.device('cpu')); "
    script += "print('torch._dynamo' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


# Weights in 8 bits


def test_every_number_is_within_half_a_step_of_what_it_was():
    rows = torch.randn(64, 3, 40, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 3, 64)[:, None, None]
    packed = packing.packed({"a": rows})
    assert packed["a"].dtype == torch.int8
    assert packed["a"].shape == rows.shape
    again = packing.unpacked(packed)["a"]
    step = rows.abs().amax((1, 2)) / 127
    assert ((again - rows).abs().amax((1, 2)) <= 0.5001 * step).all()
    weight = torch.zeros(64, 64)  # rows of zeros stay so
    weight[1] = 5.0
    assert packing.unpacked(packing.packed({"a": weight}))["a"].equal(weight)


def test_small_tensors_and_counts_are_kept_as_they_are():
    given = {"bias": torch.arange(8000.0) / 8000, "small": torch.ones(4, 4), "count": torch.tensor(3)}
    packed = packing.packed(given)
    assert packed.keys() == given.keys()
    assert packed["count"].equal(given["count"])
    assert (packed["bias"].float() - given["bias"]).abs().max() < 1e-3

    given = {
        "norm": torch.ones(8, 8),
        "norm.scale": torch.ones(8),  # a float's, so a weight of its own
        "lonely.scale": torch.ones(3),
        "odd": torch.ones(4, 4, dtype=torch.int8),
        "odd.scale": torch.ones(5),
    }
    assert packing.unpacked(given).keys() == given.keys()


def test_a_model_folder_may_be_packed(small_model, tmp_path):
    whole = models.load(small_model, torch.device("cpu"))
    state = dict(whole.captioner.state_dict())
    large = {name: tensor for name, tensor in state.items() if tensor.ndim == 2 and tensor.numel() >= packing.SMALLEST}
    assert large
    folder = tmp_path / "packed"
    folder.mkdir()
    for name in ("config.json", "vocabulary.json"):
        (folder / name).write_bytes((small_model / name).read_bytes())
    save_file(packing.packed(state), folder / "model.safetensors")
    again = dict(models.load(folder, torch.device("cpu")).captioner.state_dict())
    for name, tensor in state.items():
        assert again[name].dtype == torch.float32
        step = tensor.abs().max() / 127
        assert (again[name] - tensor).abs().max() <= max(step, 1e-3)
    assert any(not again[name].equal(tensor) for name, tensor in large.items())


def test_scales_of_another_model_are_refused(small_model, tmp_path):
    state = dict(models.load(small_model, torch.device("cpu")).captioner.state_dict())
    packed = packing.packed(state)
    name = next(name for name in packed if name.endswith(packing.SCALE))
    packed[name] = packed[name][:-1].contiguous()
    for part in ("config.json", "vocabulary.json"):
        (tmp_path / part).write_bytes((small_model / part).read_bytes())
    save_file(packed, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=rf"another model: {name} is \(\d+,\) there and absent here"):
        models.load(tmp_path, torch.device("cpu"))
