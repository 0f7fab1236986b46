"""Rewards for TRL 1.x: `GRPOTrainer(reward_funcs=[reward_function("geg_avg", "POOL")])`, and RLOOTrainer alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tellapart.rewards import reward
from tellapart.rewards.caption_reward import CaptionReward


class reward_function:  # noqa: N801  TRL calls it as a function, and pickles it for its workers
    """A reward as TRL calls it: a number for each completion, None for rows without a photo.

    pool    none: a reward of the pictures themselves, as `tellapart.rewards.reward`
    column  of the data set, with each row's photo: its id in the pool or its file; without a pool the picture
    """

    def __init__(self, term: str, pool: str | Path | None = None, *, column: str = "", **settings: Any):
        self.score: Callable[[Sequence[str], Sequence[Any]], list[float]]
        if pool is None:
            self.score, self.column = reward(term, **settings), column or "image"
        else:
            self.score, self.column = CaptionReward(term, pool, **settings).score, column or "photo"
        self.__name__ = term  # what the trainer's logs call it

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        photos = columns[self.column]
        rows = [row for row, photo in enumerate(photos) if photo is not None]
        scores = self.score([_text(completions[row]) for row in rows], [photos[row] for row in rows])
        found: dict[int, float] = dict(zip(rows, scores, strict=True))
        return [found.get(row) for row in range(len(completions))]


def _text(completion: Any) -> str:
    """A completion is a text, or a conversation whose last message is the caption, perhaps in parts."""
    content = completion if isinstance(completion, str) else completion[-1]["content"]
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)
