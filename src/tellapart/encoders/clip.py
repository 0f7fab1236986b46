"""CLIP and SigLIP as transformers knows them, by folder or hub id, and their image tower as an encoder.

Weights are read from safetensors only, and no code that comes with a model is run.  A photo becomes a square as the
model was trained: CLIP sees the middle of it, SigLIP the whole of it, squeezed.

SigLIP 2 of a fixed size calls itself "siglip" and is one here.  What calls itself "siglip2" (NaFlex) takes photos in
their own shape, which is not provided for.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tellapart import files, places
from tellapart.data.photos import Fit
from tellapart.encoders import EncoderConfig
from tellapart.encoders.encoder import Features
from tellapart.errors import UserError

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


_PARTS = ("*.json", "*.txt", "*.model", "model*.safetensors")  # of a model on the hub; never programs or pickles


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
    if places.package("transformers") is None:
        raise UserError(f"{source}: a CLIP is loaded with transformers, which is not installed; `{INSTALL}` brings it.")
    _quiet()
    folder = Path(source) if files.is_folder(Path(source)) else _from_hub(source)
    model_type = files.read_json(folder / "config.json").get("model_type")
    if model_type == "siglip2":
        raise UserError(
            f"{source} is a SigLIP 2 that takes photos in their own shape (NaFlex), which is not provided for; "
            "take one of a fixed size, such as google/siglip2-base-patch16-256."
        )
    if model_type not in FAMILIES:
        raise UserError(
            f"{source} is a model of the type {model_type!r}; those in which photos and captions meet are "
            f"{' and '.join(FAMILIES)}."
        )
    family = FAMILIES[model_type]
    network = _read_weights(source, folder, family)
    vision = network.config.vision_config
    if not isinstance(vision.image_size, int) or not isinstance(vision.patch_size, int):
        raise UserError(f"{folder / 'config.json'}: image_size and patch_size must be one number each: squares.")
    network.to(device).eval().requires_grad_(False)
    return Pretrained(Path(source).resolve().name, folder, family, network, _sha256(network))


def _quiet() -> None:
    """No reports or bars of transformers; a download shows its own bar on a terminal."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from huggingface_hub.utils import enable_progress_bars
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    hub_logging.set_verbosity_error()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if sys.stderr.isatty() and "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
        enable_progress_bars()


def _from_hub(source: str) -> Path:
    """Where the hub's files lie on this machine; fetched if need be, unless HF_HUB_OFFLINE says that it must not be."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(source, allow_patterns=list(_PARTS)))
    except Exception as error:  # a network fails in many ways
        raise UserError(
            f"there is no folder {source!r}, and the Hugging Face hub gave no model of this name ({reason(error)})."
        ) from None
    if not (folder / "config.json").exists():
        raise UserError(f"{source}, as the Hugging Face hub gave it, has no config.json.")
    return folder


def reason(error: Exception) -> str:
    """An error of another library, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


def _read_weights(source: str, folder: Path, family: Family) -> Any:
    import transformers

    where = str(folder)
    if not any(folder.glob("*.safetensors")):
        if files.is_folder(Path(source)):
            others = "; others are not read, because they can carry programs" if any(folder.glob("*.bin")) else ""
            raise UserError(f"{source} has no weights in the safetensors format{others}.")
        where = source  # of older models the hub keeps a copy in that format, which transformers finds
    try:
        network, found = getattr(transformers, family.model).from_pretrained(
            where, use_safetensors=True, trust_remote_code=False, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # a damaged file or config fails in as many ways as there are fields
        raise UserError(f"{source}: the {family.title} cannot be loaded ({reason(error)}).") from None
    if missing := sorted(found["missing_keys"]):  # transformers would go on with random numbers
        raise UserError(f"{source}: the weights are not complete: {missing[0]} is not there ({len(missing)} in all).")
    return network


def _sha256(network: Any) -> str:
    """Of the tensors, not of files: a model may lie in one or in several."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(memoryview(tensor.cpu().contiguous().numpy()).cast("B") if tensor.numel() else b"")
    return digest.hexdigest()


class ClipEncoder:
    """The image tower.  Its pooled features are the projected embedding, not yet of unit length."""

    def __init__(self, pretrained: Pretrained, device: torch.device):
        vision = pretrained.network.config.vision_config
        self.network, self.device = pretrained.network, device
        self.weights_sha256 = pretrained.weights_sha256
        self.config = EncoderConfig(pretrained.name, vision.image_size, vision.image_size // vision.patch_size)
        self.feature_size = int(vision.hidden_size)
        self.pooled_size = embedding_size(pretrained.network)
        self.fit, self.mean, self.std = _preprocessing(pretrained, vision.image_size)
        self._has_class_token = pretrained.family.model == "CLIPModel"

    @property
    def regions(self) -> int:
        return self.config.grid**2

    @property
    def identity(self) -> dict[str, Any]:
        how = {"fit": asdict(self.fit), "mean": self.mean, "std": self.std}
        return asdict(self.config) | how | {"weights_sha256": self.weights_sha256}

    @torch.inference_mode()
    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, S, S, 3) in 0..255"""
        images = torch.as_tensor(pixels).to(self.device).permute(0, 3, 1, 2).float() / 255
        mean, std = (torch.tensor(values, device=self.device)[:, None, None] for values in (self.mean, self.std))
        seen = self.network.get_image_features(pixel_values=(images - mean) / std)
        return Features(seen.last_hidden_state[:, int(self._has_class_token) :], seen.pooler_output)


def embedding_size(network: Any) -> int:
    """E"""
    config = network.config
    return int(getattr(config, "projection_dim", None) or config.vision_config.hidden_size)


def _preprocessing(pretrained: Pretrained, image_size: int) -> tuple[Fit, list[float], list[float]]:
    """How a photo becomes a square, and the mean and deviation of its colours."""
    family, said = pretrained.family, dict[str, Any]()
    if (file := pretrained.folder / "preprocessor_config.json").exists():
        said = files.read_json(file)
    elif (file := pretrained.folder / "processor_config.json").exists():
        said = files.read_json(file).get("image_processor") or {}
    try:
        cuts = bool(said.get("do_center_crop", family.crop))
        size = _edges(said.get("size", image_size), "shortest_edge" if cuts else "height")
        square = _edges(said.get("crop_size", image_size), "height") if cuts else size
        if "shortest_edge" in square or {*size.values(), *square.values()} != {image_size}:
            raise ValueError(f"it gives {size | square}, and the model takes squares of {image_size} pixels")
        resample = Image.Resampling(said.get("resample", Image.Resampling.BICUBIC))
        mean, std = (_colours(said.get(f"image_{what}", getattr(family, what))) for what in ("mean", "std"))
        if not min(std) > 0:
            raise ValueError("image_std must be above 0")
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file}: photos cannot be made ready as this file says ({reason(error)}).") from None
    return Fit(crop="shortest_edge" in size, resample=resample, exact=True), mean, std


def _edges(size: Any, edge: str) -> dict[str, int]:
    """As processors write it: {"shortest_edge"}, {"height", "width"}, or in older files one number, of this edge."""
    return {edge: size} if isinstance(size, int) else {str(key): int(pixels) for key, pixels in size.items() if pixels}


def _colours(values: Any) -> list[float]:
    red, green, blue = map(float, values)
    return [red, green, blue]
