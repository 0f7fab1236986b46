"""VSE++ (Faghri et al., 2018), the listener of the global discriminative reward (GLD).

As in the authors' program: image vector -> L2 -> linear -> L2; words 300 -> GRU 1024 -> state at EOS -> L2.  The paper
has a linear map on the side of the captions too: `linear_captions`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence


@dataclass
class VSEConfig:
    vocab_size: int
    feature_size: int = 1280
    size: int = 1024  # of an embedding, and of the GRU's state
    word_size: int = 300
    linear_captions: bool = False


TINY = {"size": 32, "word_size": 16}
_PADDING = 0


class VSE(nn.Module):
    def __init__(self, config: VSEConfig):
        super().__init__()
        c = self.config = config
        self.words = nn.Embedding(c.vocab_size, c.word_size)
        self.gru = nn.GRU(c.word_size, c.size, batch_first=True)
        self.linear = nn.Linear(c.size, c.size) if c.linear_captions else nn.Identity()
        self.images = nn.Linear(c.feature_size, c.size)
        # A hinge needs no scale.  This one is for probabilities: at a margin of 0.2 it makes a caption
        # that has learned its lesson about e^4 = 55 times as likely for its photo as for the hardest other.
        self.log_scale: Tensor
        self.register_buffer("log_scale", torch.tensor(math.log(20.0)))
        nn.init.uniform_(self.words.weight, -0.1, 0.1)
        nn.init.xavier_uniform_(self.images.weight)
        nn.init.zeros_(self.images.bias)

    def embed_images(self, pooled: Tensor) -> Tensor:
        return F.normalize(self.images(F.normalize(pooled, dim=1)), dim=1)

    def embed_captions(self, captions: Tensor) -> Tensor:
        """captions (N, T): words and EOS, then padding"""
        lengths = (captions != _PADDING).sum(1).clamp(min=1)
        words = pack_padded_sequence(self.words(captions), lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, last = self.gru(words)  # (1, N, E): nothing is computed at padding
        return F.normalize(self.linear(last[0]), dim=1)

    def forward(self, pooled: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
        return self.embed_captions(captions), self.embed_images(pooled)
