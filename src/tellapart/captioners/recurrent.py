"""What captioners with an LSTM share: its cell, additive attention to regions, and a photo's regions as one vector.

The gates of a cell are a sum of products, one for each input of the cell.  Captioners compute them apart, so
that what does not depend on the word before (the photo, and in training all words of a caption) is multiplied once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from tellapart.captioners.masked import masked_mean, masked_softmax

State = TypeVar("State")


class LSTMState(NamedTuple):
    output: Tensor  # (rows, width)
    cell: Tensor  # (rows, width)


def lstm(gates: Tensor, cell: Tensor) -> LSTMState:
    """gates (N, 4 * width): input, forget, new, output; cell (N, width) -> the next state."""
    write, keep, new, show = gates.chunk(4, dim=1)
    cell = keep.sigmoid() * cell + write.sigmoid() * new.tanh()
    return LSTMState(show.sigmoid() * cell.tanh(), cell)


def init_gates_(gates: Iterable[nn.Linear], word: nn.Linear) -> None:
    """Initial weights with which words and photo reach the output from the first step on.

    torch's own are so small that a signal fades on its way through a cell, and twice through two: for hundreds of steps
    Up-Down then learned no more than how frequent each word is (loss 5.6 after 200 steps, 4.9 with these).

    gates  all that goes into a cell; of those with a bias, the forget gate begins open
    word   from the cell's output to the words
    """
    for layer in gates:
        nn.init.xavier_uniform_(layer.weight, gain=2.0)
        if layer.bias is not None:
            width = layer.out_features // 4
            nn.init.ones_(layer.bias[width : 2 * width])
    nn.init.normal_(word.weight, std=2 * word.in_features**-0.5)


class AdditiveAttention(nn.Module):
    """A question weighs the regions of its photo (Bahdanau et al., 2015): softmax of score . tanh(key + query)."""

    def __init__(self, question: int, regions: int, width: int):
        super().__init__()
        self.key, self.query = nn.Linear(regions, width), nn.Linear(question, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)  # a bias would add the same to every region

    def forward(self, question: Tensor, regions: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
        """What each question sees: the K questions of a photo stand together.

        question  (N, question), N = B*K
        regions   (B, R, regions), keys (B, R, width) from `key`, hidden (B, R) True where there is no region
        returns   (N, regions)
        """
        asked = self.query(question).view(len(regions), -1, 1, keys.shape[2])  # (B, K, 1, width)
        weight = self.score(torch.tanh(keys[:, None] + asked)).squeeze(3)  # (B, K, R)
        seen: Tensor = masked_softmax(weight, hidden[:, None]) @ regions  # (B, K, regions)
        return seen.view(len(question), -1)


def mean_region(regions: Tensor, mask: Tensor) -> Tensor:
    """The mean of the regions that there are, 0 where there are none: regions (B, R, C), mask (B, R) -> (B, C)"""
    return masked_mean(regions, mask)


def captions_of(rows: Tensor, captions: int) -> Tensor:
    """What photos share, for each of their captions: rows (B, C) -> (N, C), grouped by photo"""
    return rows[:, None].expand(-1, captions // len(rows), -1).reshape(captions, -1)


def unroll(state: State, inputs: Iterator[Tensor], advance: Callable[[Tensor, State], tuple[Tensor, State]]) -> Tensor:
    """The outputs (N, T, C) of a cell that is fed one input (N, ...) after another."""
    outputs = []
    for given in inputs:
        output, state = advance(given, state)
        outputs.append(output)
    return torch.stack(outputs, 1)


def at_words(outputs: Tensor, token_mask: Tensor | None) -> Tensor:
    """(N, T, C), or with `token_mask` (N, T) only the M words: (M, C)"""
    return outputs if token_mask is None else outputs[token_mask]
