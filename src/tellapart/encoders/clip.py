"""CLIP and SigLIP as transformers knows them, by folder or hub id, and their image tower as an encoder.

A photo becomes a square as the model was trained: CLIP sees the middle of it, SigLIP the whole of it, squeezed.

SigLIP 2 of a fixed size calls itself "siglip" and is one here.  What calls itself "siglip2" (NaFlex) takes photos in
their own shape, which is not supported.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
from tellapart.encoders.encoder import Features
from tellapart.recipe import EncoderConfig

INSTALL = "pip install 'tellapart[clip]'"


@dataclass(frozen=True)
class Family:
    """A kind of model, and what its photos are like where its folder does not say."""

    title: str
    model: str  # the class in transformers
    crop: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]


FAMILIES = {  # model_type in config.json
    "clip": Family(
        "CLIP", "CLIPModel", True, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    ),
    "siglip": Family("SigLIP", "SiglipModel", False, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


@dataclass(frozen=True)
class Pretrained:
    """A model with both towers, frozen."""

    name: str  # the last part of the hub id, or the folder's name
    folder: Path
    family: Family
    network: Any  # transformers' CLIPModel or SiglipModel
    weights_sha256: str


def load(source: str, device: torch.device) -> Pretrained:
    """source  a folder or a hub id"""
    folder = pretrained.find(source, INSTALL)
    model_type = files.read_json(folder / "config.json").get("model_type")
    if model_type == "siglip2":
        raise UserError(
            f"{source} is a SigLIP 2 that takes photos in their own shape (NaFlex), which is not supported; "
            "use one of a fixed size, such as google/siglip2-base-patch16-256."
        )
    if model_type not in FAMILIES:
        raise UserError(
            f"{source} is a model of the type {model_type!r}; those in which photos and captions meet are "
            f"{' and '.join(FAMILIES)}."
        )
    family = FAMILIES[model_type]
    network, missing = pretrained.read_network(source, folder, family.model, family.title)
    pretrained.refuse_incomplete(source, missing)
    vision = network.config.vision_config
    if not isinstance(vision.image_size, int) or not isinstance(vision.patch_size, int):
        raise UserError(f"{folder / 'config.json'}: image_size and patch_size must be one number each: squares.")
    network.to(device).eval().requires_grad_(False)
    return Pretrained(Path(source).resolve().name, folder, family, network, pretrained.sha256(network.state_dict()))


class ClipEncoder:
    """The image tower.  Its pooled features are the projected embedding, not yet of unit length."""

    def __init__(self, model: Pretrained, device: torch.device):
        vision = model.network.config.vision_config
        self.network, self.device = model.network, device
        self.weights_sha256 = model.weights_sha256
        self.config = EncoderConfig(model.name, vision.image_size, vision.image_size // vision.patch_size)
        self.feature_size = int(vision.hidden_size)
        self.pooled_size = embedding_size(model.network)
        self.fit, self.mean, self.std = _preprocessing(model, vision.image_size)
        self._has_class_token = model.family.model == "CLIPModel"

    @property
    def regions(self) -> int:
        return self.config.cells

    @property
    def identity(self) -> dict[str, Any]:
        how = {"fit": asdict(self.fit), "mean": self.mean, "std": self.std}
        return self.config.identity | how | {"weights_sha256": self.weights_sha256}

    @torch.inference_mode()
    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, S, S, 3) in 0..255"""
        images = pretrained.normalised(pixels, self.mean, self.std, self.device)
        seen = self.network.get_image_features(pixel_values=images)
        return Features(seen.last_hidden_state[:, int(self._has_class_token) :], seen.pooler_output)


class ProjectedClip(ClipEncoder):
    """The projected embedding as the one region of a photo, as ClipCap takes it."""

    def __init__(self, config: EncoderConfig, device: torch.device):
        super().__init__(load(config.name, device), device)
        name = str(files.real(Path(config.name))) if files.is_folder(Path(config.name)) else config.name
        self.config = EncoderConfig(name, self.config.image_size, 1, "projected")
        self.feature_size = self.pooled_size

    @torch.inference_mode()
    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        pooled = super().__call__(pixels).pooled
        return Features(pooled[:, None], pooled)


def embedding_size(network: Any) -> int:
    """E"""
    config = network.config
    return int(getattr(config, "projection_dim", None) or config.vision_config.hidden_size)


def _preprocessing(model: Pretrained, image_size: int) -> tuple[Fit, list[float], list[float]]:
    """How a photo becomes a square, and the mean and deviation of its colours."""
    family = model.family
    file, settings = pretrained.processor(model.folder)
    try:
        cuts = bool(settings.get("do_center_crop", family.crop))
        size = _edges(settings.get("size", image_size), "shortest_edge" if cuts else "height")
        square = _edges(settings.get("crop_size", image_size), "height") if cuts else size
        if "shortest_edge" in square or {*size.values(), *square.values()} != {image_size}:
            raise ValueError(f"it gives {size | square}, and the model takes squares of {image_size} pixels")
        fit = Fit(crop="shortest_edge" in size, resample=pretrained.resampling(settings), exact=True)
        mean, std = pretrained.colours(settings, family.mean, family.std)
    except (TypeError, ValueError, AttributeError) as error:
        raise pretrained.not_ready(file, error) from None
    return fit, mean, std


def _edges(size: Any, edge: str) -> dict[str, int]:
    """As processors write it: {"shortest_edge"}, {"height", "width"}, or in older files one number, of this edge."""
    return {edge: size} if isinstance(size, int) else {str(key): int(pixels) for key, pixels in size.items() if pixels}
