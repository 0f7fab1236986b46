"""The networks of retrievers: image and text towers that end in one space of unit vectors.

WordTower  a caption is its words and its phrases of three, a photo a projection of its features.  Small on purpose:
           rewards embed every sampled caption, so the text side must cost next to nothing beside the captioner, and it
           must fit into a package
TextTower  captions of one photo come together, without any photo.  No image feature is shared with a captioner: a
           reward or a judge of this kind cannot be flattered by what the captioner's own encoder sees
Dual       a sentence encoder that is already good, frozen, and image features, each projected
VSE        VSE++ (Faghri et al., 2018), the retriever of the global discriminative reward (GLD)

B photos, N captions, T words, D feature size, E embedding size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence


@dataclass
class WordTowerConfig:
    vocab_size: int
    feature_size: int = 1280
    size: int = 512  # of an embedding
    word_size: int = 256
    channels: int = 512
    dropout: float = 0.2
    word_dropout: float = 0.1  # share of words that are unknown while it learns: captions also have words it never saw


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
        to_next, here, to_last = self.phrases(words).chunk(3, dim=1)
        windows = F.pad(to_next[:-1] * neighbours, (0, 0, 1, 0)) + here + F.pad(to_last[1:] * neighbours, (0, 0, 0, 1))
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


@dataclass
class DualConfig:
    sentence_size: int = 384
    feature_size: int = 1280
    size: int = 512  # of an embedding
    hidden: int = field(default=1024, metadata={"least": 0})  # of the network beside each projection; 0: none
    dropout: float = 0.5


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
            nn.LayerNorm(c.feature_size), nn.Dropout(c.dropout), Projection(c.feature_size, c.hidden, c.size, c.dropout)
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


@dataclass
class VSEConfig:
    vocab_size: int
    feature_size: int = 1280
    size: int = 1024  # of an embedding, and of the GRU's state
    word_size: int = 300
    linear_captions: bool = False


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
