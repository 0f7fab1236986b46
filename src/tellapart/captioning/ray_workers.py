"""What the workers of a cluster do for us: they propose captions of photos, and compute features.

Photos, and models that are folders, are read by their paths: every node must see them under the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from capscore.errors import UserError
from capscore.files import is_folder
from tellapart import models, numerics
from tellapart.album import DEFAULT, EMBEDDED
from tellapart.captioning import captioner as captioning
from tellapart.captioning.captioner import PhotoCaptioner, load
from tellapart.captioning.ray_cluster import Cluster
from tellapart.data.captions import Proposed
from tellapart.data.examples import Example
from tellapart.decoding.rules import Search
from tellapart.encoders import ENCODERS, PhotoEncoder
from tellapart.features import extracted
from tellapart.features.extracted import EncodedBatch, Extraction, encode_items
from tellapart.features.sources import Item as Source
from tellapart.models.parts import load_encoder
from tellapart.parallel import batched
from tellapart.recipe import EncoderConfig


class ClusterCaptioner(PhotoCaptioner):
    """Workers propose captions, which come in the order in which they are done; which is the best is chosen here."""

    def __init__(self, name: str | None, cluster: Cluster, *, device: str = "auto"):
        """name  none: the embedded default"""
        here = load(name, device=device)
        super().__init__(here.model, here.visual_input, here.device, here.for_clips)
        self._name = name and "+".join(_portable_name(one, EMBEDDED) for one in models.members(name))
        self._cluster, self._wanted_device = cluster, device

    def propose(
        self, sources: Iterable[Source], search: Search, *, samples: int = 0, temperature: float = 1.0
    ) -> Iterator[Proposed]:
        """sources: files"""
        # As many together as one process takes: sums that are made in another order end in other last digits.
        batches = list(batched(map(os.fspath, sources), captioning.BATCH))  # type: ignore[arg-type]
        identity = _identity(self)
        make = partial(_proposing, self._name, self._wanted_device, identity, search, samples, temperature)
        sent = [[str(Path(file).absolute()) for file in batch] for batch in batches]
        for number, proposed in self._cluster.map_batches(sent, make, gpus=self._wanted_device != "cpu"):
            for file, one in zip(batches[number], proposed, strict=True):
                yield replace(one, file=file)


def _proposing(
    name: str | None, device: str, identity: list[str], search: Search, samples: int, temperature: float
) -> Callable[[list[str]], list[Proposed]]:
    captioner = load(name, device=device)
    _require(identity, _identity(captioner), name or DEFAULT)

    def propose(files: list[str]) -> list[Proposed]:
        return list(captioner.propose(files, search, samples=samples, temperature=temperature))

    return propose


def _identity(captioner: PhotoCaptioner) -> list[str]:
    return [captioner.identity]


def extraction_on(cluster: Cluster, encoder: PhotoEncoder, device: str) -> Extraction:
    """Workers compute features, which come in the order in which they are done.

    encoder  as it is here; workers load their own
    """

    def extraction(examples: Sequence[Example]) -> Iterator[EncodedBatch]:
        batches = list(batched((Example(one.id, one.file) for one in examples), extracted.BATCH))
        make = partial(_load_encoding, config, device, encoder.weights_sha256)
        for _, batch in cluster.map_batches(batches, make, gpus=device != "cpu"):
            yield batch

    part = getattr(encoder, "part", None)  # of a tuned one, whose folder every node must have
    config = replace(encoder.config, name=_portable_name(str(part.folder) if part else encoder.config.name, ENCODERS))
    return extraction


def _load_encoding(config: EncoderConfig, device: str, sha256: str) -> Callable[[list[Example]], EncodedBatch]:
    encoder = load_encoder(config, numerics.choose_device(device))
    _require([sha256], [encoder.weights_sha256], config.name)

    def encode(examples: list[Example]) -> EncodedBatch:
        (batch,) = encode_items(encoder, encoder, examples)
        return replace(batch, arrays=[array.half().cpu() for array in batch.arrays])  # as the store keeps them

    return encode


def _require(here: list[str], theirs: list[str], name: str) -> None:
    if here != theirs:
        raise UserError(f"the workers' weights of {name} differ from those on this machine.")


def _portable_name(name: str, ours: Container[str]) -> str:
    """A name as every node can read it: a folder's is absolute.  ours: names that come with the package"""
    return str(Path(name).absolute()) if name not in ours and is_folder(Path(name)) else name
