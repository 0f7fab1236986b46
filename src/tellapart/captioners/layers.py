"""What captioners share: softmax and mean over regions, an LSTM's cell, additive attention, prefixes of captions.

The gates of a cell are a sum of products, one for each input of the cell.  Captioners compute them apart, so
that what does not depend on the word before (the photo, and in training all words of a caption) is multiplied once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# Regions: a photo of which nothing was found has none at all; what is seen of it are zeros, and never NaN


def masked_softmax(scores: Tensor, padding: Tensor) -> Tensor:
    """Weights over the last dimension that add up to 1, or are all 0 where everything is padding.

    >>> masked_softmax(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([False, False, True]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    lowest = torch.finfo(scores.dtype).min  # infinity would make a row without any region NaN, in the gradients too
    return scores.masked_fill(padding, lowest).softmax(-1).masked_fill(padding, 0.0)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over the rows that there are: values (..., R, C), mask fits (..., R) -> (..., C); 0 of no rows."""
    present = mask[..., None].to(values.dtype)
    return (values * present).sum(-2) / present.sum(-2).clamp(min=1.0)


# Recurrent captioners


class LSTMState(NamedTuple):
    output: Tensor  # (rows, width)
    cell: Tensor  # (rows, width)


def lstm(gates: Tensor, cell: Tensor) -> LSTMState:
    """gates (N, 4 * width): input, forget, new, output; cell (N, width) -> the next state."""
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
    cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    return LSTMState(output_gate.sigmoid() * cell.tanh(), cell)


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

    def forward(self, question: Tensor, regions: Tensor, keys: Tensor, padding: Tensor) -> Tensor:
        """The regions as each question weighs them; the K questions of a photo stand together.

        question  (N, question), N = B*K
        regions   (B, R, regions), keys (B, R, width) from `key`, padding (B, R) True where there is no region
        returns   (N, regions)
        """
        query = self.query(question).view(len(regions), -1, 1, keys.shape[2])  # (B, K, 1, width)
        weight = self.score(torch.tanh(keys[:, None] + query)).squeeze(3)  # (B, K, R)
        attended: Tensor = masked_softmax(weight, padding[:, None]) @ regions  # (B, K, regions)
        return attended.view(len(question), -1)


def captions_of(rows: Tensor, captions: int) -> Tensor:
    """Rows of photos, repeated for each of their captions: rows (B, C) -> (N, C), grouped by photo"""
    return rows[:, None].expand(-1, captions // len(rows), -1).reshape(captions, -1)


class RecurrentDecoder(nn.Module):
    """`step` and `forward` of a captioner with an LSTM, which takes what its words give to the gates all at once."""

    embed: nn.Embedding
    dropout: nn.Dropout
    word_gates: nn.Linear
    recurrent_gates: nn.Linear
    word: nn.Linear

    def start(self, memory: Any) -> Any:
        raise NotImplementedError

    def step(self, token: Tensor, state: Any, memory: Any) -> tuple[Tensor, Any]:
        output, state = self._advance(self._gates(token[:, None], memory).squeeze(1), state, memory)
        return self.word(self.dropout(output)), state

    def forward(self, tokens: Tensor, memory: Any, token_mask: Tensor | None = None) -> Tensor:
        outputs = self._unroll(self._gates(tokens, memory), memory, token_mask)
        return self.word(self.dropout(outputs))  # type: ignore[no-any-return]

    def _gates(self, tokens: Tensor, memory: Any) -> Tensor:
        """Parts of the gates from words (N, T), and from the photo beside each: (N, T, 4 * width)"""
        gates: Tensor = self.word_gates(self.dropout(self.embed(tokens)))
        return gates + captions_of(memory.gates, len(tokens))[:, None]

    def _advance(self, gates: Tensor, state: Any, memory: Any) -> tuple[Tensor, Any]:
        """Outputs (N, C) to predict the next words from, and the next state: gates (N, 4 * width), from `_gates`"""
        state = lstm(gates + self.recurrent_gates(state.output), state.cell)
        return state.output, state

    def _unroll(self, gates: Tensor, memory: Any, token_mask: Tensor | None) -> Tensor:
        """The outputs over whole captions: gates (N, T, ...) -> (N, T, C), or at the words of `token_mask` (M, C)"""
        first = self.start(memory)
        state, outputs = type(first)(*(captions_of(part, len(gates)) for part in first)), []
        for step in gates.unbind(1):
            output, state = self._advance(step, state, memory)
            outputs.append(output)
        whole = torch.stack(outputs, 1)
        return whole if token_mask is None else whole[token_mask]


# Prefixes that captions of a photo share.  The captions that a policy gradient draws for a photo begin alike, the
# more so the better they get: a third and more of their words follow a beginning that another caption has too.  A
# captioner in which a word's row depends on the words before it alone computes such a row once.


class SharedPrefixes(NamedTuple):
    """M distinct beginnings at the words of captions (N, T)."""

    place: Tensor  # (M,) where each occurs, as an index in N*T
    which: Tensor  # (N, T) the one that each word ends; of no meaning where there is no word


def shared_prefixes(tokens: Tensor, token_mask: Tensor, photos: int) -> SharedPrefixes:
    """tokens (N, T), token_mask (N, T) True at the words and False at the padding behind them; N = photos*K."""
    captions, length = tokens.shape
    words = int(tokens.max()) + 1 if tokens.numel() else 1
    prefix = torch.arange(captions, device=tokens.device) // max(captions // max(photos, 1), 1)  # (N,) so far
    which, places, count = torch.zeros_like(tokens), [], 0
    for t in range(length):
        rows = token_mask[:, t].nonzero().squeeze(1)
        distinct, prefix_of_rows = torch.unique(prefix[rows] * words + tokens[rows, t], return_inverse=True)
        prefix[rows] = prefix_of_rows
        which[rows, t] = count + prefix_of_rows
        first = torch.full_like(distinct, captions).scatter_reduce_(0, prefix_of_rows, rows, "amin")
        places.append(first * length + t)
        count += len(distinct)
    return SharedPrefixes(torch.cat(places) if places else which.new_zeros(0), which)
