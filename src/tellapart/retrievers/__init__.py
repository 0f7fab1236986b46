"""Retrievers: how well does a caption fit a photo?  The table of those that can be trained, and of those at hand.

B photos, D feature size, N = B*K captions grouped by photo, T words, E embedding size.

A retriever puts photos and captions into one space of unit vectors, in which their cosine is the similarity.  Nothing
here loads torch, so that recipes can be read and models listed at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

HERE = Path(__file__).parent
EMBEDDED = {name: HERE / name for name in ("word", "judge")}  # name: model folder
DEFAULT = "word"
MINILM = "minilm"  # text to text, by a sentence encoder that is installed apart


class Towers(Protocol):
    """A network that can be trained and used as a retriever.

    `captions` are in the form that the network's reader gives: token ids (N, T), or sentence vectors (N, S).
    """

    log_scale: Tensor  # exp of it multiplies a cosine before a softmax

    def embed_images(self, pooled: Tensor) -> Tensor:
        """(B, D) -> (B, E) unit norm"""

    def embed_captions(self, captions: Tensor) -> Tensor:
        """(N, ...) -> (N, E) unit norm"""

    def __call__(self, pooled: Tensor | None, captions: Tensor) -> tuple[Tensor, Tensor]:
        """The two sides that should meet: (N, E) captions and (B, E) what they are about, K = N // B."""


@dataclass(frozen=True)
class Entry:
    """A line of the table: the class in `towers.py`, how captions are read for it, and what it is."""

    name: str  # of the class; its settings are the dataclass `<name>Config` beside it
    reads: Literal["words", "sentences"]
    sees: Literal["photos", "references"]
    description: str
    tiny: dict[str, int]  # settings for a test

    def load(self) -> tuple[type[nn.Module], type]:
        """The network's class and the dataclass of its settings."""
        towers = import_module("tellapart.retrievers.towers")
        return getattr(towers, self.name), getattr(towers, f"{self.name}Config")


_WORDS = {"size": 32, "word_size": 16, "channels": 16}

RETRIEVERS = {
    "word_tower": Entry(
        "WordTower",
        "words",
        "photos",
        "a small convolution over words beside image features: cheap enough for rewards",
        _WORDS,
    ),
    "dual": Entry(
        "Dual",
        "sentences",
        "photos",
        "projections of a frozen sentence encoder (MiniLM) and of image features",
        {"size": 32, "hidden": 16},
    ),
    "vse": Entry(
        "VSE",
        "words",
        "photos",
        "VSE++ (Faghri et al., 2018): a GRU over words, made for the hinge with hardest negatives",
        {"size": 32, "word_size": 16},
    ),
    "text_tower": Entry(
        "TextTower",
        "words",
        "references",
        "text to text: a small convolution over words that brings captions of one photo together",
        _WORDS,
    ),
}
