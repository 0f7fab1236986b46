"""The vectors by which a retriever, or an encoder alone, knows photos and captions; photos' are kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tellapart import places
from tellapart.data import photos
from tellapart.data.examples import Example
from tellapart.data.features import extract
from tellapart.encoders import ENCODERS, EncoderConfig
from tellapart.encoders.encoder import Encoder
from tellapart.errors import BadPhoto, UserError
from tellapart.neighbours.search import Vectors
from tellapart.numerics import choose_device
from tellapart.parallel import batched
from tellapart.progress import Progress
from tellapart.retrievers import DEFAULT
from tellapart.retrievers.embeddings import embed_photos
from tellapart.retrievers.loading import load
from tellapart.retrievers.retriever import Retriever

_CAPTIONS = 512  # between two steps of the progress bar


@dataclass
class Known:
    """The photos that could be read."""

    positions: NDArray[np.int64]  # (P,) among those given
    vectors: Vectors  # (P, E)
    sha256: list[str]  # of each photo's bytes
    failed: dict[str, str]  # file -> why not


class Source(Protocol):
    name: str
    sha256: str  # of the weights
    sees_photos: bool  # or else knows them only by their captions

    def of_photos(self, examples: Sequence[Example]) -> Known: ...

    def of_captions(self, captions: Sequence[str]) -> Vectors: ...


def source(name: str | None, device: str = "auto") -> Source:
    """By the name of an encoder or of a retriever; none: the default retriever."""
    if name in ENCODERS:
        return EncoderSource(Encoder(EncoderConfig(str(name), grid=1), choose_device(device)))
    return RetrieverSource(load(name or DEFAULT, device=device))


class EncoderSource:
    """Pooled features: of photos only, and not of one length."""

    sees_photos = True

    def __init__(self, encoder: Encoder):
        self.encoder, self.name, self.sha256 = encoder, encoder.config.name, encoder.weights_sha256

    def of_photos(self, examples: Sequence[Example]) -> Known:
        root = places.cache()
        if root is not None:
            try:
                return self._read(examples, root / "embeddings" / f"{self.name}-{self.sha256[:16]}")
            except UserError:  # no room, no right to write, or another process is at it: then without a cache
                pass
        with TemporaryDirectory(prefix="tellapart-") as folder:
            return self._read(examples, Path(folder))

    def _read(self, examples: Sequence[Example], folder: Path) -> Known:
        names = [str(example.file.absolute()) for example in examples]
        extracted = extract([Example(name, Path(name)) for name in dict.fromkeys(names)], self.encoder, folder)
        there = [position for position, name in enumerate(names) if name not in extracted.failed]
        lines = [extracted.store.lines[names[position]] for position in there]
        pooled = extracted.store.pooled([int(line["row"]) for line in lines])
        failed = {
            str(e.file): extracted.failed[n] for e, n in zip(examples, names, strict=True) if n in extracted.failed
        }
        return Known(np.array(there, np.int64), pooled.numpy(), [str(line["sha256"]) for line in lines], failed)

    def of_captions(self, captions: Sequence[str]) -> Vectors:
        raise UserError(f"{self.name} reads no captions; give --by caption a retriever.")


class RetrieverSource:
    def __init__(self, retriever: Retriever):
        self.retriever, self.name, self.sha256 = retriever, retriever.name, retriever.sha256
        self.sees_photos = retriever.sees == "photos"

    def of_photos(self, examples: Sequence[Example]) -> Known:
        if not self.sees_photos:
            return self._by_references(examples)
        names = [str(example.file) for example in examples]
        found = embed_photos(self.retriever, names)
        there = [position for position, name in enumerate(names) if name not in found.failed]
        return Known(np.array(there, np.int64), found.vectors, found.sha256, found.failed)

    def _by_references(self, examples: Sequence[Example]) -> Known:
        """A text-to-text retriever: the mean of the captions' vectors.  The photo is opened for its hash alone."""
        known = Known(np.zeros(0, np.int64), np.zeros((0, self.retriever.size), np.float32), [], {})
        there = []
        for position, example in enumerate(examples):
            try:
                known.sha256.append(photos.sha256(example.file))
                there.append(position)
            except BadPhoto as error:
                known.failed[str(example.file)] = error.reason
        if there:
            known.vectors = _numpy(self.retriever.embed_references([examples[p].captions for p in there]))
        known.positions = np.array(there, np.int64)
        return known

    def of_captions(self, captions: Sequence[str]) -> Vectors:
        """(M, E)"""
        parts = [np.zeros((0, self.retriever.size), np.float32)]
        with Progress("captions", len(captions), unit="caption") as bar:
            for batch in batched(captions, _CAPTIONS):
                parts.append(_numpy(self.retriever.embed_captions(batch)))
                bar.advance(len(batch))
        return np.concatenate(parts)


def _numpy(tensor: Tensor) -> Vectors:
    array: Vectors = tensor.float().cpu().numpy()
    return array
