"""Which part of a photo each word of a caption rests on.

Measured by hiding, not read from attention: windows of the photo are taken away one after another, and what a word's
log p loses by it is how much the word needs to see there.  This takes only the captioner's protocol, so that it tells
the same of a captioner without attention and of an ensemble; and it is about the word that is
said, where attention is about what is mixed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tellapart.captioners import Captioner
from tellapart.data.streams import REGIONS, Inputs, Stream
from tellapart.decoding.score import score

_OVERLAP = 1.5  # how much wider a window is than the distance to the next: things lie where two windows meet, too


def windows_a_side(side: int) -> int:
    """One for two cells of the grid, for neighbouring cells show the same thing; and so that something stays visible
    beside each, at least two."""
    return max(2, math.ceil(side / 2))


@torch.inference_mode()
def needed(captioner: Captioner, inputs: Inputs, tokens: Tensor, *, side: int, bos: int) -> Tensor:
    """What each word of a caption loses where the photo is hidden, 0 where it loses nothing.

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
