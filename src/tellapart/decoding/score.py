"""How probable is a given caption?  Teacher forcing: the whole caption in one pass, no word-by-word loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tellapart.captioners import Captioner
from tellapart.captioners.shared_prefixes import shared_prefixes
from tellapart.decoding.tokens import log_probabilities, opening


def caption_mask(tokens: Tensor, eos: int) -> Tensor:
    """Which tokens belong to the caption: True up to and including the first EOS.  tokens (..., T) -> (..., T).

    A caption without EOS was cut at its last token, so all of it counts.
    """
    ends = tokens == eos
    return ends.cumsum(-1) - ends.long() == 0  # no EOS strictly before


def score(
    captioner: Captioner,
    memory: Any,
    tokens: Tensor,
    mask: Tensor,
    *,
    bos: int,
    policy: Callable[[Tensor], Tensor] = log_probabilities,
) -> Tensor:
    """log p of every word of given captions; gradients flow, and no gradient passes through what `mask` leaves out.

    memory            B photos
    tokens    (N, T)  N = B*K captions grouped by photo, without BOS, padded with any word id
    mask      (N, T)  True at a caption's words and EOS, False at the padding behind them: see `caption_mask`
    policy            logits (M, V) -> log p: the captioner's own, or what captions were drawn from
    returns   (N, T)  log p(word | the words before it, photo) over the whole vocabulary, 0 where `mask` is False
    """
    before = torch.cat([torch.full_like(tokens[:, :1], bos), tokens[:, :-1]], dim=1)
    # Padding is never projected onto the vocabulary, and where it can be what follows the same beginning only once;
    # with dropout every caption has a beginning of its own.
    if getattr(captioner, "shares_prefixes", False) and not getattr(captioner, "training", False):
        shared = shared_prefixes(before, mask, len(opening(memory, bos)))
        logits, row = captioner.forward(before, memory, shared), shared.which[mask]  # type: ignore[arg-type]
    else:
        logits = captioner.forward(before, memory, mask)
        row = torch.arange(len(logits), device=tokens.device)
    log_policy = policy(logits)  # (rows, V)
    logp = log_policy.flatten().index_select(0, row * log_policy.shape[1] + tokens[mask])  # (M,)
    return logp.new_zeros(tokens.shape).masked_scatter(mask, logp)
