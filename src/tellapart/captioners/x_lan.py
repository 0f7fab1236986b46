"""X-Linear Attention Network (Pan et al., 2020): attention by products of question and region, weighed twice.

An X-linear block multiplies a question and each region, number by number, in two spaces.  The products in the first
space decide which regions count (a softmax over regions) and which numbers (a sigmoid over channels, from their mean
over the regions); those in the second are what is seen.  ELU before each product: its exponential has terms of every
order, and so have the products.

The encoder's blocks ask with the mean region, and give every region what was seen; the decoder is an LSTM whose output
asks once more, and a gated linear unit that joins both for the next word.

Deviations: ELU as in the paper (the authors' program has CELU with alpha 1.3).  From that program: heads, each of which
is normalised after the ELU, and one update of the regions for both keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tellapart.captioners.layers import RecurrentDecoder, init_gates_, lstm, masked_mean, masked_softmax
from tellapart.data.streams import REGIONS, Inputs


@dataclass
class XLanConfig:
    vocab_size: int
    feature_size: int = 1280
    width: int = 512  # of words, regions and the LSTM
    heads: int = 8
    attention_width: int = 64  # of a head, while it is weighed
    encoder_layers: int = 4
    decoder_layers: int = 1
    dropout: float = 0.5
    region_dropout: float = 0.3  # of what the encoder gives to each region
    attention_dropout: float = 0.1


_STILL = {"region_dropout": 0.0, "attention_dropout": 0.0}
TINY = {"width": 32, "heads": 2, "attention_width": 8, "encoder_layers": 1} | _STILL


class Projected(NamedTuple):
    """Regions, ready for the questions of one block."""

    keys: Tensor  # (B, heads, R, width / heads)
    values: Tensor  # (B, heads, R, width / heads)


class Memory(NamedTuple):
    """The photo as the words attend to it, computed once."""

    layers: tuple[Projected, ...]  # of each of the decoder's blocks
    gates: Tensor  # (B, 4 * width): what the photo as a whole gives to the gates of the LSTM
    padding: Tensor  # (B, R) True where there is no region


class State(NamedTuple):
    output: Tensor  # (N, width), of the LSTM
    cell: Tensor  # (N, width)
    context: Tensor  # (N, width): the output and what it attended to


class HeadNorm(nn.Module):
    """Each head to mean 0 and variance 1, then scaled and shifted number by number (a group norm of single rows)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.weight, self.bias = heads, nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width)"""
        heads = x.view(*x.shape[:-1], self.heads, x.shape[-1] // self.heads)
        return nn.functional.layer_norm(heads, heads.shape[-1:]).flatten(-2) * self.weight + self.bias


class XLinearAttention(nn.Module):
    """A question weighs the products of itself and each region of its photo (Eqs. 1-8 of the paper)."""

    def __init__(self, width: int, heads: int, attention_width: int, dropout: float):
        super().__init__()
        self.heads, size = heads, width // heads

        def embedding() -> nn.Sequential:
            return nn.Sequential(nn.Linear(width, width), nn.ELU(), HeadNorm(width, heads))

        self.key, self.key_query = embedding(), embedding()
        self.value, self.value_query = embedding(), embedding()
        self.narrow = nn.Sequential(nn.Linear(size, attention_width), nn.ReLU(), nn.Dropout(dropout))
        self.score = nn.Linear(attention_width, 1, bias=False)  # a bias would add the same to every region
        self.channel = nn.Linear(attention_width, size)

    def project_regions(self, regions: Tensor) -> Projected:
        """regions (B, R, width)"""
        return Projected(self._split(self.key(regions)), self._split(self.value(regions)))

    def _split(self, regions: Tensor) -> Tensor:
        return regions.view(*regions.shape[:2], self.heads, regions.shape[2] // self.heads).transpose(1, 2)

    def forward(self, question: Tensor, regions: Projected, padding: Tensor) -> Tensor:
        """The regions as each question weighs them; the K questions of a photo stand together.

        question  (N, width), N = B*K
        padding    (B, R) True where there is no region
        returns   (N, width)
        """
        photos, heads, _, size = regions.keys.shape
        asked, taken = (
            embed(question).view(photos, -1, heads, 1, size) for embed in (self.key_query, self.value_query)
        )
        joint = self.narrow(asked * regions.keys[:, None])  # (B, K, heads, R, attention_width)
        padding = padding[:, None, None]
        spatial = masked_softmax(self.score(joint).squeeze(4), padding)  # (B, K, heads, R)
        channel = self.channel(masked_mean(joint, ~padding)).sigmoid()  # (B, K, heads, size)
        attended: Tensor = (spatial[:, :, :, None] @ regions.values[:, None] * taken).squeeze(3) * channel
        return attended.reshape(len(question), -1)


class EncoderLayer(nn.Module):
    """The photo asks its regions, and each of them is given the answer."""

    def __init__(self, config: XLanConfig):
        super().__init__()
        c = config
        self.attention = XLinearAttention(c.width, c.heads, c.attention_width, c.attention_dropout)
        self.dropout, self.norm = nn.Dropout(c.dropout), nn.LayerNorm(c.width)
        self.update = nn.Sequential(nn.Linear(2 * c.width, c.width), nn.ReLU(), nn.Dropout(c.region_dropout))

    def forward(self, photo: Tensor, regions: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """photo (B, width), regions (B, R, width), padding (B, R)"""
        photo = self.dropout(self.attention(photo, self.attention.project_regions(regions), padding))
        update = self.update(torch.cat([photo[:, None].expand_as(regions), regions], 2))
        return photo, self.norm(regions + update)


class XLan(RecurrentDecoder):
    def __init__(self, config: XLanConfig):
        super().__init__()
        c = self.config = config
        if c.heads < 1 or c.width < 1 or c.width % c.heads:
            raise ValueError(f"width must be a multiple of heads, not {c.width} with {c.heads} heads")
        if c.decoder_layers < 1 or c.encoder_layers < 0:
            raise ValueError("decoder_layers must be at least 1 and encoder_layers at least 0")
        self.project = nn.Sequential(nn.Linear(c.feature_size, c.width), nn.ReLU(), nn.Dropout(c.dropout))
        self.encoder = nn.ModuleList(EncoderLayer(c) for _ in range(c.encoder_layers))
        self.photo, self.photo_norm = nn.Linear((c.encoder_layers + 1) * c.width, c.width), nn.LayerNorm(c.width)
        self.embed, self.dropout = nn.Embedding(c.vocab_size, c.width), nn.Dropout(c.dropout)
        # The gates of the LSTM take the word, the photo plus the context of the word before, and its own output.
        self.word_gates = nn.Linear(c.width, 4 * c.width)
        self.context_gates, self.recurrent_gates = (nn.Linear(c.width, 4 * c.width, bias=False) for _ in range(2))
        self.attentions = nn.ModuleList(
            XLinearAttention(c.width, c.heads, c.attention_width, c.attention_dropout) for _ in range(c.decoder_layers)
        )
        self.attended, self.attended_norm = nn.Linear((c.decoder_layers + 1) * c.width, c.width), nn.LayerNorm(c.width)
        self.context = nn.Linear(2 * c.width, 2 * c.width)
        self.word = nn.Linear(c.width, c.vocab_size)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        init_gates_([self.word_gates, self.context_gates, self.recurrent_gates], self.word)

    def encode(self, inputs: Inputs) -> Memory:
        features, mask = inputs[REGIONS]
        regions = self.project(features)
        photo = masked_mean(regions, mask)
        photos = [photo]
        for layer in self.encoder:
            photo, regions = layer(photo, regions, ~mask)
            photos.append(photo)
        photo = self.photo_norm(self.photo(torch.cat(photos, 1)))
        layers = tuple(attention.project_regions(regions) for attention in self.attentions)  # type: ignore[operator]
        return Memory(layers, self.context_gates(photo), ~mask)

    def start(self, memory: Memory) -> State:
        nothing = memory.gates.new_zeros(len(memory.gates), self.config.width)
        return State(nothing, nothing, nothing)

    def _advance(self, gates: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        gates = gates + self.context_gates(self.dropout(state.context)) + self.recurrent_gates(state.output)
        output, cell = lstm(gates, state.cell)
        question, answers = output, [output]
        for attention, regions in zip(self.attentions, memory.layers, strict=True):
            question = self.dropout(attention(question, regions, memory.padding))
            answers.append(question)
        attended = self.attended_norm(self.attended(torch.cat(answers, 1)))
        context = nn.functional.glu(self.context(torch.cat([attended, output], 1)), 1)
        return context, State(output, cell, context)
