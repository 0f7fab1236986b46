"""Rewards for verl, which asks for one caption at a time, in several processes.

    custom_reward_function.path=pkg://tellapart.trainers.verl custom_reward_function.name=compute_score
    +custom_reward_function.reward_kwargs.term=geg_avg +custom_reward_function.reward_kwargs.pool=POOL

A row's photo is `extra_info["photo"]`, else its ground truth.  One caption has no batch: the rewards of DiscriTune
choose among the photo and its look-alikes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from tellapart.rewards.caption_reward import CaptionReward


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    term: str,
    pool: str,
    **_others: Any,
) -> float:
    photo = (extra_info or {}).get("photo", ground_truth)
    return _opened(term, pool).score([solution_str], [photo])[0]


@cache
def _opened(term: str, pool: str) -> CaptionReward:
    """Once in each process."""
    return CaptionReward(term, pool, candidates="look_alikes")
