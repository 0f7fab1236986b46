"""I3D, ResNeXt and 3D-ResNet-18 against plain convolutions, and what the published weights say of a generated clip."""

import json
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file

from capscore.errors import UserError
from support.clips import counted, number_in, write_clip
from tellapart.data.media.photos import SQUEEZE
from tellapart.encoders import classifiers
from tellapart.encoders.classifiers import ClipClassifier, ResNet3d, ResNeXt, load
from tellapart.encoders.encoder import read_squares
from tellapart.features.extracted import read_item
from tellapart.recipe import EncoderConfig

CPU = torch.device("cpu")
FILE = Path(os.environ.get("TELLAPART_I3D", "weights/i3d_kinetics400.fp16.safetensors"))


def random_weights(labels=7):
    """A file's tensors, drawn: kernels (T, H, W, in, out)."""
    draw, tensors = torch.Generator().manual_seed(0), {}

    def unit(scope, kernel, inputs, outputs):
        scale = (2 / (kernel**3 * inputs)) ** 0.5
        kernels = scale * torch.randn(kernel, kernel, kernel, inputs, outputs, generator=draw)
        tensors[f"params.{scope}.Conv_0.kernel"] = kernels
        tensors[f"params.{scope}.BatchNorm_0.bias"] = 0.2 * torch.randn(outputs, generator=draw)
        tensors[f"batch_stats.{scope}.BatchNorm_0.mean"] = 0.2 * torch.randn(outputs, generator=draw)
        tensors[f"batch_stats.{scope}.BatchNorm_0.var"] = 0.5 + torch.rand(outputs, generator=draw)

    for scope, (kernel, _, inputs, outputs) in classifiers._STEM.items():
        unit(scope, kernel, inputs, outputs)
    for scope, (inputs, one, two, three, four) in classifiers._MIXED.items():
        unit(f"{scope}.Branch_0/Conv3d_0a_1x1", 1, inputs, one)
        for branch, (narrow, wide) in ((1, two), (2, three)):
            unit(f"{scope}.Branch_{branch}/Conv3d_0a_1x1", 1, inputs, narrow)
            unit(f"{scope}.Branch_{branch}/Conv3d_0b_3x3", 3, narrow, wide)
        unit(f"{scope}.Branch_3/Conv3d_0b_1x1", 1, inputs, four)
    tensors["params.Logits/Conv3d_0c_1x1.Conv_0.kernel"] = 0.1 * torch.randn(1, 1, 1, 1024, labels, generator=draw)
    tensors["params.Logits/Conv3d_0c_1x1.Conv_0.bias"] = torch.randn(labels, generator=draw)
    return tensors


def as_pytorch_i3d(tensors):
    """The same network as piergiaj/pytorch-i3d writes it, whose normalisations have a gain."""
    draw, theirs = torch.Generator().manual_seed(1), {}
    for name, kernel in tensors.items():
        scope = name.removeprefix("params.").removesuffix(".Conv_0.kernel")
        if not name.endswith(".kernel") or "Logits" in scope:
            continue
        block, _, branch = scope.partition(".Branch_")
        number, _, place = branch.partition("/Conv3d_0")
        unit = f"{block}.b0" if number == "0" else f"{block}.b{number}{place[0]}" if branch else block
        theirs[f"{unit}.conv3d.weight"] = kernel.permute(4, 3, 0, 1, 2).contiguous()
        gain = 0.5 + 0.4 * torch.rand(kernel.shape[-1], generator=draw)
        # gain / sqrt(theirs + eps) = 1 / sqrt(ours + eps)
        variance = (tensors[f"batch_stats.{scope}.BatchNorm_0.var"].double() + 1e-3) * gain.double() ** 2 - 1e-3
        theirs[f"{unit}.bn.weight"], theirs[f"{unit}.bn.running_var"] = gain, variance.float()
        theirs[f"{unit}.bn.bias"] = tensors[f"params.{scope}.BatchNorm_0.bias"]
        theirs[f"{unit}.bn.running_mean"] = tensors[f"batch_stats.{scope}.BatchNorm_0.mean"]
        theirs[f"{unit}.bn.num_batches_tracked"] = torch.tensor(0)
    last = "params.Logits/Conv3d_0c_1x1.Conv_0"
    theirs["logits.conv3d.weight"] = tensors[f"{last}.kernel"].permute(4, 3, 0, 1, 2).contiguous()
    return theirs | {"logits.conv3d.bias": tensors[f"{last}.bias"]}


