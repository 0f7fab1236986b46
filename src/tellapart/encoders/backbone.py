"""Any vision backbone of transformers as an encoder, by folder or hub id: ResNet, Swin, ViT, DINOv2, CLIP's tower ...

A captioner looks at the network's last map: what a convolutional network gives, or the patches of a transformer put
back where they were, without its class and register tokens.  Pooled features are the mean of that map, which for a
ResNet is what its own pooling gives.  Poolers that come with weights are not used, and often those are not there.

The whole photo is squeezed into the square, whatever the network was trained with: a caption should not miss what
stands at the edges.  The colours are made ready as the folder says.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from tellapart.data.media.photos import Fit
from tellapart.encoders import pretrained
from tellapart.encoders.encoder import Features, check, pool
from tellapart.hub import reason
from tellapart.recipe import EncoderConfig

INSTALL = "pip install 'tellapart[backbones]'"
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MOST_SPECIAL = 16  # class and register tokens before the patches; no network has nearly as many


class Backbone:
    """A frozen network with its settings.  Call it with pixels."""

    def __init__(self, config: EncoderConfig, source: str, device: torch.device):
        """source  a folder or hub id"""
        check(config, least_size=8)
        folder = pretrained.find(source, INSTALL)
        if files.is_folder(Path(source)):  # a model that learns from it must find it again from anywhere
            config = replace(config, name=str(files.real(Path(source))))
        self.config, self.device = config, device
        self.network, self.weights_sha256 = _tower(source, folder)
        self.network.to(device).eval().requires_grad_(False)
        file, settings = pretrained.processor(folder)
        try:
            self.fit = Fit(resample=pretrained.resampling(settings))
            self.mean, self.std = pretrained.colours(settings, _IMAGENET_MEAN, _IMAGENET_STD)
        except (TypeError, ValueError) as error:
            raise pretrained.not_ready(file, error) from None
        self.feature_size = self._probe(source)

    @property
    def regions(self) -> int:
        return self.config.cells

    @property
    def pooled_size(self) -> int:
        return self.feature_size

    @property
    def identity(self) -> dict[str, Any]:
        how = {"fit": asdict(self.fit), "mean": self.mean, "std": self.std}
        return self.config.identity | how | {"weights_sha256": self.weights_sha256}

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, S, S, 3) in 0..255"""
        return pool(self.feature_map(pixels), self.config)

    @torch.inference_mode()
    def feature_map(self, pixels: NDArray[np.uint8] | Tensor) -> Tensor:
        """(B, D, H, W)"""
        images = pretrained.normalised(pixels, self.mean, self.std, self.device)
        return self._map(self.network(pixel_values=images).last_hidden_state)

    def _map(self, hidden: Tensor) -> Tensor:
        """The last layer as a map (B, D, H, W); of a transformer it comes as a row of tokens (B, T, D)."""
        if hidden.ndim == 4:
            return hidden
        tokens = hidden.shape[1]
        patch = getattr(self.network.config, "patch_size", 0)
        side = self.config.image_size // patch if isinstance(patch, int) and patch else math.isqrt(tokens)
        if side**2 > tokens:  # Swin and its like merge patches on the way
            side = math.isqrt(tokens)
        special = tokens - side**2
        if special > _MOST_SPECIAL or side == 0:
            raise ValueError(f"its {tokens} tokens are no square")
        return hidden[:, special:].transpose(1, 2).reshape(len(hidden), -1, side, side)

    def _probe(self, source: str) -> int:
        """D; what the network cannot take is found out now, not at the first photo."""
        size = self.config.image_size
        try:
            return self(np.zeros((1, size, size, 3), np.uint8)).grid.shape[2]
        except Exception as error:  # each network refuses in its own way
            own = getattr(self.network.config, "image_size", None)
            takes = f"; it was made for {own} (image_size)" if isinstance(own, int) and own != size else ""
            raise UserError(
                f"{source} cannot encode photos of {size} x {size} pixels{takes} ({reason(error)})."
            ) from None


def _tower(source: str, folder: Path) -> tuple[Any, str]:
    """The part of a model that looks at photos, and the hash of its weights."""
    network, missing = pretrained.read_network(source, folder, "AutoModel", "network")
    prefix = "vision_model." if hasattr(network, "vision_model") else ""  # CLIP and its like have a text tower beside
    tower = network.vision_model if prefix else network
    if getattr(tower, "main_input_name", "") != "pixel_values":
        raise UserError(f"{source} is a model of the type {network.config.model_type!r}, which is not a vision model.")
    lacking = {name.removeprefix(prefix) for name in missing if name.startswith(prefix)}
    unused = {name for name in tower.state_dict() if name.startswith("pooler.")}
    pretrained.refuse_incomplete(source, sorted(lacking - unused))
    return tower, pretrained.sha256({name: t for name, t in tower.state_dict().items() if name not in unused})
