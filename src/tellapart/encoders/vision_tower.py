"""The vision tower of a vision-language model as an encoder: photos preprocessed as by the model's own processor."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tellapart.data.media import clips, photos
from tellapart.encoders.encoder import Features
from tellapart.errors import BadPhoto
from tellapart.recipe import EncoderConfig

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
        seen = self(self._bytes(blank)[None])
        self.regions, self.feature_size = seen.grid.shape[1:]
        self.pooled_size = self.feature_size
        self.config = EncoderConfig(name, self.shape[-1], 1)  # where a row lies in the photo, only the model knows

    @property
    def identity(self) -> dict[str, Any]:
        rounded = {} if self.dtype == torch.float32 else {"dtype": str(self.dtype).removeprefix("torch.")}
        return self.config.identity | {"weights_sha256": self.weights_sha256, "square": self.square} | rounded

    def read(self, source: str | os.PathLike[str] | Image.Image) -> photos.Photo:
        image, sha256 = clips.upright(source)
        try:
            return photos.Photo(self._bytes(image), sha256)
        except (ValueError, TypeError, MemoryError, RuntimeError) as error:
            name = getattr(source, "filename", "image") if isinstance(source, Image.Image) else source
            raise BadPhoto(name, f"the model's processor cannot make it ready ({error})") from None

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
