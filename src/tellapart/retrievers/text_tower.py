"""Text tower: captions of one photo come together, without any photo.

Text to text, no image feature is shared with a captioner: a reward or a judge of this kind cannot be flattered by what
the captioner's own encoder sees.  It knows a photo by the mean of its references.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tellapart.retrievers.word_tower import TINY as TINY
from tellapart.retrievers.word_tower import Phrases


@dataclass
class TextTowerConfig:
    vocab_size: int
    size: int = 512
    word_size: int = 256
    channels: int = 512
    dropout: float = 0.2
    word_dropout: float = 0.1


class TextTower(nn.Module):
    def __init__(self, config: TextTowerConfig):
        super().__init__()
        c = self.config = config
        self.captions = Phrases(c.vocab_size, c.word_size, c.channels, c.size, c.dropout, c.word_dropout)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def embed_captions(self, captions: Tensor) -> Tensor:
        return F.normalize(self.captions(captions), dim=1)

    def forward(self, pooled: Tensor | None, captions: Tensor) -> tuple[Tensor, Tensor]:
        """Of each photo's captions the first should meet the second."""
        embedded = self.embed_captions(captions)
        return embedded[::2], embedded[1::2]
