"""Pixels as they are: the cells of a grid, each with its pixels as a row, for networks that learn from pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore.errors import UserError
from tellapart.data.media.photos import SQUEEZE
from tellapart.encoders.encoder import Features
from tellapart.recipe import EncoderConfig


class Patches:
    """Has no weights."""

    fit, weights_sha256 = SQUEEZE, "0" * 64

    def __init__(self, config: EncoderConfig):
        if config.image_size % config.grid or config.coarse:
            raise UserError("encoder: patches need an image_size that is a multiple of the grid, and no coarse grid.")
        self.config, self.regions = config, config.cells
        self.feature_size = self.pooled_size = 3 * (config.image_size // config.grid) ** 2

    @property
    def identity(self) -> dict[str, Any]:
        return self.config.identity | {"weights_sha256": self.weights_sha256}

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, S, S, 3) in 0..255 -> (B, R, D) in -1..1"""
        grid, side = self.config.grid, self.config.image_size // self.config.grid
        values = torch.as_tensor(pixels).float() / 127.5 - 1
        cells = (
            values.reshape(-1, grid, side, grid, side, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, grid**2, side**2 * 3)
        )
        return Features(cells, cells.mean(1))
