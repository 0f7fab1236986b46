"""A frozen network that turns pixels into features, known by its name, its settings and the hash of its weights.

S pixels a side, B photos, R regions: the cells of the grid, D feature size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from capscore.errors import UserError
from tellapart import encoders, onnx
from tellapart.data.media import photos
from tellapart.encoders import ENCODERS, Published, efficientnet_lite, pretrained, unknown, weights_file
from tellapart.recipe import EncoderConfig, Pooling


class Features(NamedTuple):
    grid: Tensor  # (B, R, D), row by row from the top left; the cells of a second grid follow
    pooled: Tensor  # (B, D), the mean of the network's own map
    counts: Tensor | None = None  # (B,) how many of the first regions exist; none: all of them


@dataclass(frozen=True)
class Part:
    """A model that another one uses, and that a model folder carries."""

    folder: Path
    sha256: str


@dataclass(frozen=True)
class Tuned:
    """What training has made of an EfficientNet-Lite.

    base     its name in the table
    weights  all of them, in half precision, as the bundled ones are
    folder   of the run, or of the model that carries it; none where the package brings it
    """

    base: str
    weights: dict[str, Tensor]
    folder: Path | None


class Encoder:
    """A frozen EfficientNet-Lite with its settings.  Call it with pixels.

    On a CPU onnxruntime runs it, where it is installed and the network's graph is bundled: it is two to three times as
    quick as torch, with the same numbers but for rounding.
    """

    fit = photos.SQUEEZE

    def __init__(self, config: EncoderConfig, device: str | torch.device = "cpu", tuned: Tuned | None = None):
        name = tuned.base if tuned else config.name
        entry = ENCODERS.get(name)
        if not isinstance(entry, Published):
            raise unknown(name)
        check(config, least_size=efficientnet_lite.STRIDE)
        self.config, self.device, self.tuned = config, torch.device(device), tuned
        graph = encoders.BUNDLED / f"{name}.onnx"  # has no weights of its own, and so is that of any which was tuned
        by_graph = self.device.type == "cpu" and graph.exists() and onnx.is_installed()
        if tuned:
            self.weights_sha256 = pretrained.sha256(tuned.weights)
        else:
            file = weights_file(name, entry)
            self.weights_sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        self.feature_map: FeatureMap
        if by_graph:
            self.feature_map = _by_graph(graph, tuned)
        else:
            weights = tuned.weights if tuned else read_weights(file)
            self.feature_map = _by_torch(entry.variant, weights, self.device)

    @property
    def regions(self) -> int:
        return self.config.cells

    @property
    def feature_size(self) -> int:
        return efficientnet_lite.FEATURE_SIZE

    @property
    def pooled_size(self) -> int:
        return efficientnet_lite.FEATURE_SIZE

    @property
    def part(self) -> Part | None:
        """What a model must carry to use it; nothing where the package brings it."""
        return Part(self.tuned.folder, self.weights_sha256) if self.tuned and self.tuned.folder else None

    @property
    def identity(self) -> dict[str, Any]:
        """What features must share to be used together: kept in manifests and model folders, and compared."""
        tuned = {"tuned": self.tuned.base} if self.tuned else {}
        return self.config.identity | tuned | {"weights_sha256": self.weights_sha256}

    @torch.inference_mode()
    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, S, S, 3) in 0..255"""
        return pool(self.feature_map(pixels), self.config)


def bundled_tuned(config: EncoderConfig, device: torch.device) -> Encoder:
    """The tuned encoder that comes with the package: NAME_tuned.safetensors has the blocks that differ from NAME's."""
    base = config.name.removesuffix("_tuned")
    weights = load_file(encoders.BUNDLED / f"{base}.safetensors") | load_file(
        encoders.BUNDLED / f"{config.name}.safetensors"
    )
    return Encoder(config, device, Tuned(base, weights, None))


FeatureMap = Callable[[NDArray[np.uint8] | Tensor], Tensor]  # pixels (B, H, W, 3) -> (B, D, H / 32, W / 32)


def _by_torch(variant: int, weights: dict[str, Tensor], device: torch.device) -> FeatureMap:
    network = efficientnet_lite.EfficientNetLite(variant)
    network.load_state_dict(weights)
    network.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def feature_map(pixels: NDArray[np.uint8] | Tensor) -> Tensor:
        images = torch.as_tensor(pixels).to(device).permute(0, 3, 1, 2)  # channels last in memory, as it came
        return network((images.float() - 127) / 128)  # type: ignore[no-any-return]

    return feature_map


def _by_graph(file: Path, tuned: Tuned | None) -> FeatureMap:
    if tuned:
        weights = {name: tensor.contiguous().numpy() for name, tensor in tuned.weights.items()}
        session = onnx.session(file.read_bytes(), file.name, weights)
    else:
        session = onnx.session(file, file.name)

    def feature_map(pixels: NDArray[np.uint8] | Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"pixels": torch.as_tensor(pixels).contiguous().cpu().numpy()})[0])

    return feature_map


def check(config: EncoderConfig, least_size: int) -> None:
    """What the types of the settings cannot say."""
    for field, value, least, most in (
        ("image_size", config.image_size, least_size, 2048),
        ("grid", config.grid, 1, 64),
        ("coarse", config.coarse, 0, 64),
    ):
        if not least <= value <= most:
            raise UserError(f"encoder: {field} must be from {least} to {most}, not {value}.")
    if config.pooling not in get_args(Pooling):
        raise UserError(f"encoder: pooling must be {' or '.join(get_args(Pooling))}, not {config.pooling!r}.")
    if config.pooling == "projected":
        raise UserError(f"encoder: pooling {config.pooling} is for CLIP and SigLIP by folder or hub id.")


def pool(feature_map: Tensor, config: EncoderConfig) -> Features:
    """A network's own map (B, D, H, W) as the cells that a captioner looks at: fewer, as many, or more."""
    grids = [_cells(feature_map, side, config.pooling) for side in config.grids]
    return Features(torch.cat(grids, 1) if len(grids) > 1 else grids[0], feature_map.mean((2, 3)))


def _cells(feature_map: Tensor, side: int, pooling: Pooling) -> Tensor:
    """(B, side * side, D), row by row"""
    grid = feature_map
    if grid.shape[2:] != (side, side):
        grid = (F.adaptive_max_pool2d if pooling == "max" else F.adaptive_avg_pool2d)(grid, side)
    return grid.flatten(2).transpose(1, 2)


def read_weights(file: Path) -> dict[str, Tensor]:
    """Of an EfficientNet-Lite, in single precision."""
    if file.suffix == ".safetensors":  # ours: folded already, half precision
        return {name: tensor.float() for name, tensor in load_file(file).items()}
    return efficientnet_lite.fold(torch.load(file, weights_only=True, map_location="cpu"))
