"""Show-Tell (Vinyals et al., 2015): an LSTM sees the photo once, as one vector before the first word, and then speaks.

The ST of the GLD paper.  Regions and grids are averaged into that vector.  Left out: the ensemble of the original, and
its batch normalisation of the image embedding (the GLD paper's program has neither).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from tellapart.captioners.recurrent import at_words, captions_of, lstm, mean_region, unroll, wake
from tellapart.data.streams import REGIONS, Inputs


@dataclass
class ShowTellConfig:
    vocab_size: int
    feature_size: int = 1280
    width: int = 512  # of words, photo and LSTM alike: the photo is fed as if it were a word
    dropout: float = 0.5


TINY = {"width": 32}


class State(NamedTuple):
    """Of the LSTM.  There is no other memory of the photo: the state after it was seen."""

    output: Tensor  # (rows, width)
    cell: Tensor  # (rows, width)


class ShowTell(nn.Module):
    def __init__(self, config: ShowTellConfig):
        super().__init__()
        c = self.config = config
        self.photo, self.embed = nn.Linear(c.feature_size, c.width), nn.Embedding(c.vocab_size, c.width)
        self.heard, self.before = nn.Linear(c.width, 4 * c.width), nn.Linear(c.width, 4 * c.width, bias=False)
        self.dropout, self.word = nn.Dropout(c.dropout), nn.Linear(c.width, c.vocab_size)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        wake([self.heard, self.before], self.word)

    def encode(self, inputs: Inputs) -> State:
        features, mask = inputs[REGIONS]
        photo = self.photo(mean_region(features, mask))
        return State(*lstm(self.heard(photo), photo.new_zeros(photo.shape)))

    def start(self, memory: State) -> State:
        return memory

    def step(self, token: Tensor, state: State, memory: State) -> tuple[Tensor, State]:
        """One word: token (N,) in, logits (N, V) and the next state out."""
        output, state = self._advance(self.heard(self.dropout(self.embed(token))), state)
        return self.word(self.dropout(output)), state

    def forward(self, tokens: Tensor, memory: State, spoken: Tensor | None = None) -> Tensor:
        """Teacher forcing: tokens (N, T) in, logits (N, T, V) out, or (M, V) at the words where `spoken` is True."""
        heard = self.heard(self.dropout(self.embed(tokens)))  # (N, T, 4 * width)
        state = State(*(captions_of(part, len(tokens)) for part in memory))
        outputs = unroll(state, iter(heard.unbind(1)), self._advance)
        return self.word(self.dropout(at_words(outputs, spoken)))  # type: ignore[no-any-return]

    def _advance(self, heard: Tensor, state: State) -> tuple[Tensor, State]:
        state = State(*lstm(heard + self.before(state.output), state.cell))
        return state.output, state