def windows(x, kernel, stride, fill):
    """The neighbourhood of each place of x (T, H, W, C), one shift of the kernel after the other: (k, t, h, w, C)

    SAME: ceil(size / stride) places; of what is missing half comes before, and the odd one after.
    """
    sizes = [-(-size // step) for size, step in zip(x.shape, stride, strict=False)]
    before = []
    for axis in range(3):
        missing = max((sizes[axis] - 1) * stride[axis] + kernel[axis] - x.shape[axis], 0)
        before.append((missing // 2, missing - missing // 2))
    x = np.pad(x, [*before, (0, 0)], constant_values=fill)
    for shift in product(*map(range, kernel)):
        yield (
            shift,
            x[tuple(slice(s, s + (n - 1) * step + 1, step) for s, n, step in zip(shift, sizes, stride, strict=True))],
        )


def convolved(tensors, scope, x, stride=1):
    """Convolution, normalisation without a gain, ReLU; x (T, H, W, C)"""
    kernel = tensors[f"params.{scope}.Conv_0.kernel"].double().numpy()
    total = sum(part @ kernel[shift] for shift, part in windows(x, kernel.shape[:3], (stride,) * 3, 0.0))
    mean, variance = (tensors[f"batch_stats.{scope}.BatchNorm_0.{n}"].double().numpy() for n in ("mean", "var"))
    bias = tensors[f"params.{scope}.BatchNorm_0.bias"].double().numpy()
    return np.maximum((total - mean) / np.sqrt(variance + 1e-3) + bias, 0)


def pooled(x, kernel, stride):
    return np.maximum.reduce([part for _, part in windows(x, kernel, stride, -np.inf)])


def plain(tensors, frames):
    """Logits of one clip: frames (T, H, W, 3) in -1..1, in double precision, without torch's convolutions."""
    x = convolved(tensors, "Conv3d_1a_7x7", frames.astype(np.float64), 2)
    x = pooled(x, (1, 3, 3), (1, 2, 2))
    x = convolved(tensors, "Conv3d_2c_3x3", convolved(tensors, "Conv3d_2b_1x1", x))
    x = pooled(x, (1, 3, 3), (1, 2, 2))
    for name in ["3b", "3c", "4b", "4c", "4d", "4e", "4f", "5b", "5c"]:
        if name == "4b":
            x = pooled(x, (3, 3, 3), (2, 2, 2))
        if name == "5b":
            x = pooled(x, (2, 2, 2), (2, 2, 2))
        scope = f"Mixed_{name}.Branch_"
        branches = [convolved(tensors, f"{scope}0/Conv3d_0a_1x1", x)]
        for branch in "12":
            narrow = convolved(tensors, f"{scope}{branch}/Conv3d_0a_1x1", x)
            branches.append(convolved(tensors, f"{scope}{branch}/Conv3d_0b_3x3", narrow))
        branches.append(convolved(tensors, f"{scope}3/Conv3d_0b_1x1", pooled(x, (3, 3, 3), (1, 1, 1))))
        x = np.concatenate(branches, -1)
    whole = x.mean((1, 2))  # (T', C)
    steps = [whole[t : t + 2].mean(0) for t in range(max(len(whole) - 1, 1))]
    last = tensors["params.Logits/Conv3d_0c_1x1.Conv_0.kernel"].double().numpy()[0, 0, 0]
    return np.mean(steps, 0) @ last + tensors["params.Logits/Conv3d_0c_1x1.Conv_0.bias"].double().numpy()


def generated(frames, side):
    """A bright square that moves over a slope of colours."""
    across = np.linspace(-1, 1, side)
    clip = np.stack([np.broadcast_to(across[None, :, None], (side, side, 3))] * frames).copy()
    clip[..., 1] = across[:, None]
    for t in range(frames):
        start = t * (side // 2) // frames
        clip[t, side // 4 : side // 2, start : start + side // 4] = 1
    return clip


@pytest.mark.slow
@pytest.mark.parametrize(("frames", "side"), [(16, 32), (11, 37)])
def test_it_is_plain_convolutions(frames, side):
    tensors, clip = random_weights(), generated(frames, side)
    logits = classifiers.read_i3d(tensors).eval()(torch.from_numpy(clip).float().permute(3, 0, 1, 2)[None])[0]
    expected = plain(tensors, clip)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(logits.detach().numpy(), expected, atol=1e-3)


@pytest.mark.skipif(not FILE.exists(), reason="the weights of I3D are not here (TELLAPART_I3D=FILE)")
@pytest.mark.slow
def test_published_weights_give_the_logits_of_a_plain_recomputation():
    tensors, clip = load_file(FILE), generated(16, 64)
    logits = classifiers.read_i3d(tensors).eval()(torch.from_numpy(clip).float().permute(3, 0, 1, 2)[None])[0]
    np.testing.assert_allclose(logits.detach().numpy(), plain(tensors, clip), atol=1e-3)
    encoder = load(EncoderConfig(str(FILE), 64, 1), CPU)
    assert (len(encoder.labels), encoder.feature_size, encoder.labels[0]) == (400, 400, "abseiling")


@pytest.mark.parametrize("zipped", [True, False], ids=["as torch writes now", "as it wrote in 2017"])
def test_weights_of_pytorch_i3d_make_the_same_network(tmp_path, zipped):
    tensors, file = random_weights(), tmp_path / "rgb_imagenet.pt"
    theirs = as_pytorch_i3d(tensors)
    assert len(theirs) == 344
    assert theirs["Mixed_5c.b3b.conv3d.weight"].shape == (128, 832, 1, 1, 1)
    torch.save(theirs, file, _use_new_zipfile_serialization=zipped)
    encoder = load(EncoderConfig(str(file), 48, 1), CPU)
    clip = torch.from_numpy(generated(16, 48)).float().permute(3, 0, 1, 2)[None]
    torch.testing.assert_close(encoder._network(clip), classifiers.read_i3d(tensors).eval()(clip), atol=1e-4, rtol=1e-4)
    assert encoder.feature_size == 7


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("i3d")
    save_file({name: one.half() for name, one in random_weights().items()}, folder / "i3d_toy7.safetensors")
    return folder / "i3d_toy7.safetensors"


def test_probabilities_are_means_over_segments_of_sixteen_frames(file, tmp_path):
    clip = write_clip(tmp_path / "a.mkv", 40, codec="ffv1")
    encoder = ClipClassifier(EncoderConfig(str(file), 48, 1, frames=2), file)
    seen = read_item(encoder, clip)
    assert seen.pixels.shape == (2, 16, 48, 48, 3)
    features = encoder(seen.pixels[None])
    network = classifiers.read_i3d(load_file(file)).eval()
    given = torch.from_numpy(seen.pixels).float().permute(0, 4, 1, 2, 3) / 127.5 - 1
    expected = F.softmax(network(given), 1).mean(0)
    torch.testing.assert_close(features.grid[0, 0], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(features.pooled[0], expected, atol=1e-5, rtol=0)


def test_frames_around_a_keyframe_stop_at_the_ends_of_a_clip(tmp_path):
    file = write_clip(tmp_path / "a.mkv", 20, codec="ffv1")
    seen = read_squares(file, 2, range(-8, 8), 128, SQUEEZE)
    numbers = [[number_in(frame[:, :, :]) for frame in segment] for segment in seen.pixels]
    assert numbers == [[0] * 3 + list(range(13)), list(range(7, 20)) + [19] * 3]
    np.testing.assert_array_equal(counted(0)[0, 0], seen.pixels[0, 0, 0, 0])


def test_labels_come_from_the_file_beside_the_weights(file):
    assert ClipClassifier(EncoderConfig(str(file), 48, 1), file).labels == tuple("0123456")
    names = file.parent / "toy7_labels.json"
    names.write_text(json.dumps(list("abcdefg")))
    assert classifiers.read_labels(file, 7) == tuple("abcdefg")
    names.write_text(json.dumps(["a"]))
    with pytest.raises(UserError, match=r"toy7_labels\.json: must be a list of 7 labels"):
        classifiers.read_labels(file, 7)
    names.unlink()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.safetensors", None, r"there is no file .*none\.safetensors"),
        ("bad.safetensors", b"no tensors", r"bad\.safetensors: is no file of weights, or damaged"),
        (
            "bad.safetensors",
            {"weight": torch.zeros(2)},
            r"bad\.safetensors: the weights are of no supported",
        ),
        ("bad.safetensors", {classifiers.FLAX_SIGN: torch.zeros(2)}, r"bad\.safetensors: the weights do not fit"),
        ("evil.pth", {"fc.weight": print}, r"evil\.pth: is no file of weights, or damaged, or has more in it"),
        ("list.pth", {"fc.weight": [1]}, r"list\.pth: is no state dict"),
    ],
)
def test_a_file_that_is_missing_or_has_something_else_in_it_is_named(tmp_path, name, content, said):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        (torch.save if name.endswith(".pth") else save_file)(content, tmp_path / name)
    with pytest.raises(UserError, match=said):
        load(EncoderConfig(str(tmp_path / name)), CPU)


def drawn(network):
    """Weights of a network, by torchvision's names; variances are positive."""
    draw, tensors = torch.Generator().manual_seed(0), {}
    for name, tensor in network.state_dict().items():
        value = torch.randn(tensor.shape, generator=draw)
        if name.endswith("running_var"):
            value = 0.5 + value.abs()
        elif tensor.ndim > 1:  # a convolution keeps the size of what it is given
            value = value * (1 / np.prod(tensor.shape[1:])) ** 0.5
        tensors[name] = torch.tensor(3) if name.endswith("num_batches_tracked") else value
    return tensors


def normed(t, name, x):
    shape = (1, -1) + (1,) * (x.ndim - 2)
    mean, variance, gain, bias = (
        t[f"{name}.{part}"].view(shape) for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (variance + 1e-5).sqrt() * gain + bias


def resnext_by_hand(t, x, blocks, groups):
    x = normed(t, "bn1", F.conv2d(x, t["conv1.weight"], stride=2, padding=3)).relu()
    x = F.max_pool2d(x, 3, 2, padding=1)
    for stage, count in enumerate(blocks):
        for number in range(count):
            b, stride = f"layer{stage + 1}.{number}", 2 if stage and not number else 1
            y = normed(t, f"{b}.bn1", F.conv2d(x, t[f"{b}.conv1.weight"])).relu()
            y = F.conv2d(y, t[f"{b}.conv2.weight"], stride=stride, padding=1, groups=groups)
            y = normed(t, f"{b}.bn3", F.conv2d(normed(t, f"{b}.bn2", y).relu(), t[f"{b}.conv3.weight"]))
            if number == 0:
                x = normed(t, f"{b}.downsample.1", F.conv2d(x, t[f"{b}.downsample.0.weight"], stride=stride))
            x = (x + y).relu()
    return x.mean((2, 3)) @ t["fc.weight"].T + t["fc.bias"]


def resnet_3d_by_hand(t, x):
    x = normed(t, "stem.1", F.conv3d(x, t["stem.0.weight"], stride=(1, 2, 2), padding=(1, 3, 3))).relu()
    for stage in range(4):
        for number in range(2):
            b, stride = f"layer{stage + 1}.{number}", 2 if stage and not number else 1
            y = normed(t, f"{b}.conv1.1", F.conv3d(x, t[f"{b}.conv1.0.weight"], stride=stride, padding=1)).relu()
            y = normed(t, f"{b}.conv2.1", F.conv3d(y, t[f"{b}.conv2.0.weight"], padding=1))
            if stride > 1:
                x = normed(t, f"{b}.downsample.1", F.conv3d(x, t[f"{b}.downsample.0.weight"], stride=stride))
            x = (x + y).relu()
    return x.mean((2, 3, 4)) @ t["fc.weight"].T + t["fc.bias"]


def test_resnext_from_a_file_gives_the_classes_of_the_keyframe(tmp_path):
    blocks, groups = (2, 2, 1, 1), 4
    tensors = drawn(ResNeXt(blocks, 8, groups, labels=5, outputs=16))
    torch.save(tensors, tmp_path / "resnext.pth")
    encoder = load(EncoderConfig(str(tmp_path / "resnext.pth"), 64, 1), CPU)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(tmp_path / "a.png")
    pixels = read_item(encoder, tmp_path / "a.png").pixels
    assert pixels.shape == (1, 1, 64, 64, 3)
    images = (pixels[0] / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    given = torch.from_numpy(images).float().permute(0, 3, 1, 2)
    expected = resnext_by_hand(tensors, given, blocks, groups).softmax(1)
    torch.testing.assert_close(encoder(pixels[None]).grid[0], expected, atol=1e-4, rtol=0)


def test_resnet_3d_from_a_file_gives_the_actions_around_the_keyframe(tmp_path):
    tensors = drawn(ResNet3d(6, width=4))
    torch.save(tensors, tmp_path / "r3d_18.pth")
    encoder = load(EncoderConfig(str(tmp_path / "r3d_18.pth"), 32, 1, frames=2), CPU)
    pixels = read_item(encoder, write_clip(tmp_path / "a.mkv", 50, codec="ffv1")).pixels
    assert pixels.shape == (2, 16, 32, 32, 3)
    images = (pixels / 255 - np.array([0.43216, 0.394666, 0.37645])) / np.array([0.22803, 0.22145, 0.216989])
    given = torch.from_numpy(images).float().permute(0, 4, 1, 2, 3)
    expected = resnet_3d_by_hand(tensors, given).softmax(1).mean(0)
    torch.testing.assert_close(encoder(pixels[None]).grid[0, 0], expected, atol=1e-4, rtol=0)


def test_published_sizes():
    """torchvision's parameter counts."""
    with torch.device("meta"):
        networks = {
            25_028_904: ResNeXt((3, 4, 6, 3), 128, 32, 1000),
            88_791_336: ResNeXt((3, 4, 23, 3), 256, 32, 1000),
            33_371_472: ResNet3d(400),
        }
    for count, network in networks.items():
        assert sum(weight.numel() for weight in network.parameters()) == count
