"""The table of objectives: the goal of a run, the kind of network that it trains, and the function that builds it.

A third kind of network, neither captioner nor retriever, such as a tagger, is one more entry; a plugin may bring it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

    from tellapart.distributed import ProcessGroup
    from tellapart.recipe import Recipe
    from tellapart.training.build import Parts
    from tellapart.training.preparation import Preparation

Network = Literal["captioner", "retriever", "network"]


@dataclass(frozen=True)
class Objective:
    """description  in a line
    trains       the kind of network that it is for
    build        makes what the loop needs: of the recipe, the preparation, the run folder, whether it is resumed,
                 the device and the processes
    metrics      what its validation reports, where it trains a network of the third kind
    network      which tagger it trains, if any: its settings are then known
    """

    description: str
    trains: Network
    build: Callable[[Recipe, Preparation, Path, bool, torch.device, ProcessGroup], Parts]
    metrics: tuple[str, ...] = ()
    network: str = ""


def _built(module: str, function: str) -> Callable[..., Parts]:
    """A function of a module that is imported when it is called."""
    return lambda *arguments: getattr(import_module(module), function)(*arguments)


_captioner = _built("tellapart.training.build", "captioner_parts")
_retriever = _built("tellapart.training.build", "retriever_parts")
_tagger = _built("tellapart.training.tagging", "tagger_parts")
_TAGGED = ("mAP", "mAP[Fang]", "loss")

OBJECTIVES: dict[str, Objective] = {
    "cross_entropy": Objective("make people's captions likely, word by word", "captioner", _captioner),
    "policy_gradient": Objective("make captions likely that earn a reward", "captioner", _captioner),
    "info_nce": Objective("bring captions and their photos together, against a batch", "retriever", _retriever),
    "max_violation": Objective("the same against the hardest of a batch (VSE++)", "retriever", _retriever),
    "tagging": Objective("words that people use of a photo (attributes)", "network", _tagger, _TAGGED, "tagger"),
    "clip_tagging": Objective(
        "words that people use of a clip, from frames far apart or close together",
        "network",
        _tagger,
        _TAGGED,
        "clip_tagger",
    ),
}
