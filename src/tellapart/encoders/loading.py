"""From a name to an encoder: one of the table, or a vision backbone of transformers by folder or hub id."""

from __future__ import annotations

import torch

from tellapart.encoders import ENCODERS, Custom, OnHub, PhotoEncoder, classifiers, pretrained, unknown
from tellapart.encoders.backbone import Backbone
from tellapart.encoders.clip import ProjectedClip
from tellapart.encoders.encoder import Encoder
from tellapart.encoders.frames import with_frames
from tellapart.recipe import EncoderConfig


def load(config: EncoderConfig, device: torch.device) -> PhotoEncoder:
    return with_frames(config, lambda one: _load(one, device))


def _load(config: EncoderConfig, device: torch.device) -> PhotoEncoder:
    entry = ENCODERS.get(config.name)
    if isinstance(entry, OnHub):
        return Backbone(config, entry.hub, device)
    if isinstance(entry, Custom):
        return entry.load(config, device)
    if entry is not None:
        return Encoder(config, device)
    if classifiers.is_weights(config.name):
        return classifiers.load(config, device)
    if pretrained.could_be(config.name) and config.pooling == "projected":
        return ProjectedClip(config, device)
    if pretrained.could_be(config.name):
        return Backbone(config, config.name, device)
    raise unknown(config.name)
