"""Baselines, with which rewards of captions are compared.  Any of these leaves the expected gradient as it is, or
nearly, and lessens its noise; which one matters for what captions have to compete with.

B photos, K captions of each, N = B*K grouped by photo.  Rewards of words are compared place by place: past the end of
a caption its words' rewards are 0, and its sentence's reward remains (GLD, Eq. 12).

nothing, the greedy caption, a second sample, the references, the mean of all rewards so far: unbiased, for none of them
knows the caption.  Leave-one-out: unbiased too.  The mean of all K: the gradient times (K - 1) / K.  The mean of the Q
best (b2 of GL-RG): biased, as it depends on the caption whenever that is among the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tellapart.metrics.retrieval import mean_of_others
from tellapart.rewards import Reward


def leave_one_out(reward: Reward, samples: int) -> Reward:
    """The mean over the K - 1 siblings of each caption."""

    def mean_of_siblings(values: Tensor) -> Tensor:
        group = _grouped(values, samples)
        return mean_of_others(group.sum(1, keepdim=True), group, samples).flatten(0, 1)

    return _each(reward, mean_of_siblings)


def mean(reward: Reward, samples: int) -> Reward:
    """The mean over all K captions of a photo, for each of them (b2 with Q = K)."""
    return _each(reward, lambda values: _repeat(_grouped(values, samples).mean(1), samples))


def mean_of_best(reward: Reward, mask: Tensor, samples: int, best: int) -> Reward:
    """The mean over the Q best captions of a photo (b2, GL-RG).  mask (N, T): the words that captions have"""
    chosen = reward.per_caption(mask).view(-1, samples).topk(best, dim=1).indices  # (B, Q)

    rows = torch.arange(len(chosen), device=chosen.device)[:, None]
    return _each(reward, lambda values: _repeat(_grouped(values, samples)[rows, chosen].mean(1), samples))


def of_photo(reward: Reward, photos: int, samples: int) -> Reward:
    """The mean reward of other captions of a photo, equally many for each, for each of its K captions."""
    return _each(reward, lambda values: _repeat(_grouped(values, len(values) // photos).mean(1), samples))


def constant(value: float, reward: Reward) -> Reward:
    return Reward(torch.full_like(reward.sentence, value))


def advantage(reward: Reward, baseline: Reward, length: int) -> Tensor:
    """(N, T): what each word's caption, and the word itself, got beyond the baseline at its place."""
    above = (reward.sentence - baseline.sentence)[:, None].expand(-1, length)
    for words, sign in ((reward.words, 1), (baseline.words, -1)):
        if words is not None:
            above = above + sign * F.pad(words, (0, length - words.shape[1]))
    return above


def whitened(
    advantage: Tensor, mask: Tensor, group: int = 0, total: Callable[[Sequence[float]], list[float]] = list
) -> Tensor:
    """Advantages (N, T) with mean 0 and spread 1 over the words of each `group` captions; equal ones become 0.

    group  0: those of the whole batch, over all processes
    total  of each of some numbers, the sum over all processes
    """
    values, token_mask = (
        _grouped(part, group).flatten(1) if group else part.flatten()[None] for part in (advantage, mask)
    )

    def over(parts: Tensor) -> Tensor:
        sums = parts.sum(1, keepdim=True)
        return sums if group else sums.new_tensor([total(sums[:, 0].tolist())])

    count = over(token_mask.to(values.dtype)).clamp(min=1)
    centred = (values - over(values * token_mask) / count) * token_mask
    spread, size = ((over(part.square() * token_mask) / count).sqrt() for part in (centred, values))
    # Rounding alone gives equal rewards a spread: below a millionth of their size there is nothing to learn from.
    white = torch.where(spread > 1e-6 * size.clamp(min=1), centred / spread.clamp(min=1e-30), 0.0)
    return white.view(advantage.shape)


def _each(reward: Reward, function: Callable[[Tensor], Tensor]) -> Reward:
    return Reward(function(reward.sentence), None if reward.words is None else function(reward.words))


def _grouped(values: Tensor, count: int) -> Tensor:
    """(N, ...) -> (N / count, count, ...)"""
    return values.view(-1, count, *values.shape[1:])


def _repeat(values: Tensor, samples: int) -> Tensor:
    return values.repeat_interleave(samples, 0)
