"""Networks of transformers as encoders: vision backbones, the image towers of CLIP and SigLIP, those of vision-language
models.

A captioner looks at a backbone's last map: what a convolutional network gives, or the patches of a transformer put back
where they were, without its class and register tokens.  Pooled features are the mean of that map, which for a ResNet is
what its own pooling gives.  Poolers that come with weights are not used, and often those are not there.

The whole photo is squeezed into the square, whatever the network was trained with: a caption should not miss what
stands at the edges.  Only CLIP sees the middle of it, as it was trained.  The colours are made ready as the folder
says.

SigLIP 2 of a fixed size calls itself "siglip" and is one here.  What calls itself "siglip2" (NaFlex) takes photos in
their own shape, which is not supported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from tellapart.data.media import clips, photos
from tellapart.data.media.photos import Fit
from tellapart.encoders import pretrained
from tellapart.encoders.encoder import Features, check, pool
from tellapart.errors import BadPhoto
from tellapart.hub import reason
from tellapart.recipe import EncoderConfig

INSTALL = "pip install 'tellapart[backbones]'"
_MOST_SPECIAL = 16  # class and register tokens before the patches; no network has nearly as many


class _Tower:
    """A frozen network that sees photos as a folder of transformers says."""

    config: EncoderConfig
    device: torch.device
    weights_sha256: str
    fit: Fit
    mean: list[float]
    std: list[float]

    @property
    def identity(self) -> dict[str, Any]:
        preprocessing = {"fit": asdict(self.fit), "mean": self.mean, "std": self.std}
        return self.config.identity | preprocessing | {"weights_sha256": self.weights_sha256}

    def _images(self, pixels: NDArray[np.uint8] | Tensor) -> Tensor:
        return pretrained.normalised(pixels, self.mean, self.std, self.device)


class Backbone(_Tower):
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
            self.mean, self.std = pretrained.colours(settings, *pretrained.IMAGENET)
        except (TypeError, ValueError) as error:
            raise pretrained.not_ready(file, error) from None
        self.regions = self.config.cells
        self.feature_size = self.pooled_size = self._probe(source)

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, S, S, 3) in 0..255"""
        return pool(self.feature_map(pixels), self.config)

    @torch.inference_mode()
    def feature_map(self, pixels: NDArray[np.uint8] | Tensor) -> Tensor:
        """(B, D, H, W)"""
        return self._map(self.network(pixel_values=self._images(pixels)).last_hidden_state)

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
            made_for = getattr(self.network.config, "image_size", None)
            differs = isinstance(made_for, int) and made_for != size
            takes = f"; it was made for {made_for} (image_size)" if differs else ""
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


CLIP_INSTALL = "pip install 'tellapart[clip]'"


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


def load_clip(source: str, device: torch.device) -> Pretrained:
    """source  a folder or a hub id"""
    folder = pretrained.find(source, CLIP_INSTALL)
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


