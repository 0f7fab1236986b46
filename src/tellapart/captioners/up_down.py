"""Up-Down (Anderson et al., 2018), the GLD paper's Top-Down Attention (TDA): one LSTM attends, one predicts words.

Over any regions: boxes of a detector (bottom-up), or the cells of a grid, as the GLD paper has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tellapart.captioners.layers import AdditiveAttention, RecurrentDecoder, init_gates_, lstm, masked_mean
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
    """The photo as the words attend to it, computed once."""

    regions: Tensor  # (B, R, C): word_width, or as many as there were
    keys: Tensor  # (B, R, attention_width)
    gates: Tensor  # (B, 4 * width): what the mean region adds to the gates of the attention LSTM
    padding: Tensor  # (B, R) True where there is no region


class State(NamedTuple):
    """Of the attention LSTM and of the language LSTM."""

    attention: Tensor  # (N, width)
    attention_cell: Tensor  # (N, width)
    language: Tensor  # (N, width)
    language_cell: Tensor  # (N, width)


class UpDown(RecurrentDecoder):
    def __init__(self, config: UpDownConfig, *, projects: bool = True):
        """projects  regions to the width of words first; else they are attended to as they come"""
        super().__init__()
        c = self.config = config
        region_width, self.project = c.feature_size, nn.Sequential()
        if projects:
            region_width = c.word_width
            self.project = nn.Sequential(nn.Linear(c.feature_size, c.word_width), nn.ReLU(), nn.Dropout(c.dropout))
        self.embed, self.dropout = nn.Embedding(c.vocab_size, c.word_width), nn.Dropout(c.dropout)
        # The attention LSTM takes the word, the mean region, and the last outputs of both LSTMs.
        self.word_gates = nn.Linear(c.word_width, 4 * c.width)
        self.mean_gates = nn.Linear(region_width, 4 * c.width, bias=False)
        self.recurrent_gates = nn.Linear(2 * c.width, 4 * c.width, bias=False)
        self.attend = AdditiveAttention(c.width, region_width, c.attention_width)
        # The language LSTM takes the attended regions, the attention LSTM, and its own last output.
        self.language_gates = nn.Linear(region_width + 2 * c.width, 4 * c.width)
        self.word = nn.Linear(c.width, c.vocab_size)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        init_gates_([self.word_gates, self.mean_gates, self.recurrent_gates, self.language_gates], self.word)
        if not projects:  # many large numbers: with weights as large as those of words they alone would set the gates
            for weight in (self.mean_gates.weight, self.language_gates.weight[:, :region_width]):
                nn.init.uniform_(weight, -(region_width**-0.5), region_width**-0.5)

    def encode(self, inputs: Inputs) -> Memory:
        features, mask = inputs[REGIONS]
        regions = self.project(features)
        return Memory(regions, self.attend.key(regions), self.mean_gates(masked_mean(regions, mask)), ~mask)

    def start(self, memory: Memory) -> State:
        nothing = memory.regions.new_zeros(len(memory.regions), self.config.width)
        return State(nothing, nothing, nothing, nothing)

    def _advance(self, gates: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        """gates (N, 4 * width): of the attention LSTM"""
        gates = gates + self.recurrent_gates(torch.cat([state.language, state.attention], 1))
        attention, attention_cell = lstm(gates, state.attention_cell)
        attended = self.attend(attention, memory.regions, memory.keys, memory.padding)
        gates = self.language_gates(torch.cat([attended, attention, state.language], 1))
        language, language_cell = lstm(gates, state.language_cell)
        return language, State(attention, attention_cell, language, language_cell)
