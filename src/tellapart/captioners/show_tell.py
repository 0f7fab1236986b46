"""Show-Tell (Vinyals et al., 2015): an LSTM that sees the photo once, as a vector before the first word.

The ST of the GLD paper.  Regions and grids are averaged into that vector.  Left out: the ensemble of the original, and
its batch normalisation of the image embedding (the GLD paper's program has neither).

With `every_step` the photo stands beside every word in place of before the first one (Lu et al., 2017): the LSTM of
GLIED's Table 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from tellapart.captioners.layers import LSTMState, RecurrentDecoder, captions_of, init_gates_, lstm, masked_mean
from tellapart.data.streams import REGIONS, Inputs


@dataclass
class ShowTellConfig:
    vocab_size: int
    feature_size: int = 1280
    width: int = 512  # of words, photo and LSTM alike: the photo is fed as if it were a word
    every_step: bool = False  # the photo is part of the input at each word, and not of the state alone
    dropout: float = 0.5


TINY = {"width": 32}


class Memory(NamedTuple):
    """Of the photo: the state after it was seen, and what it gives to the gates at every step."""

    start: LSTMState
    gates: tuple[Tensor, ...]  # (B, 4 * width); none where the photo is seen only once


class ShowTell(RecurrentDecoder):
    def __init__(self, config: ShowTellConfig):
        super().__init__()
        c = self.config = config
        self.photo, self.embed = nn.Linear(c.feature_size, c.width), nn.Embedding(c.vocab_size, c.width)
        self.word_gates = nn.Linear(c.width, 4 * c.width)
        self.recurrent_gates = nn.Linear(c.width, 4 * c.width, bias=False)
        self.dropout, self.word = nn.Dropout(c.dropout), nn.Linear(c.width, c.vocab_size)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.photo_gates = nn.Linear(c.width, 4 * c.width, bias=False) if c.every_step else None
        gates = (self.word_gates, self.recurrent_gates, self.photo_gates)
        init_gates_([layer for layer in gates if layer is not None], self.word)

    def encode(self, inputs: Inputs) -> Memory:
        features, mask = inputs[REGIONS]
        photo = self.photo(masked_mean(features, mask))
        nothing = photo.new_zeros(photo.shape)
        if self.photo_gates is None:
            return Memory(lstm(self.word_gates(photo), nothing), ())
        return Memory(LSTMState(nothing, nothing), (self.photo_gates(photo),))

    def start(self, memory: Memory) -> LSTMState:
        return memory.start

    def _gates(self, tokens: Tensor, memory: Memory) -> Tensor:
        gates: Tensor = self.word_gates(self.dropout(self.embed(tokens)))
        for photo in memory.gates:
            gates = gates + captions_of(photo, len(tokens))[:, None]
        return gates
