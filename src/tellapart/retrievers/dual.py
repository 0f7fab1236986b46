"""Dual encoder: a sentence encoder that is already good, frozen, and image features, each projected into one space."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class DualConfig:
    sentence_size: int = 384
    feature_size: int = 1280
    size: int = 512  # of an embedding
    hidden: int = field(default=1024, metadata={"least": 0})  # of the network beside each projection; 0: none
    dropout: float = 0.5


TINY = {"size": 32, "hidden": 16}


class Projection(nn.Module):
    """Linear, with a small network beside it for what is not."""

    def __init__(self, inputs: int, hidden: int, size: int, dropout: float):
        super().__init__()
        self.linear = nn.Linear(inputs, size)
        self.bent = (
            nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, size))
            if hidden
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, size) unit norm"""
        straight = self.linear(x)
        return F.normalize(straight if self.bent is None else straight + self.bent(x), dim=1)


class Dual(nn.Module):
    def __init__(self, config: DualConfig):
        super().__init__()
        c = self.config = config
        self.captions = Projection(c.sentence_size, c.hidden, c.size, c.dropout)
        self.images = nn.Sequential(
            nn.LayerNorm(c.feature_size),
            nn.Dropout(c.dropout),
            Projection(c.feature_size, c.hidden, c.size, c.dropout),
        )
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def embed_images(self, pooled: Tensor) -> Tensor:
        vectors: Tensor = self.images(pooled)
        return vectors

    def embed_captions(self, captions: Tensor) -> Tensor:
        """captions (N, sentence_size), from the frozen encoder"""
        vectors: Tensor = self.captions(captions)
        return vectors

    def forward(self, pooled: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
        return self.embed_captions(captions), self.embed_images(pooled)
