"""Our rewards as other trainers call them; by HTTP (`scorer.py`), any other.  None of them is a dependency.

TRL 1.x    GRPOTrainer(reward_funcs=[reward_function("geg_avg", "POOL")]), and RLOOTrainer alike
ms-swift 4 a file for its --external_plugins: register("geg_avg", "POOL"), then --reward_funcs geg_avg
verl       custom_reward_function.path=pkg://tellapart.trainers custom_reward_function.name=compute_score
           +custom_reward_function.reward_kwargs.term=geg_avg +custom_reward_function.reward_kwargs.pool=POOL
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
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
        score_of: dict[int, float] = dict(zip(rows, scores, strict=True))
        return [score_of.get(row) for row in range(len(completions))]


def _text(completion: Any) -> str:
    """A completion is a text, or a conversation whose last message is the caption, perhaps in parts."""
    content = completion if isinstance(completion, str) else completion[-1]["content"]
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


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
    """The reward of one caption, as verl asks for it, in several processes.

    A row's photo is `extra_info["photo"]`, else its ground truth.  One caption has no batch: the rewards of DiscriTune
    choose among the photo and its look-alikes.
    """
    photo = (extra_info or {}).get("photo", ground_truth)
    return _among_look_alikes(term, pool).score([solution_str], [photo])[0]


@cache
def _among_look_alikes(term: str, pool: str) -> CaptionReward:
    """Once in each process."""
    return CaptionReward(term, pool, candidates="look_alikes")