class ClipEncoder(_Tower):
    """The image tower.  Its pooled features are the projected embedding, not yet of unit length."""

    def __init__(self, model: Pretrained, device: torch.device):
        vision = model.network.config.vision_config
        self.network, self.device = model.network, device
        self.weights_sha256 = model.weights_sha256
        self.config = EncoderConfig(model.name, vision.image_size, vision.image_size // vision.patch_size)
        self.regions, self.feature_size = self.config.cells, int(vision.hidden_size)
        self.pooled_size = embedding_size(model.network)
        self._has_class_token = model.family.model == "CLIPModel"
        family, size = model.family, vision.image_size
        file, settings = pretrained.processor(model.folder)
        try:
            cuts = bool(settings.get("do_center_crop", family.crop))
            edges = _edges(settings.get("size", size), "shortest_edge" if cuts else "height")
            square = _edges(settings.get("crop_size", size), "height") if cuts else edges
            if "shortest_edge" in square or {*edges.values(), *square.values()} != {size}:
                raise ValueError(f"it gives {edges | square}, and the model takes squares of {size} pixels")
            self.fit = Fit(crop="shortest_edge" in edges, resample=pretrained.resampling(settings), exact=True)
            self.mean, self.std = pretrained.colours(settings, family.mean, family.std)
        except (TypeError, ValueError, AttributeError) as error:
            raise pretrained.not_ready(file, error) from None

    @torch.inference_mode()
    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, S, S, 3) in 0..255"""
        output = self.network.get_image_features(pixel_values=self._images(pixels))
        return Features(output.last_hidden_state[:, int(self._has_class_token) :], output.pooler_output)


class ProjectedClip(ClipEncoder):
    """The projected embedding as the one region of a photo, as ClipCap takes it."""

    def __init__(self, config: EncoderConfig, device: torch.device):
        super().__init__(load_clip(config.name, device), device)
        name = str(files.real(Path(config.name))) if files.is_folder(Path(config.name)) else config.name
        self.config, self.regions = EncoderConfig(name, self.config.image_size, 1, "projected"), 1
        self.feature_size = self.pooled_size

    @torch.inference_mode()
    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        pooled = super().__call__(pixels).pooled
        return Features(pooled[:, None], pooled)


def embedding_size(network: Any) -> int:
    """E"""
    config = network.config
    return int(getattr(config, "projection_dim", None) or config.vision_config.hidden_size)


def _edges(size: Any, edge: str) -> dict[str, int]:
    """As processors write it: {"shortest_edge"}, {"height", "width"}, or in older files one number, of this edge."""
    return {edge: size} if isinstance(size, int) else {str(key): int(pixels) for key, pixels in size.items() if pixels}


_LONGEST = 16  # times as long as wide: processors enlarge the short side of longer ones beyond all memory
_SIDE = 448  # pixels of a photo that is padded to a square
_GREY = (127, 127, 127)


class VisionTower:
    """Its pixels are the processor's numbers, as bytes: stores and batches take pixels that are bytes."""

    fit = photos.SQUEEZE

    def __init__(
        self,
        name: str,
        weights_sha256: str,
        make_ready: Callable[[Image.Image], NDArray[np.float32]],
        look: Callable[[Tensor], Tensor],
        device: torch.device,
        *,
        square: bool,
        dtype: torch.dtype = torch.float32,
    ):
        """
        make_ready  a photo -> the processor's numbers for it (P, ...), in the same shape for every photo
        look        numbers of B photos (B*P, ...) -> rows (B, R, D)
        square      whether photos are first padded to squares of one size: else they decide the shape of the numbers
        dtype       of the network
        """
        self.device, self.weights_sha256, self.square, self.dtype = device, weights_sha256, square, dtype
        self._make_ready, self._look = make_ready, look
        blank = Image.new("RGB", (64, 64), _GREY)
        self.shape = make_ready(squared(blank) if square else blank).shape
        features = self(self._bytes(blank)[None])
        self.regions, self.feature_size = features.grid.shape[1:]
        self.pooled_size = self.feature_size
        self.config = EncoderConfig(name, self.shape[-1], 1)  # where a row lies in the photo, only the model knows

    @property
    def identity(self) -> dict[str, Any]:
        rounded = {} if self.dtype == torch.float32 else {"dtype": str(self.dtype).removeprefix("torch.")}
        return self.config.identity | {"weights_sha256": self.weights_sha256, "square": self.square} | rounded

    def read(self, source: photos.Source) -> photos.Photo:
        image, sha256 = clips.upright(source)
        try:
            return photos.Photo(self._bytes(image), sha256)
        except (ValueError, TypeError, MemoryError, RuntimeError) as error:
            raise BadPhoto(photos.name_of(source), f"the model's processor cannot make it ready ({error})") from None

    def _bytes(self, image: Image.Image) -> NDArray[np.uint8]:
        ready = self._make_ready(squared(image) if self.square else _padded(image, _LONGEST))
        if ready.shape != self.shape:
            raise ValueError(f"its shape is {ready.shape}, not {self.shape}")
        return np.ascontiguousarray(ready, dtype=np.float32).view(np.uint8)

    @torch.inference_mode()
    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, *shape) as bytes"""
        numbers = torch.as_tensor(pixels).contiguous().view(torch.float32)
        grid = self._look(numbers.reshape(-1, *self.shape[1:]).to(self.device)).float()
        return Features(grid, grid.mean(1))


def squared(image: Image.Image) -> Image.Image:
    """The whole photo in a square of one size, for processors that would give each photo a shape of its own."""
    return _padded(image, 1).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)


def _padded(image: Image.Image, most: int) -> Image.Image:
    """At most so many times as long as wide: grey on both sides of a photo that is longer."""
    width, height = (max(side, -(-max(image.size) // most)) for side in image.size)
    if (width, height) == image.size:
        return image
    canvas = Image.new("RGB", (width, height), _GREY)
    canvas.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return canvas
