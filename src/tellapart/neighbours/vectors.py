"""The vectors by which a retriever, or an encoder alone, knows photos and captions; photos' are kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from capscore.errors import UserError
from capscore.progress import Progress
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.encoders import ENCODERS, PhotoEncoder
from tellapart.encoders.loading import load as load_encoder
from tellapart.errors import BadPhoto
from tellapart.features.pooled import Pooled, pooled_features
from tellapart.models.retrievers import load
from tellapart.neighbours.search import Vectors
from tellapart.neighbours.thresholds import duplicates_above
from tellapart.numerics import choose_device
from tellapart.parallel import batched
from tellapart.recipe import EncoderConfig
from tellapart.retrievers import DEFAULT
from tellapart.retrievers.embeddings import embed
from tellapart.retrievers.retriever import Retriever

_CAPTIONS = 512  # between two steps of the progress bar


@dataclass
class Known:
    """The photos that could be read."""

    positions: NDArray[np.int64]  # (P,) among those given
    vectors: Vectors  # (P, E)
    sha256: list[str]  # of each photo's bytes
    failed: dict[str, str]  # file -> why not
    looks: Vectors | None = None  # (P, D) what near-duplicates are known by, if not by these vectors


class Source(Protocol):
    name: str
    sha256: str  # of the weights
    duplicates_above: float  # the cosine that was measured for its encoder
    sees_photos: bool  # or else knows them only by their captions

    def of_photos(self, examples: Sequence[Example]) -> Known: ...

    def of_captions(self, captions: Sequence[str]) -> Vectors: ...


def source(name: str | None, device: str = "auto") -> Source:
    """By the name of an encoder or of a retriever; none: the default retriever."""
    if name in ENCODERS:
        return EncoderSource(load_encoder(EncoderConfig(str(name), grid=1), choose_device(device)))
    return RetrieverSource(load(name or DEFAULT, device=device))


class EncoderSource:
    """Pooled features: of photos only, and not of one length."""

    sees_photos = True

    def __init__(self, encoder: PhotoEncoder):
        self.encoder, self.name, self.sha256 = encoder, encoder.config.name, encoder.weights_sha256
        self.duplicates_above = duplicates_above(encoder)

    def of_photos(self, examples: Sequence[Example]) -> Known:
        return _known(examples, pooled_features(self.encoder, [str(example.file) for example in examples]))

    def of_captions(self, captions: Sequence[str]) -> Vectors:
        raise UserError(f"{self.name} reads no captions; give --by caption a retriever.")


class RetrieverSource:
    def __init__(self, retriever: Retriever):
        self.retriever, self.name, self.sha256 = retriever, retriever.name, retriever.sha256
        self.sees_photos = retriever.sees == "photos"
        self.duplicates_above = duplicates_above(retriever.encoder)

    def of_photos(self, examples: Sequence[Example]) -> Known:
        if not self.sees_photos:
            return self._by_references(examples)
        assert self.retriever.encoder is not None
        seen = pooled_features(self.retriever.encoder, [str(example.file) for example in examples])
        return replace(_known(examples, seen), vectors=embed(self.retriever, seen).vectors, looks=seen.vectors)

    def _by_references(self, examples: Sequence[Example]) -> Known:
        """A text-to-text retriever: the mean of the captions' vectors.  The photo is opened for its hash alone."""
        known = Known(np.zeros(0, np.int64), np.zeros((0, self.retriever.size), np.float32), [], {})
        usable = []
        for position, example in enumerate(examples):
            try:
                known.sha256.append(photos.sha256(example.file))
                usable.append(position)
            except BadPhoto as error:
                known.failed[str(example.file)] = error.reason
        if usable:
            known.vectors = _numpy(self.retriever.embed_references([examples[p].captions for p in usable]))
        known.positions = np.array(usable, np.int64)
        return known

    def of_captions(self, captions: Sequence[str]) -> Vectors:
        """(M, E)"""
        parts = [np.zeros((0, self.retriever.size), np.float32)]
        with Progress("captions", len(captions), unit="caption") as bar:
            for batch in batched(captions, _CAPTIONS):
                parts.append(_numpy(self.retriever.embed_captions(batch)))
                bar.advance(len(batch))
        return np.concatenate(parts)


def _known(examples: Sequence[Example], found: Pooled) -> Known:
    usable = [position for position, example in enumerate(examples) if str(example.file) not in found.failed]
    return Known(np.array(usable, np.int64), found.vectors, found.sha256, found.failed)


def _numpy(tensor: Tensor) -> Vectors:
    array: Vectors = tensor.float().cpu().numpy()
    return array
