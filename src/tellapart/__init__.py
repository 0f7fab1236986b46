"""Captions that tell photos apart.

import tellapart

captioner = tellapart.load()
captioner.caption("photo.jpg").text
captioner.caption(photos, among=photos)  # told apart from each other
tellapart.look_alikes(photos, k=5)
tellapart.score(captions, references)
run = tellapart.train("tiny/photos_xe", data="DATA.json", out="runs/mine")
tellapart.evaluate(["plain", run.folder], "DATA.json")
tellapart.adapt("holiday/", out="runs/holiday")  # fine-tuning by photos alone
tellapart.CaptionReward("geg_avg", "POOL").score(captions, photos)  # for other trainers
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tellapart import telemetry
from tellapart.version import __version__

telemetry.turn_off()

if TYPE_CHECKING:
    from capscore.errors import UserError
    from capscore.scoring import measure, score
    from tellapart.adapting.adapt import adapt
    from tellapart.captioning.captioner import PhotoCaptioner, load
    from tellapart.data.captions import Caption
    from tellapart.decoding.rules import Search
    from tellapart.errors import BadPhoto
    from tellapart.evaluation.evaluate import evaluate
    from tellapart.neighbours.collection import look_alikes
    from tellapart.rewards.caption_reward import CaptionReward
    from tellapart.training.train import train

__all__ = [
    "BadPhoto",
    "Caption",
    "CaptionReward",
    "PhotoCaptioner",
    "Search",
    "UserError",
    "__version__",
    "adapt",
    "evaluate",
    "load",
    "look_alikes",
    "measure",
    "score",
    "train",
]

_HOME = {
    "BadPhoto": "tellapart.errors",
    "Caption": "tellapart.data.captions",
    "CaptionReward": "tellapart.rewards.caption_reward",
    "PhotoCaptioner": "tellapart.captioning.captioner",
    "Search": "tellapart.decoding.rules",
    "UserError": "capscore.errors",
    "adapt": "tellapart.adapting.adapt",
    "evaluate": "tellapart.evaluation.evaluate",
    "load": "tellapart.captioning.captioner",
    "look_alikes": "tellapart.neighbours.collection",
    "measure": "capscore.scoring",
    "score": "capscore.scoring",
    "train": "tellapart.training.train",
}
_MODULES = ("plugins", "rewards")


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used: `import tellapart` alone loads neither torch nor Pillow."""
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"tellapart.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'tellapart' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)  # from now on without this function
    return value


def __dir__() -> list[str]:
    """The names that completion shows: all public ones, whether they were used before or not."""
    return sorted({*globals(), *__all__})
