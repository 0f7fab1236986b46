"""An encoder that is shown a view of each photo in place of the whole: its features are stored apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from capscore.errors import UserError
from tellapart.data.media.photos import LEAST_SIDE
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.encoder import Features
from tellapart.encoders.frames import FrameEncoder


def in_view(encoder: PhotoEncoder, number: int) -> PhotoEncoder:
    """An encoder that is shown the same view of each frame of a clip, or of a photo."""
    if isinstance(encoder, FrameEncoder):
        return FrameEncoder(InView(encoder.of_photos, number), encoder.frames, encoder.offsets[-1])
    if hasattr(encoder, "read"):
        raise UserError(
            f"{encoder.config.name}: has its own way to read photos and clips, and cannot be shown views of them."
        )
    return InView(encoder, number)


class InView:
    """The same network, shown another part of each photo.

    number  which of the photo's views (`data.views`), from 1
    """

    def __init__(self, encoder: PhotoEncoder, number: int):
        self._encoder = encoder
        self.config, self.weights_sha256 = encoder.config, encoder.weights_sha256
        self.regions, self.feature_size, self.pooled_size = encoder.regions, encoder.feature_size, encoder.pooled_size
        self.fit = replace(encoder.fit, view=number)
        self.identity = encoder.identity | {"view": number, "view_least": LEAST_SIDE}

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        return self._encoder(pixels)
