"""A frozen network that turns pixels into features, known by its name, its settings and the hash of its weights.

S pixels a side, B photos, R regions: the cells of the grid, D feature size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from tellapart import onnx_session
from tellapart.data.media import photos
from tellapart.encoders import ENCODERS, Published, efficientnet_lite, unknown, weights_file
from tellapart.errors import UserError
from tellapart.recipe import EncoderConfig, Pooling


class Features(NamedTuple):
    grid: Tensor  # (B, R, D), row by row from the top left; the cells of a second grid follow
    pooled: Tensor  # (B, D), the mean of the network's own map
    counts: Tensor | None = None  # (B,) how many of the first regions exist; none: all of them


class Encoder:
    """A frozen EfficientNet-Lite with its settings.  Call it with pixels.

    On a CPU onnxruntime runs it, where it is installed and the network's graph is bundled: it is two to three times as
    quick as torch, with the same numbers but for rounding.
    """

    fit = photos.SQUEEZE

    def __init__(self, config: EncoderConfig, device: str | torch.device = "cpu"):
        entry = ENCODERS.get(config.name)
        if not isinstance(entry, Published):
            raise unknown(config.name)
        check(config, least_size=efficientnet_lite.STRIDE)
        self.config, self.device = config, torch.device(device)
        file = weights_file(config.name, entry)
        self.weights_sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        graph = file.with_suffix(".onnx")
        if self.device.type == "cpu" and graph.exists() and onnx_session.is_installed():
            self._feature_map = _by_graph(graph)
        else:
            self._feature_map = _by_torch(entry.variant, file, self.device)

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
    def identity(self) -> dict[str, Any]:
        """What features must share to be used together: kept in manifests and model folders, and compared."""
        return self.config.identity | {"weights_sha256": self.weights_sha256}

    @torch.inference_mode()
    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, S, S, 3) in 0..255"""
        return pool(self._feature_map(torch.as_tensor(pixels)), self.config)


FeatureMap = Callable[[Tensor], Tensor]  # pixels (B, H, W, 3) -> (B, D, H / 32, W / 32)


def _by_torch(variant: int, weights: Path, device: torch.device) -> FeatureMap:
    network = efficientnet_lite.EfficientNetLite(variant)
    network.load_state_dict(read_weights(weights))
    network.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def feature_map(pixels: Tensor) -> Tensor:
        images = pixels.to(device).permute(0, 3, 1, 2)  # channels last in memory, as it came
        return network((images.float() - 127) / 128)  # type: ignore[no-any-return]

    return feature_map


def _by_graph(file: Path) -> FeatureMap:
    session = onnx_session.session(file, file.name)

    def feature_map(pixels: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"pixels": pixels.contiguous().cpu().numpy()})[0])

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
