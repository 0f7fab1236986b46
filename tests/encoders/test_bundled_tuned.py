"""The tuned encoder that comes with the package: EfficientNet-Lite2 with other last blocks."""

from __future__ import annotations

import numpy as np
import torch
from safetensors.torch import load_file

from tellapart import encoders, onnx
from tellapart.encoders.loading import load
from tellapart.models.parts import encoder_from
from tellapart.recipe import EncoderConfig

NAME = "efficientnet_lite2_tuned"
CPU = torch.device("cpu")
SMALL = EncoderConfig(NAME, image_size=64, grid=2)


def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)


def test_only_the_last_six_of_its_21_blocks_and_the_head_differ_from_the_published_network():
    stored = load_file(encoders.BUNDLED / f"{NAME}.safetensors")
    assert {name.rsplit(".", 2)[0] for name in stored if name.startswith("blocks.")} <= {
        f"blocks.{block}" for block in range(15, 21)
    }
    assert {name.split(".")[0] for name in stored} == {"blocks", "head"}
    base = load_file(encoders.BUNDLED / "efficientnet_lite2.safetensors")
    for name, tensor in stored.items():
        assert tensor.shape == base[name].shape
        assert not torch.equal(tensor, base[name])


def test_torch_and_onnxruntime_see_the_same(monkeypatch):
    by_graph = load(SMALL, CPU)(pixels())
    monkeypatch.setattr(onnx, "is_installed", lambda: False)
    by_torch = load(SMALL, CPU)(pixels())
    torch.testing.assert_close(by_graph.grid, by_torch.grid, rtol=0, atol=1e-4)
    untouched = load(EncoderConfig("efficientnet_lite2", image_size=64, grid=2), CPU)(pixels())
    assert (by_torch.grid - untouched.grid).abs().mean() > 0.01


def test_a_model_finds_it_by_its_name_and_need_not_carry_it():
    encoder = load(SMALL, CPU)
    assert encoder.part is None
    assert encoder_from(encoder.identity, CPU).weights_sha256 == encoder.weights_sha256
