"""Up-Down (Anderson et al., 2018), the GLD paper's Top-Down Attention (TDA): one LSTM attends, one predicts words.

Over any regions: boxes of a detector (bottom-up), or the cells of a grid, as the GLD paper has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tellapart.captioners.recurrent import (
    AdditiveAttention,
    at_words,
    captions_of,
    init_gates_,
    lstm,
    mean_region,
    unroll,
)
from tellapart.data.streams import REGIONS, Inputs


@dataclass
class UpDownConfig:
    vocab_size: int
    feature_size: int = 1280
    word_width: int = 512  # of words, and of regions once they are projected
    width: int = 512  # of both LSTMs
    attention_width: int = 512
    dropout: float = 0.5


TINY = {"word_width": 24, "width": 32, "attention_width": 16}


class Memory(NamedTuple):
    """What the words may look at, computed once per photo."""

    regions: Tensor  # (B, R, C): word_width, or as many as there were
    keys: Tensor  # (B, R, attention_width)
    mean: Tensor  # (B, 4 * width): what the mean region adds to the gates of the LSTM that attends
    hidden: Tensor  # (B, R) True where there is no region


class State(NamedTuple):
    """Of the LSTM that attends and of the one that predicts words."""

    look: Tensor  # (N, width)
    look_cell: Tensor  # (N, width)
    speak: Tensor  # (N, width)
    speak_cell: Tensor  # (N, width)


class UpDown(nn.Module):
    def __init__(self, config: UpDownConfig, *, projects: bool = True):
        """projects  regions to the width of words first; else they are attended to as they come"""
        super().__init__()
        c = self.config = config
        seen_width, self.project = c.feature_size, nn.Sequential()
        if projects:
            seen_width = c.word_width
            self.project = nn.Sequential(nn.Linear(c.feature_size, c.word_width), nn.ReLU(), nn.Dropout(c.dropout))
        self.embed, self.dropout = nn.Embedding(c.vocab_size, c.word_width), nn.Dropout(c.dropout)
        # The LSTM that attends takes the word, the mean region, and the last outputs of both LSTMs.
        self.heard, self.mean = nn.Linear(c.word_width, 4 * c.width), nn.Linear(seen_width, 4 * c.width, bias=False)
        self.before = nn.Linear(2 * c.width, 4 * c.width, bias=False)
        self.attend = AdditiveAttention(c.width, seen_width, c.attention_width)
        # The LSTM that predicts takes the attended regions, the other LSTM, and its own last output.
        self.seen = nn.Linear(seen_width + 2 * c.width, 4 * c.width)
        self.word = nn.Linear(c.width, c.vocab_size)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        init_gates_([self.heard, self.mean, self.before, self.seen], self.word)
        if not projects:  # many large numbers: with weights as large as those of words they alone would set the gates
            for weight in (self.mean.weight, self.seen.weight[:, :seen_width]):
                nn.init.uniform_(weight, -(seen_width**-0.5), seen_width**-0.5)

    def encode(self, inputs: Inputs) -> Memory:
        features, mask = inputs[REGIONS]
        regions = self.project(features)
        return Memory(regions, self.attend.key(regions), self.mean(mean_region(regions, mask)), ~mask)

    def start(self, memory: Memory) -> State:
        nothing = memory.regions.new_zeros(len(memory.regions), self.config.width)
        return State(nothing, nothing, nothing, nothing)

    def step(self, token: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        """One word: token (N,) in, logits (N, V) and the next state out."""
        gates = self.heard(self.dropout(self.embed(token))) + captions_of(memory.mean, len(token))
        output, state = self._advance(gates, state, memory)
        return self.word(self.dropout(output)), state

    def forward(self, tokens: Tensor, memory: Memory, token_mask: Tensor | None = None) -> Tensor:
        """Teacher forcing: tokens (N, T) in, logits (N, T, V) out, or (M, V) at the words of `token_mask`."""
        gates = self.heard(self.dropout(self.embed(tokens))) + captions_of(memory.mean, len(tokens))[:, None]
        state = State(*(captions_of(part, len(tokens)) for part in self.start(memory)))
        outputs = unroll(state, iter(gates.unbind(1)), lambda gates, state: self._advance(gates, state, memory))
        return self.word(self.dropout(at_words(outputs, token_mask)))  # type: ignore[no-any-return]

    def _advance(self, gates: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        """gates (N, 4 * width): what word and photo add to the gates of the LSTM that attends"""
        before = self.before(torch.cat([state.speak, state.look], 1))
        look, look_cell = lstm(gates + before, state.look_cell)
        seen = self.attend(look, memory.regions, memory.keys, memory.hidden)
        speak, speak_cell = lstm(self.seen(torch.cat([seen, look, state.speak], 1)), state.speak_cell)
        return speak, State(look, look_cell, speak, speak_cell)
