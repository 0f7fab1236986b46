"""GL-RG (Yan et al., 2022): a clip as three vectors of words, actions and classes, fused and fed to an LSTM.

B clips, N captions.  The streams are vectors of probabilities; rows of a stream (segments of a clip) are averaged.

words    W, long-range: words that captions of such clips have
actions  A, short-range: what is done
classes  C, keyframe: what is to be seen
sound    of the same form, a further modality (the paper's outlook)

Each is optional: the rows of the paper's Table 2 are recipes with fewer streams.

fusion   Eq. 4: F = concat(phi(W), phi(A), phi(C)), phi a linear layer, ReLU and dropout; `joint`: one phi over the
         concatenation, as wide as the three together (the paper's program has one of `width` numbers, F = 512)
decoder  Eqs. 5-7: by Eq. 6 the first input is F, by a linear layer of its own, and there is no BOS: what is fed at the
         first step is not used.  `every_step`: F stands beside every word, BOS is fed, and the cell has no biases, as
         in the program that produced the published figures
adaptive   F's parts are weighed by softmax(linear(F)), times their number, per clip (the paper's outlook)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tellapart.captioners.layers import RecurrentDecoder, captions_of, init_gates_, lstm, masked_mean
from tellapart.data.streams import ACTIONS, CLASSES, SOUND, WORDS, Inputs


@dataclass
class GlRgConfig:
    vocab_size: int
    words_size: int = field(default=0, metadata={"least": 0})  # K; 0: no such stream
    actions_size: int = field(default=0, metadata={"least": 0})  # J
    classes_size: int = field(default=0, metadata={"least": 0})  # M
    sound_size: int = field(default=0, metadata={"least": 0})
    width: int = 512  # of each part of F, words and LSTM
    joint: bool = False
    every_step: bool = False
    adaptive: bool = False
    dropout: float = 0.5


TINY = {"width": 32}


class State(NamedTuple):
    """Of the LSTM."""

    output: Tensor  # (rows, width)
    cell: Tensor  # (rows, width)
    begun: Tensor  # (rows, 1) 0 before the first step, then 1


class GlRg(RecurrentDecoder):
    streams = (WORDS, ACTIONS, CLASSES, SOUND)
    optional_streams = True

    def __init__(self, config: GlRgConfig):
        super().__init__()
        c = self.config = config
        sizes = {name: getattr(c, f"{name}_size") for name in self.streams}
        self.sizes = {name: size for name, size in sizes.items() if size}
        if not self.sizes:
            raise ValueError("it needs at least one stream")
        if c.adaptive and c.joint:
            raise ValueError("adaptive weights need a projection of each stream, which joint has not")
        parts = {"joint": sum(self.sizes.values())} if c.joint else self.sizes
        fused = len(self.sizes) * c.width  # of F
        self.project = nn.ModuleDict(
            {name: nn.Linear(size, fused if c.joint else c.width) for name, size in parts.items()}
        )
        self.weigh = nn.Linear(fused, len(self.sizes)) if c.adaptive else None
        self.first = None if c.every_step else nn.Linear(fused, c.width)
        self.embed = nn.Embedding(c.vocab_size, c.width)
        self.input_gates = nn.Linear(c.width, 4 * c.width, bias=not c.every_step)
        self.recurrent_gates = nn.Linear(c.width, 4 * c.width, bias=False)
        self.fused_gates = nn.Linear(fused, 4 * c.width, bias=False) if c.every_step else None
        self.dropout, self.word = nn.Dropout(c.dropout), nn.Linear(c.width, c.vocab_size)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        gates = (self.input_gates, self.recurrent_gates, self.fused_gates)
        init_gates_([layer for layer in gates if layer is not None], self.word)
        for layer in self.project.values():  # probabilities sum up to little: torch's own would make F faint
            assert isinstance(layer, nn.Linear)
            nn.init.normal_(layer.weight, std=0.5)
        if self.weigh is not None:  # all weigh the same at first
            nn.init.zeros_(self.weigh.weight)
            nn.init.zeros_(self.weigh.bias)

    def fuse(self, inputs: Inputs) -> Tensor:
        """F (B, parts * width)"""
        vectors = {name: masked_mean(*inputs[name]) for name in self.sizes}
        if self.config.joint:
            vectors = {"joint": torch.cat(list(vectors.values()), 1)}
        parts = [self.dropout(self.project[name](vector).relu()) for name, vector in vectors.items()]
        fused = torch.cat(parts, 1)
        if self.weigh is None:
            return fused
        weights = self.weigh(fused).softmax(1) * len(parts)  # (B, parts)
        return torch.cat([weights[:, n : n + 1] * part for n, part in enumerate(parts)], 1)

    def encode(self, inputs: Inputs) -> Tensor:
        """F's part of the gates: at the first step, or at each.  (B, 4 * width)"""
        fused = self.fuse(inputs)
        if self.fused_gates is not None:
            return self.fused_gates(fused)  # type: ignore[no-any-return]
        assert self.first is not None
        return self.input_gates(self.first(fused))  # type: ignore[no-any-return]

    def start(self, memory: Tensor) -> State:
        nothing = memory.new_zeros(len(memory), self.config.width)
        return State(nothing, nothing, nothing[:, :1])

    def step(self, token: Tensor, state: State, memory: Tensor) -> tuple[Tensor, State]:
        gates = self.input_gates(self.dropout(self.embed(token)))
        fused = captions_of(memory, len(token))
        gates = gates + fused if self.config.every_step else torch.where(state.begun > 0, gates, fused)
        output, state = self._advance(gates, state, memory)
        return self.word(self.dropout(output)), state

    def forward(self, tokens: Tensor, memory: Tensor, token_mask: Tensor | None = None) -> Tensor:
        fused = captions_of(memory, len(tokens))[:, None]
        if self.config.every_step:
            gates = self.input_gates(self.dropout(self.embed(tokens))) + fused  # (N, T, 4 * width)
        else:
            gates = torch.cat([fused, self.input_gates(self.dropout(self.embed(tokens[:, 1:])))], 1)
        return self.word(self.dropout(self._unroll(gates, memory, token_mask)))  # type: ignore[no-any-return]

    def _advance(self, gates: Tensor, state: State, memory: Tensor) -> tuple[Tensor, State]:
        output, cell = lstm(gates + self.recurrent_gates(state.output), state.cell)
        return output, State(output, cell, torch.ones_like(state.begun))
