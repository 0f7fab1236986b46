"""The part of a photo that each word of a caption rests on: measured by hiding, and read from attention.

By hiding (`needed`): windows of the photo are taken away one after another, and what a word's log p loses by it is how
much the word needs to see there.  This takes only the captioner's protocol, so that it tells the same of a captioner
without attention and of an ensemble; and it is about the word that is said, where attention is about what is mixed.

From attention (`attention`): the weights over regions and attributes, as a captioner computes them, are read while it
takes a caption word by word: every softmax of a step is noted, and those over the regions or the attributes are known
by their length.  For that, streams are padded to lengths that nothing else has, which changes nothing in a captioner.
So captioners need no code for it, and those of plugins are read as well; one without attention has nothing to be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tellapart.captioners import Captioner
from tellapart.data.streams import ATTRIBUTES, REGIONS, Inputs, Stream
from tellapart.decoding.score import score

_OVERLAP = 1.5  # how much wider a window is than the distance to the next: things lie where two windows meet, too


def windows_a_side(side: int) -> int:
    """One for two cells of the grid, for neighbouring cells show the same thing; and so that something stays visible
    beside each, at least two."""
    return max(2, math.ceil(side / 2))


@torch.inference_mode()
def needed(captioner: Captioner, inputs: Inputs, tokens: Tensor, *, side: int, bos: int) -> Tensor:
    """The log p that each word of a caption loses where the photo is hidden, 0 where it loses nothing.

    inputs            of one photo; its regions (1, R, D) are a square grid, R = side * side > 1, row by row.  Other
                      streams stay as they are
    tokens    (T,)    the caption's words, with or without EOS
    returns   (T, W)  in nats; W windows, as many a side as `windows_a_side` says, row by row
    """
    everything = torch.ones(1, side * side, dtype=torch.bool)
    visible = torch.cat([everything, ~windows(side)]).to(inputs.device)
    again = inputs.select([0] * len(visible))
    memory = captioner.encode(Inputs(again | {REGIONS: Stream(again[REGIONS].values, visible)}))
    repeated = tokens.expand(len(visible), -1).contiguous()
    logp = score(captioner, memory, repeated, torch.ones_like(repeated, dtype=torch.bool), bos=bos)
    return (logp[0] - logp[1:]).clamp(min=0).T


def windows(side: int) -> Tensor:
    """(W, R) True at the cells that a window hides"""
    count = windows_a_side(side)
    apart = side / count
    centres = (torch.arange(count) + 0.5) * apart - 0.5
    along = (torch.arange(side) - centres[:, None]).abs() <= _OVERLAP * apart / 2  # (count, side)
    return (along[:, None, :, None] & along[None, :, None, :]).reshape(count**2, side**2)


_SOFTMAX = (torch.softmax, Tensor.softmax, F.softmax)


class WordAttention(NamedTuple):
    """Weights (heads, R) and (heads, A), each time that a word attended before it was chosen, in order."""

    regions: list[Tensor]
    attributes: list[Tensor]


class Attention(NamedTuple):
    groups: Tensor | None  # (R, R) what each region attends to among all, where regions do; mean over heads
    words: list[WordAttention]  # of each word of the caption


@torch.inference_mode()
def attention(captioner: Captioner, inputs: Inputs, tokens: Tensor, *, bos: int) -> Attention:
    """inputs of one photo; tokens (T,): the words of its caption"""
    counts = {name: stream.mask.shape[1] for name, stream in inputs.items()}
    length = max(len(tokens) + 1, *counts.values()) + 1
    lengths = {name: length + (name == ATTRIBUTES) for name in counts}
    regions, attributes = length, length + 1
    with _Softmaxes() as softmaxes:
        memory = captioner.encode(_padded(inputs, lengths))
    square = [weights for weights in softmaxes.outputs if weights.shape[-2:] == (regions, regions)]
    state, words = captioner.start(memory), list[WordAttention]()
    for token in (bos, *tokens[:-1].tolist()):
        with _Softmaxes() as softmaxes:
            _, state = captioner.step(tokens.new_tensor([token]), state, memory)
        words.append(
            WordAttention(
                _heads(softmaxes.outputs, regions, counts.get(REGIONS, 0)),
                _heads(softmaxes.outputs, attributes, counts.get(ATTRIBUTES, 0)),
            )
        )
    real = counts[REGIONS]
    return Attention(square[0].flatten(0, -3).mean(0)[:real, :real] if square else None, words)


def mean_over_regions(word: WordAttention) -> Tensor | None:
    """(R,): the mean over all heads and layers; none of a captioner without attention"""
    return torch.cat(word.regions).mean(0) if word.regions else None


class _Softmaxes(TorchFunctionMode):
    """Notes what every softmax gives."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Tensor] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in _SOFTMAX:
            self.outputs.append(result)
        return result


def _heads(outputs: Iterable[Tensor], length: int, real: int) -> list[Tensor]:
    """The softmaxes over so many rows, each (heads, real) without padding."""
    return [weights.reshape(-1, length)[:, :real] for weights in outputs if weights.shape[-1] == length]


def _padded(inputs: Inputs, lengths: dict[str, int]) -> Inputs:
    return Inputs(
        {
            name: Stream(F.pad(values, (0, 0, 0, more)), F.pad(mask, (0, more)))
            for name, (values, mask) in inputs.items()
            for more in [lengths[name] - mask.shape[1]]
        }
    )
