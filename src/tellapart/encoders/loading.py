"""From a name to an encoder: one of the table, or a vision backbone of transformers by folder or hub id."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore.errors import UserError
from tellapart.encoders import ENCODERS, Custom, OnHub, PhotoEncoder, classifiers, pretrained, unknown
from tellapart.encoders.encoder import Encoder, Features, with_frames
from tellapart.encoders.towers import Backbone, ProjectedClip
from tellapart.recipe import EncoderConfig


def load(config: EncoderConfig, device: torch.device) -> PhotoEncoder:
    return with_frames(config, lambda settings: _load(settings, device))


def _load(config: EncoderConfig, device: torch.device) -> PhotoEncoder:
    entry = ENCODERS.get(config.name)
    if isinstance(entry, OnHub):
        return Backbone(config, entry.hub, device)
    if isinstance(entry, Custom):
        loaded = entry.load(config, device)
        return cast(PhotoEncoder, Checked(config.name, loaded)) if config.name in ENCODERS.added else loaded
    if entry is not None:
        return Encoder(config, device)
    if classifiers.is_weights(config.name):
        return classifiers.load(config, device)
    if pretrained.could_be(config.name) and config.pooling == "projected":
        return ProjectedClip(config, device)
    if pretrained.could_be(config.name):
        return Backbone(config, config.name, device)
    raise unknown(config.name)


class Checked:
    """An encoder of a plugin.  Features of another shape than it declares would be stored in another order."""

    def __init__(self, name: str, encoder: PhotoEncoder):
        self._name, self._encoder = ENCODERS.named(name), encoder
        for part in ("config", "fit", "weights_sha256", "regions", "feature_size", "pooled_size", "identity"):
            if not hasattr(encoder, part):
                raise UserError(f"{self._name}: {type(encoder).__name__} has no {part!r}.")

    def __getattr__(self, part: str) -> Any:
        return getattr(self._encoder, part)

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        features: object = self._encoder(pixels)
        if not isinstance(features, Features):
            raise UserError(f"{self._name} must give Features, not a {type(features).__name__}.")
        count, encoder = len(pixels), self._encoder
        for part, meant, wanted in (
            ("grid", " (photos, regions, feature_size)", (count, encoder.regions, encoder.feature_size)),
            ("pooled", " (photos, pooled_size)", (count, encoder.pooled_size)),
            ("counts", "", (count,)),
        ):
            tensor = getattr(features, part)
            if tensor is not None and (shape := tuple(tensor.shape)) != wanted:
                raise UserError(f"{self._name}: Features.{part} must have the shape {wanted}{meant}, not {shape}.")
        return features
