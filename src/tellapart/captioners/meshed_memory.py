"""Meshed-Memory Transformer (Cornia et al., 2020): regions also attend to learned slots, words to all encoder layers.

The encoder's attention has keys and values beside those of the regions, which no photo changes: what is known before
anything is seen.  The decoder looks at the regions as each encoder layer left them, and a gate of each decides, number
by number, how much of it counts.  Layer norm last, output layer untied and without bias, as in the paper.

Deviations.  The authors' program scales its slots by fixed factors (sqrt(d_k), sqrt(slots)); ours begin at that scale,
which is the same network.  In that program each layer's answer is added to the word and normalised before its gate, and
the sum divided by sqrt(layers), where the paper adds and normalises once, after the gates: `norm_each` is the program's
way.  Dropout inside attention and feed-forward is left out (see `transformer.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tellapart.captioners.transformer import (
    Attention,
    AttentionDecoder,
    KeysValues,
    Layout,
    Positions,
    State,
    feed_forward,
    require_heads,
)
from tellapart.data.streams import REGIONS, Inputs


@dataclass
class MeshedMemoryConfig:
    vocab_size: int
    feature_size: int = 1280
    width: int = 512
    heads: int = 8
    encoder_layers: int = 3
    decoder_layers: int = 3
    feed_forward: int = 2048
    memory_slots: int = 40  # of each encoder layer
    norm_each: bool = False  # as in the authors' program: add and normalise before the gates
    dropout: float = 0.1


TINY = {"width": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 1, "feed_forward": 64, "memory_slots": 3}


class Memory(NamedTuple):
    """The photo as the words attend to it, projected once."""

    layers: tuple[tuple[KeysValues, ...], ...]  # of each decoder layer: one of each encoder layer, B rows, R positions
    padding: Tensor  # (B, R) True where there is no region


class EncoderLayer(nn.Module):
    """Regions attend to each other and to the slots, then a feed-forward network."""

    def __init__(self, config: MeshedMemoryConfig):
        super().__init__()
        c = config
        self.look, self.look_norm = Attention(c.width, c.heads), nn.LayerNorm(c.width)
        self.slot_keys = nn.Parameter(torch.randn(c.memory_slots, c.width) * (c.width // c.heads) ** -0.5)
        self.slot_values = nn.Parameter(torch.randn(c.memory_slots, c.width) * c.memory_slots**-0.5)
        self.think, self.think_norm = feed_forward(c.width, c.feed_forward), nn.LayerNorm(c.width)
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """x (B, R, width), padding (B, R)"""
        look, slots = self.look, len(self.slot_keys)
        regions = look.remember(look.key_value(x), len(x))
        learned = KeysValues(look.split(self.slot_keys, 1), look.split(self.slot_values, 1))  # (1, heads, slots, ...)
        pairs = zip(regions, learned, strict=True)
        both = KeysValues(*(torch.cat([rows, slot.expand(len(x), -1, -1, -1)], 2) for rows, slot in pairs))
        masked = torch.cat([padding, padding.new_zeros(len(x), slots)], 1)
        attended = look.look(look.query(x), both, masked[:, None, None])
        x = self.look_norm(x + self.dropout(look.out(attended)))
        return self.think_norm(x + self.dropout(self.think(x)))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Attention to the words before and to every encoder layer's regions, then a feed-forward network."""

    def __init__(self, config: MeshedMemoryConfig):
        super().__init__()
        c = config
        self.recall, self.recall_norm = Attention(c.width, c.heads), nn.LayerNorm(c.width)
        self.look, self.look_norm = Attention(c.width, c.heads), nn.LayerNorm(c.width)
        self.gates = nn.ModuleList(nn.Linear(2 * c.width, c.width) for _ in range(c.encoder_layers))
        self.think, self.think_norm = feed_forward(c.width, c.feed_forward), nn.LayerNorm(c.width)
        self.dropout, self.norm_each = nn.Dropout(c.dropout), c.norm_each

    def remember(self, levels: list[Tensor]) -> tuple[KeysValues, ...]:
        """Keys and values for this layer's words: of the regions after each encoder layer, (B, R, width)"""
        return tuple(self.look.remember(self.look.key_value(level), len(level)) for level in levels)

    def forward(
        self, x: Tensor, layout: Layout, past: KeysValues | None, photo: tuple[KeysValues, ...], padding: Tensor
    ) -> tuple[Tensor, KeysValues]:
        """x (M, width): new words; past: the words before them (N rows); photo (B rows), padding (B, R)"""
        recalled, words = self.recall.recall(x, layout, past)
        x = self.recall_norm(x + self.dropout(recalled))

        # The K captions of a photo stand in one row, as K*T questions to the same memory.
        questions, mixed = layout.spread(self.look.query(x)), torch.zeros_like(x)
        for level, gate in zip(photo, self.gates, strict=True):
            attended = self.look.out(layout.gather(self.look.look(questions, level, padding[:, None, None])))
            if self.norm_each:
                attended = self.look_norm(x + self.dropout(attended))
            mixed = mixed + gate(torch.cat([x, attended], 1)).sigmoid() * attended
        x = mixed * len(photo) ** -0.5 if self.norm_each else self.look_norm(x + self.dropout(mixed))
        return self.think_norm(x + self.dropout(self.think(x))), words


class MeshedMemory(AttentionDecoder):
    def __init__(self, config: MeshedMemoryConfig):
        super().__init__()
        c = self.config = config
        require_heads(c.width, c.heads)
        if c.decoder_layers < 1 or c.encoder_layers < 1:
            raise ValueError("decoder_layers and encoder_layers must be at least 1")
        self.project = nn.Sequential(
            nn.Linear(c.feature_size, c.width), nn.ReLU(), nn.Dropout(c.dropout), nn.LayerNorm(c.width)
        )
        self.encoder = nn.ModuleList(EncoderLayer(c) for _ in range(c.encoder_layers))
        self.embed, self.dropout = nn.Embedding(c.vocab_size, c.width), nn.Dropout(c.dropout)
        self.places = Positions(c.width)
        self.decoder = nn.ModuleList(DecoderLayer(c) for _ in range(c.decoder_layers))
        self.word = nn.Linear(c.width, c.vocab_size, bias=False)

    def encode(self, inputs: Inputs) -> Memory:
        features, mask = inputs[REGIONS]
        x, levels = self.project(features), []
        for layer in self.encoder:
            x = layer(x, ~mask)
            levels.append(x)
        return Memory(tuple(layer.remember(levels) for layer in self.decoder), ~mask)  # type: ignore[operator]

    def start(self, memory: Memory) -> State:
        return tuple(KeysValues(*(part[:, :, :0] for part in first)) for first, *_ in memory.layers)

    def _decode(self, words: Tensor, layout: Layout, state: State | None, memory: Memory) -> tuple[Tensor, State]:
        x = self._placed(self.embed(words), layout, state[0] if state else None)
        x, caption = self._through_layers(self.decoder, x, layout, state, memory)
        return self.word(x), caption
