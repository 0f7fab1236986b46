"""Residual networks with torchvision's names: ResNeXt (Xie et al., 2017) and 3D-ResNet-18 (Tran et al., 2018).

Its state dicts fit, for modules are named as there.  Any ResNet with bottlenecks is a ResNeXt with one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


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
            before, here = width << max(stage - 1, 0), width << stage
            stages.append(nn.Sequential(Block3d(before, here, 2 if stage else 1), Block3d(here, here, 1)))
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
