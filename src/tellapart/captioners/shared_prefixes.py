"""Prefixes that captions of a photo share: each is computed once.

The captions that a policy gradient draws for a photo begin alike, the more so the better they get: a third and more of
their words follow a beginning that another caption has too.  A captioner in which a word's row depends on the words
before it alone computes such a row once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SharedPrefixes(NamedTuple):
    """M distinct beginnings at the words of captions (N, T)."""

    place: Tensor  # (M,) where each occurs, as an index in N*T
    which: Tensor  # (N, T) the one that each word ends; of no meaning where there is no word


def shared_prefixes(tokens: Tensor, token_mask: Tensor, photos: int) -> SharedPrefixes:
    """tokens (N, T), token_mask (N, T) True at the words and False at the padding behind them; N = photos*K."""
    captions, length = tokens.shape
    words = int(tokens.max()) + 1 if tokens.numel() else 1
    own = torch.arange(captions, device=tokens.device) // max(captions // max(photos, 1), 1)  # (N,) of the words so far
    which, places, count = torch.zeros_like(tokens), [], 0
    for t in range(length):
        rows = token_mask[:, t].nonzero().squeeze(1)
        distinct, own_of_rows = torch.unique(own[rows] * words + tokens[rows, t], return_inverse=True)
        own[rows] = own_of_rows
        which[rows, t] = count + own_of_rows
        first = torch.full_like(distinct, captions).scatter_reduce_(0, own_of_rows, rows, "amin")
        places.append(first * length + t)
        count += len(distinct)
    return SharedPrefixes(torch.cat(places) if places else which.new_zeros(0), which)
