"""A collection of photos as a retriever sees them: one unit vector each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tellapart.features.photo_cache import ReadPhotos
from tellapart.features.pooled import Pooled, pooled_features
from tellapart.retrievers.retriever import Retriever

_BATCH = 4096


@dataclass
class Embedded(ReadPhotos):
    vectors: NDArray[np.float32]  # (P, E) unit norm
    features: NDArray[np.float32] | None = None  # (P, D) the encoder's, by which near-duplicates are known


def embed_photos(retriever: Retriever, files: Sequence[str]) -> Embedded:
    """The vectors of photos.  Features, which are what costs, are kept: all retrievers on an encoder share them."""
    if retriever.encoder is None:
        raise ValueError(f"{retriever.name} sees references, not photos")
    return embed(retriever, pooled_features(retriever.encoder, files))


def embed(retriever: Retriever, seen: Pooled) -> Embedded:
    """The vectors of photos whose features are at hand."""
    parts = [retriever.embed_images(part).float().cpu() for part in torch.from_numpy(seen.vectors).split(_BATCH)]  # type: ignore[no-untyped-call]
    vectors: NDArray[np.float32] = torch.cat(parts).numpy() if seen.files else np.zeros((0, retriever.size), np.float32)
    return Embedded(seen.files, seen.sha256, seen.failed, vectors, seen.vectors)
