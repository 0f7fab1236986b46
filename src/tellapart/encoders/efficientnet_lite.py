"""EfficientNet-Lite 0, 1, 2 (Tan and Le, 2019; the Lite variants of 2020): a photo's feature map, on a CPU and quickly.

The network is used frozen, so every batch normalisation is folded into the convolution before it when the weights are
read: what runs is convolutions with a bias and ReLU6, and nothing else.  The classifier is left out.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Variant:
    width: float
    depth: float


VARIANTS = {0: Variant(1.0, 1.0), 1: Variant(1.0, 1.1), 2: Variant(1.1, 1.2)}
FEATURE_SIZE = 1280  # channels of the last convolution; not scaled in the Lite variants
STRIDE = 32  # a cell of the native feature map covers this many pixels a side
_STEM = 32  # channels of the first convolution; not scaled either
_STAGES = (  # of B0: repeats, kernel, stride of the first block, expansion, output channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_NORM_EPSILON = 1e-3  # TensorFlow's, which trained the weights


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Before and after a side, as TensorFlow's SAME has it."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class _Depthwise(torch.autograd.Function):
    """A convolution of each channel by itself whose gradient is quick on a CPU, in bfloat16 as well.

    What torch calls there for 5 x 5 kernels takes twenty times as long as the convolution.  Here the gradient of the
    input is a convolution, and that of a 5 x 5 kernel is put together of those of four 3 x 3 kernels.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
        y = F.conv2d(x, weight, bias, stride, padding, groups=len(weight))
        ctx.save_for_backward(x.to(y.dtype), weight)
        ctx.stride, ctx.padding = stride, padding
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        kernel, padding, stride, groups = weight.shape[-1], ctx.padding, ctx.stride, len(weight)
        by_bias = gradient.sum((0, 2, 3), dtype=torch.float32 if gradient.dtype == torch.bfloat16 else None)
        if stride > 1:  # as with stride 1 at the places that count, and none at the others
            sides = [side + 2 * padding - kernel + 1 for side in x.shape[2:]]
            spread = gradient.new_zeros(len(gradient), groups, *sides).contiguous(memory_format=torch.channels_last)
            spread[:, :, ::stride, ::stride] = gradient
            gradient = spread
        by_input = None
        if ctx.needs_input_grad[0]:
            by_input = F.conv2d(gradient, weight.to(x.dtype).flip(2, 3), padding=kernel - 1 - padding, groups=groups)
        height, width = gradient.shape[2:]
        x = F.pad(x, (padding,) * 4)
        by_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format)
        part = torch.empty(groups, 1, 3, 3, dtype=x.dtype, device=x.device)
        for top, left in itertools.product(range(0, kernel - 1, 2), repeat=2):
            window = x[:, :, top : top + height + 2, left : left + width + 2].contiguous(
                memory_format=torch.channels_last
            )
            places = by_weight[:, :, top : top + 3, left : left + 3]
            places.copy_(
                torch.ops.aten.convolution_backward(
                    *(gradient, window, part, None, [1, 1], [0, 0], [1, 1], False, [0, 0], groups),
                    output_mask=[False, True, False],
                )[1]
            )
        return by_input, by_weight, by_bias.to(weight.dtype), None, None


class SameConv(nn.Module):
    """Convolution with TensorFlow's SAME padding: where the padding is odd, the extra row and column come last."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__()
        self.kernel, self.stride, self.groups = kernel, stride, groups
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        padding = self.kernel // 2
        if self.stride > 1:
            top, bottom = same_padding(x.shape[2], self.kernel, self.stride)
            left, right = same_padding(x.shape[3], self.kernel, self.stride)
            if top == bottom == left == right:
                padding = top
            else:
                x, padding = F.pad(x, (left, right, top, bottom)), 0
        if self.kernel == 5 and x.device.type == "cpu" and torch.is_grad_enabled() and self.weight.requires_grad:
            return _Depthwise.apply(x, self.weight, self.bias, self.stride, padding)  # type: ignore[no-any-return,no-untyped-call]
        return F.conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)


class Block(nn.Module):
    """Inverted residual: widen, look around per channel, narrow again."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        inner = inputs * expansion
        self.expand = SameConv(inputs, inner, 1) if expansion > 1 else None
        self.depthwise = SameConv(inner, inner, kernel, stride, groups=inner)
        self.project = SameConv(inner, outputs, 1)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        y = self.project(F.relu6(self.depthwise(y), inplace=True))
        return y.add_(x) if self.residual else y  # type: ignore[no-any-return]


class EfficientNetLite(nn.Module):
    """Pixels (B, 3, H, W) as (value - 127) / 128 in, feature map (B, 1280, H / 32, W / 32) out."""

    def __init__(self, variant: int):
        super().__init__()
        scale = VARIANTS[variant]
        self.stem = SameConv(3, _STEM, 3, stride=2)
        blocks, inputs = [], _STEM
        for stage, (repeats, kernel, stride, expansion, outputs) in enumerate(_STAGES):
            if 0 < stage < len(_STAGES) - 1:  # the Lite variants keep the first and the last stage at one block
                repeats = math.ceil(repeats * scale.depth)
            outputs = _round_channels(outputs * scale.width)
            for repeat in range(repeats):
                blocks.append(Block(inputs, outputs, kernel, stride if repeat == 0 else 1, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = SameConv(inputs, FEATURE_SIZE, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.relu6(self.stem(pixels), inplace=True)
        return F.relu6(self.head(self.blocks(x)), inplace=True)


def fold(published: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published state dict (convolutions and batch normalisations apart, a classifier) as ours."""
    ours: dict[str, Tensor] = {}

    def take(name: str, convolution: str, norm: str) -> None:
        gain = published[f"{norm}.weight"] / torch.sqrt(published[f"{norm}.running_var"] + _NORM_EPSILON)
        ours[f"{name}.weight"] = published[f"{convolution}.weight"] * gain[:, None, None, None]
        ours[f"{name}.bias"] = published[f"{norm}.bias"] - published[f"{norm}.running_mean"] * gain

    take("stem", "_conv_stem", "_bn0")
    take("head", "_conv_head", "_bn1")
    blocks = {int(key.split(".")[1]) for key in published if key.startswith("_blocks.")}
    for i in sorted(blocks):
        if f"_blocks.{i}._expand_conv.weight" in published:
            take(f"blocks.{i}.expand", f"_blocks.{i}._expand_conv", f"_blocks.{i}._bn0")
        take(f"blocks.{i}.depthwise", f"_blocks.{i}._depthwise_conv", f"_blocks.{i}._bn1")
        take(f"blocks.{i}.project", f"_blocks.{i}._project_conv", f"_blocks.{i}._bn2")
    return ours


def _round_channels(channels: float, divisor: int = 8) -> int:
    """To a multiple of eight, never down by more than a tenth (the rule the published weights were made with)."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * channels else rounded + divisor
