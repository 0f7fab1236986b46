"""From photos to captions: something proposes candidates, and the one that best tells a photo apart is chosen.

    proposer -> `Proposed` -> `tell_apart` -> `CaptionSource` -> wrappers: a style, a language, more of a video ...

A proposer is a captioner, a model or server that is asked, or a file of candidates.  Whoever captions photos (the
Python call, the commands, the page of `serve`) builds one, gives it to `tell_apart`, and takes captions from what that
returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from capscore.errors import UserError
from tellapart.data.captions import Caption, Proposed

if TYPE_CHECKING:
    from tellapart.captioning.rerank import Collection, Scene


class Context(Protocol):
    """Known facts of photos beside their pictures, such as the name of an album."""

    @property
    def identity(self) -> str: ...

    def bonus(self, file: str, captions: Sequence[str]) -> NDArray[np.float64]:
        """(K,) for captions that agree with the facts of a photo."""


@dataclass(frozen=True)
class RerankConfig:
    """The choice of a candidate; the defaults are what the judge preferred on validation photos."""

    k: int = 5  # look-alikes of a photo
    strength: float = 0.4  # of the listener
    length: float = 0.75  # power of the length that log p is divided by
    by: Literal["softmax", "gap"] = "softmax"
    unlikely: float = 1.0  # a candidate whose log p per token is lower than the best one's by more is not chosen
    beam: int = 5  # candidates: the likeliest captions ...
    samples: int = 10  # ... and random ones
    temperature: float = 0.7
    contrast: Literal["captions", "words", "prompt"] = "captions"  # whole captions, each word (PICL), or the prompt
    listener_weight: float = 0.5  # of the listener at each word, against the captioner
    floor: float = 0.05  # a word less likely than this share of the likeliest is not used for the listener's sake
    fluency: float = 0.0  # weight of what a caption's words fall short of people's, by a language model
    bursts: Literal["own", "share"] = "own"  # whether near-duplicates share a caption
    context: Context | None = None

    def __post_init__(self) -> None:
        if self.context is not None and self.contrast == "words":
            raise UserError("--context and --contrast words cannot be combined: context is for whole captions.")

    @property
    def identity(self) -> str:
        """Settings that captions depend on; those that are as ever go without saying, so that others can join."""
        values = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        stated = [f"{name}={value}" for name, value, default in values if value != default and name != "context"]
        return " ".join([*stated, *([] if self.context is None else [f"context={self.context.identity}"])])


class Proposer(Protocol):
    """Gives captions of photos to choose from."""

    @property
    def identity(self) -> str:
        """Everything that its captions depend on beside the photo: it enters the key of a row."""

    def propose(self, photos: Iterable[Any], scene: Scene | None) -> Iterator[Proposed]:
        """Candidates of each photo, in order.  scene: what the photos are told apart from, where they are"""


def _nothing(files: Iterable[str]) -> None:
    pass


@dataclass(frozen=True)
class CaptionSource:
    """Captions of photos, as commands write them."""

    caption: Callable[[Iterable[Any]], Iterator[Caption]]  # photos -> captions, in order
    identity: str  # what the captions depend on beside the photo
    collection: Collection | None = None  # which remembers captions that stay: look-alikes get others
    language: str = ""  # a tag, where the captions are in one that was asked for
    saved: Callable[[Iterable[str]], None] = _nothing  # takes files whose captions a kill cannot take any more


def tell_apart(
    proposer: Proposer,
    collection: Collection | None = None,
    config: RerankConfig | None = None,
    *,
    listed: bool = False,
    keep: bool = True,
) -> CaptionSource:
    """The captions of what a proposer proposes: each the candidate that tells its photo apart, or the best by itself.

    collection  photos to be told apart from; none: candidates are judged by themselves
    listed      captions have all candidates, too
    keep        features of photos are kept for the next time
    """
    config = RerankConfig() if config is None else config
    if listed and (collection is not None or config.context is not None):
        chooser = "--context" if collection is None else "--among"
        raise UserError(f"--n-best lists captions and {chooser} chooses one: list them first, then give --candidates.")
    identity = proposer.identity
    if collection is not None or config.context is not None:
        identity += f" {config.identity}"
    if collection is not None:
        identity += f" among={collection.identity}"

    def caption(photos: Iterable[Any]) -> Iterator[Caption]:
        if collection is None:
            return (alone(proposed, config, listed=listed) for proposed in proposer.propose(photos, None))
        from tellapart.captioning.rerank import rerank

        photos = list(photos)
        scene = collection.scene(photos, keep=keep)
        return rerank(proposer.propose(photos, scene), scene, config)

    return CaptionSource(caption, identity, collection)


def alone(proposed: Proposed, config: RerankConfig, *, listed: bool = False) -> Caption:
    """The best candidate of a photo that is not told apart from others."""
    candidates = proposed.candidates
    if proposed.error or not candidates:
        return Caption(proposed.file, error=proposed.error or "no caption was generated")
    best = 0
    if config.context is not None:
        from tellapart.captioning.rerank import best_of

        best = best_of(proposed, np.zeros(len(candidates)), config)
    text, logp = candidates[best].text, candidates[best].logp
    return Caption(proposed.file, text, logp, sha256=proposed.sha256, candidates=tuple(candidates) if listed else ())
