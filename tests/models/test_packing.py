"""Weights in 8 bits."""

import pytest
import torch
from safetensors.torch import save_file

from tellapart import models
from tellapart.models import weights


def test_every_number_is_within_half_a_step_of_what_it_was():
    rows = torch.randn(64, 3, 40, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 3, 64)[:, None, None]
    packed = weights.packed({"a": rows})
    assert packed["a"].dtype == torch.int8
    assert packed["a"].shape == rows.shape
    again = weights.unpacked(packed)["a"]
    step = rows.abs().amax((1, 2)) / 127
    assert ((again - rows).abs().amax((1, 2)) <= 0.5001 * step).all()
    weight = torch.zeros(64, 64)  # rows of zeros stay so
    weight[1] = 5.0
    assert weights.unpacked(weights.packed({"a": weight}))["a"].equal(weight)


def test_small_tensors_and_counts_are_kept_as_they_are():
    given = {"bias": torch.arange(8000.0) / 8000, "small": torch.ones(4, 4), "count": torch.tensor(3)}
    packed = weights.packed(given)
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
    assert weights.unpacked(given).keys() == given.keys()


def test_a_model_folder_may_be_packed(small_model, tmp_path):
    whole = models.load(small_model, torch.device("cpu"))
    state = dict(whole.captioner.state_dict())
    large = {name: tensor for name, tensor in state.items() if tensor.ndim == 2 and tensor.numel() >= weights.SMALLEST}
    assert large
    folder = tmp_path / "packed"
    folder.mkdir()
    for name in ("config.json", "vocabulary.json"):
        (folder / name).write_bytes((small_model / name).read_bytes())
    save_file(weights.packed(state), folder / "model.safetensors")
    again = dict(models.load(folder, torch.device("cpu")).captioner.state_dict())
    for name, tensor in state.items():
        assert again[name].dtype == torch.float32
        step = tensor.abs().max() / 127
        assert (again[name] - tensor).abs().max() <= max(step, 1e-3)
    assert any(not again[name].equal(tensor) for name, tensor in large.items())


def test_scales_of_another_model_are_refused(small_model, tmp_path):
    state = dict(models.load(small_model, torch.device("cpu")).captioner.state_dict())
    packed = weights.packed(state)
    name = next(name for name in packed if name.endswith(weights.SCALE))
    packed[name] = packed[name][:-1].contiguous()
    for part in ("config.json", "vocabulary.json"):
        (tmp_path / part).write_bytes((small_model / part).read_bytes())
    save_file(packed, tmp_path / "model.safetensors")
    with pytest.raises(models.UserError, match=rf"another model: {name} is \(\d+,\) there and absent here"):
        models.load(tmp_path, torch.device("cpu"))
