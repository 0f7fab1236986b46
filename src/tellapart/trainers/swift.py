"""Rewards for ms-swift 4.  A file for its --external_plugins:

from tellapart.trainers.swift import register

register("geg_avg", "POOL")  # then: --reward_funcs geg_avg
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tellapart.rewards.caption_reward import CaptionReward


def register(term: str, pool: str | Path, *, column: str = "photo", name: str = "", **settings: Any) -> type:
    """Add a reward to ms-swift's table under its own name or another; `column` of the data set has the photo."""
    from swift.rewards import ORM, orms

    reward = CaptionReward(term, pool, **settings)

    class CaptionORM(ORM):  # type: ignore[misc]  # ms-swift makes an object of it for each run
        def __call__(self, completions: Sequence[str], **columns: Any) -> list[float]:
            return reward.score(completions, columns[column])

    CaptionORM.__name__ = CaptionORM.__qualname__ = name or term
    orms[name or term] = CaptionORM
    return CaptionORM
