"""Show, Attend and Tell (Xu et al., 2015) with soft attention: each word attends to the photo again.

Deviations from the original: features are projected to the width of the words first (2,048 numbers a region would make
the photo the largest part of the LSTM's input), and the penalty that spreads the attention of all words over the whole
photo is left out, as in the programs that the papers compare with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tellapart.captioners.layers import AdditiveAttention, LSTMState, RecurrentDecoder, lstm, masked_mean
from tellapart.data.streams import REGIONS, Inputs


@dataclass
class AttentionConfig:
    vocab_size: int
    feature_size: int = 1280
    word_width: int = 512  # of words, and of regions once they are projected
    width: int = 512  # of the LSTM
    attention_width: int = 512
    dropout: float = 0.5


TINY = {"word_width": 24, "width": 32, "attention_width": 16}


class Memory(NamedTuple):
    """The photo as the words attend to it, computed once."""

    regions: Tensor  # (B, R, word_width)
    keys: Tensor  # (B, R, attention_width)
    mean: Tensor  # (B, word_width)
    padding: Tensor  # (B, R) True where there is no region


class Attention(RecurrentDecoder):
    def __init__(self, config: AttentionConfig):
        super().__init__()
        c = self.config = config
        self.project = nn.Sequential(nn.Linear(c.feature_size, c.word_width), nn.ReLU(), nn.Dropout(c.dropout))
        self.embed, self.dropout = nn.Embedding(c.vocab_size, c.word_width), nn.Dropout(c.dropout)
        self.first_output, self.first_cell = nn.Linear(c.word_width, c.width), nn.Linear(c.word_width, c.width)
        self.attend, self.gate = AdditiveAttention(c.width, c.word_width, c.attention_width), nn.Linear(c.width, 1)
        self.word_gates = nn.Linear(c.word_width, 4 * c.width)
        self.context_gates = nn.Linear(c.word_width + c.width, 4 * c.width, bias=False)
        self.output_projection = nn.Linear(c.width, c.word_width)
        self.context_projection = nn.Linear(c.word_width, c.word_width, bias=False)
        self.word = nn.Linear(c.word_width, c.vocab_size)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def encode(self, inputs: Inputs) -> Memory:
        features, mask = inputs[REGIONS]
        regions = self.project(features)
        return Memory(regions, self.attend.key(regions), masked_mean(regions, mask), ~mask)

    def start(self, memory: Memory) -> LSTMState:
        return LSTMState(self.first_output(memory.mean).tanh(), self.first_cell(memory.mean).tanh())

    def step(self, token: Tensor, state: LSTMState, memory: Memory) -> tuple[Tensor, LSTMState]:
        word = self.dropout(self.embed(token))
        output, state = self._advance(self.word_gates(word), state, memory)
        return self._predict(word, output), state

    def forward(self, tokens: Tensor, memory: Memory, token_mask: Tensor | None = None) -> Tensor:
        words = self.dropout(self.embed(tokens))  # (N, T, word_width)
        outputs = self._unroll(self.word_gates(words), memory, token_mask)
        return self._predict(words if token_mask is None else words[token_mask], outputs)

    def _advance(self, gates: Tensor, state: LSTMState, memory: Memory) -> tuple[Tensor, LSTMState]:
        """The LSTM's output beside the attended context (N, width + word_width), and its next state."""
        context = self.attend(state.output, memory.regions, memory.keys, memory.padding)
        # How much of the photo this word needs (Xu et al., 4.2.1)
        context = self.gate(state.output).sigmoid() * context
        state = lstm(gates + self.context_gates(torch.cat([context, state.output], 1)), state.cell)
        return torch.cat([state.output, context], 1), state

    def _predict(self, word: Tensor, output: Tensor) -> Tensor:
        """Logits from the last word, the LSTM and the context together (Xu et al., Eq. 7)."""
        output, context = output.tensor_split([self.config.width], dim=-1)
        joint = word + self.output_projection(self.dropout(output)) + self.context_projection(context)
        return self.word(self.dropout(joint))  # type: ignore[no-any-return]
