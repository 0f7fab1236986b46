"""Word tower: a caption is its words and its phrases of three, a photo a projection of its features.

Small on purpose: rewards embed every sampled caption, so the text side must cost next to nothing beside the captioner,
and it must fit into a package.  Words are looked up in a table, a convolution over three neighbours finds phrases, the
strongest answer of each channel anywhere in the caption counts, and the sum of the words stands beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class WordTowerConfig:
    vocab_size: int
    feature_size: int = 1280
    size: int = 512  # of an embedding
    word_size: int = 256
    channels: int = 512
    dropout: float = 0.2
    word_dropout: float = 0.1  # share of words that are unknown while it learns: captions also have words it never saw


TINY = {"size": 32, "word_size": 16, "channels": 16}

_UNKNOWN = 3  # WordTokenizer.unk
_PADDING = 0


class Phrases(nn.Module):
    """Captions as vectors: tokens (N, T), padded with 0 -> (N, size), not of unit norm."""

    def __init__(self, vocab_size: int, word_size: int, channels: int, size: int, dropout: float, word_dropout: float):
        super().__init__()
        self.words = nn.Embedding(vocab_size, word_size)
        # A convolution over three words, as one matrix product: what a word says to itself and to its two neighbours.
        self.phrases = nn.Linear(word_size, 3 * channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(channels))
        self.out = nn.Linear(channels + word_size, size)
        self.dropout, self.word_dropout = nn.Dropout(dropout), word_dropout
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        captions, length = tokens.shape
        place = (tokens != _PADDING).flatten().nonzero().squeeze(1)  # (M,): nothing is computed at padding
        kept = tokens.flatten()[place]
        if self.training and self.word_dropout:
            forgotten = torch.rand(kept.shape, device=kept.device) < self.word_dropout
            kept = kept.masked_fill(forgotten, _UNKNOWN)
        words = self.words(kept)  # (M, W)
        caption = place // length
        neighbours = (caption[1:] == caption[:-1])[:, None]  # (M - 1, 1): a word and the next are of one caption
        to_next, own, to_last = self.phrases(words).chunk(3, dim=1)
        windows = F.pad(to_next[:-1] * neighbours, (0, 0, 1, 0)) + own + F.pad(to_last[1:] * neighbours, (0, 0, 0, 1))
        phrases = F.relu(windows + self.bias)  # (M, C)
        spread = phrases.new_zeros(captions * length, phrases.shape[1]).index_copy(0, place, phrases)
        strongest = spread.view(captions, length, -1).amax(1)
        count = torch.bincount(caption, minlength=captions).clamp(min=1)[:, None]
        total = words.new_zeros(captions, words.shape[1]).index_add(0, caption, words) / count.sqrt()
        answer: Tensor = self.out(self.dropout(torch.cat([strongest, total], 1)))
        return answer


class WordTower(nn.Module):
    def __init__(self, config: WordTowerConfig):
        super().__init__()
        c = self.config = config
        self.captions = Phrases(c.vocab_size, c.word_size, c.channels, c.size, c.dropout, c.word_dropout)
        self.images = nn.Sequential(
            nn.LayerNorm(c.feature_size), nn.Dropout(c.dropout), nn.Linear(c.feature_size, c.size)
        )
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def embed_images(self, pooled: Tensor) -> Tensor:
        return F.normalize(self.images(pooled), dim=1)

    def embed_captions(self, captions: Tensor) -> Tensor:
        return F.normalize(self.captions(captions), dim=1)

    def forward(self, pooled: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
        return self.embed_captions(captions), self.embed_images(pooled)
