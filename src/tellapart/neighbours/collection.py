"""From photos, folders and data files to look-alike groups, by the vectors of a retriever or of an encoder alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from capscore import files
from capscore.errors import UserError
from capscore.progress import Progress
from tellapart.data import items
from tellapart.data.examples import Example
from tellapart.data.media import photos as photo_files
from tellapart.encoders import ENCODERS, PhotoEncoder
from tellapart.encoders.loading import load as load_encoder
from tellapart.errors import BadPhoto
from tellapart.features.extracted import pooled_features
from tellapart.models.retrievers import load
from tellapart.neighbours.groups import (
    By,
    Calibrated,
    Groups,
    Photo,
    Rule,
    alike_above,
    duplicates_above,
    quantile_of_pairs,
    sampled,
)
from tellapart.neighbours.mining import Captions, mine
from tellapart.neighbours.search import Metric, Vectors
from tellapart.numerics import choose_device
from tellapart.parallel import batched
from tellapart.recipe import EncoderConfig
from tellapart.retrievers import DEFAULT
from tellapart.retrievers.retriever import Retriever, embed

_CAPTIONS = 512  # between two steps of the progress bar

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def look_alikes(
    photos: Paths,
    k: int = 5,
    *,
    by: By = "image",
    metric: Metric = "cosine",
    retriever: str | None = None,
    split: str | None = None,
    duplicates_above: float | Calibrated = "calibrated",
    alike_above: float | Calibrated | None = "calibrated",
) -> Groups:
    """The photos, k at most, that look like each photo; photos, folders of photos or data files.

    by                what is compared: "image", photos; "caption", a photo with the captions of the others
    retriever         the name of a retriever or of an encoder, or a folder
    split             only this part of a data file; default: each part by itself
    duplicates_above  photos with a cosine above this are near-duplicates; default: what was measured for the encoder
    alike_above       no look-alike has a cosine below this; None: the k nearest are look-alikes, however unlike;
                      default: what was measured for the retriever, or a quantile of the collection's pairs

    Photos that cannot be read are in `Groups.failed`, copies and bursts in `Groups.sets()`.

    Example:
        >>> for group in tellapart.look_alikes("holiday/", k=3):
        ...     print(group.file, [(other.file, other.similarity) for other in group.look_alikes], group.copies)
        holiday/a.jpg [('holiday/b.jpg', 0.9...)] ['holiday/copy of a.jpg']
        holiday/b.jpg [('holiday/a.jpg', 0.9...)] []
        holiday/copy of a.jpg [('holiday/b.jpg', 0.9...)] ['holiday/a.jpg']
    """
    return group(
        collect(photos, split),
        source(retriever),
        Rule(by, metric, k),
        duplicates_above=duplicates_above,
        alike_above=alike_above,
    )


@dataclass
class Collection:
    examples: list[Example]
    problems: list[str] = field(default_factory=list)  # a sentence for each problem


def collect(paths: Paths, split: str | None = None) -> Collection:
    """The photos in the order given, each once; `split` takes only that part."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    opened, problems = items.open_all([os.fspath(path) for path in paths], split=split)
    photos: dict[tuple[str, int | str], Example] = {}
    for example in (example for dataset in opened for example in dataset.examples):
        photos.setdefault((str(example.file), example.id), example)
    if not photos:
        raise UserError(problems[0] if problems else "there are no photos to compare.")
    return Collection(list(photos.values()), problems)


def group(
    collection: Collection,
    vectors: Source,
    rule: Rule,
    *,
    duplicates_above: float | Calibrated = "calibrated",
    alike_above: float | Calibrated | None = "calibrated",
) -> Groups:
    """The collection's groups by these vectors; the rule gets their name and the thresholds."""
    if rule.by == "image" and not vectors.sees_photos:
        raise UserError(f"{vectors.name} knows photos by their captions only; it can mine --by caption.")
    if rule.by == "caption" and not any(example.captions for example in collection.examples):
        raise UserError("no photo has a caption, so none can be found by caption; use --by image.")
    if duplicates_above == "calibrated":
        duplicates_above = vectors.duplicates_above
    rule = replace(rule, duplicates_above=duplicates_above, retriever=vectors.name, retriever_sha256=vectors.sha256)
    if rule.by == "caption":
        vectors.of_captions([])  # one that reads none says so before it has read all photos
    if not vectors.sees_photos:  # vectors of captions do not tell which photos are nearly the same
        rule = replace(rule, duplicates_above=1.0)
    of_photos = vectors.of_photos(collection.examples)
    examples = [collection.examples[position] for position in of_photos.positions]
    photos = [Photo(str(e.file), h, e.id, e.split) for e, h in zip(examples, of_photos.sha256, strict=True)]
    captions = None
    if rule.by == "caption":
        owners = np.repeat(np.arange(len(examples)), [len(example.captions) for example in examples])
        captions = Captions(vectors.of_captions([text for example in examples for text in example.captions]), owners)
    groups = mine(photos, of_photos.vectors, rule, captions, appearance=of_photos.looks)
    groups.failed = of_photos.failed
    if alike_above == "calibrated":
        alike_above = vectors.alike_above.get(rule.by) if rule.metric == "cosine" else None
        if alike_above is None:
            alike_above = _quantile(groups, of_photos.vectors, captions)
    groups.keep_above(alike_above)
    return groups


def _quantile(groups: Groups, vectors: Vectors, captions: Captions | None) -> float | None:
    """The similarity that only the most similar pairs of the collection's photos reach."""
    some = sampled(len(vectors))
    sample = vectors[some].astype(np.float64)
    if captions is not None:
        here = np.isin(captions.photo, some)
        fits = _cosines(sample, captions.vectors[here].astype(np.float64))
        scores = np.full((len(some), len(some)), -np.inf)
        np.maximum.at(scores.T, np.searchsorted(some, captions.photo[here]), fits.T)
    elif groups.rule.metric == "euclidean":
        squares = (sample**2).sum(1)
        scores = np.sqrt(np.maximum(squares[:, None] + squares - 2 * sample @ sample.T, 0))
    else:
        scores = _cosines(sample, sample)
    set_of = {position: number for number, same in enumerate(groups.sets()) for position in same.positions}
    sets = np.array([set_of.get(position, -1 - position) for position in some.tolist()])
    different = (sets[:, None] != sets) & np.isfinite(scores)
    return quantile_of_pairs(scores, different, distances=groups.rule.metric == "euclidean")


def _cosines(rows: NDArray[np.float64], columns: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(columns, axis=1)
    cosines: NDArray[np.float64] = rows @ columns.T / np.where(norms > 0, norms, 1)
    return cosines


def captions_of(collection: Collection, instead: Mapping[str, Sequence[str]] | None = None) -> dict[str, str]:
    """File -> one caption, where there is one: the first in the data file.

    instead   captions that are taken, by what they call a photo: its id, its file, or another name of that file
    """
    of_data = {str(example.file): example.captions[0] for example in collection.examples if example.captions}
    if instead is None:
        return of_data
    by_file = {str(files.real(Path(name))): texts for name, texts in instead.items() if "\0" not in name}
    taken = {
        str(example.file): texts[0]
        for example in collection.examples
        if (texts := instead.get(str(example.id)) or by_file.get(str(files.real(example.file))))
    }
    if not taken:
        raise UserError("none of the captions is of these photos; captions go by a photo's id or file.")
    return of_data | taken


# The vectors by which a retriever, or an encoder alone, compares photos; they are kept on disk


@dataclass
class CollectionVectors:
    """Vectors of the photos that could be read."""

    positions: NDArray[np.int64]  # (P,) among those asked for
    vectors: Vectors  # (P, E)
    sha256: list[str]  # of each photo's bytes
    failed: dict[str, str]  # file -> why not
    looks: Vectors | None = None  # (P, D) features by which near-duplicates are found, if not by these vectors


class Source(Protocol):
    name: str
    sha256: str  # of the weights
    duplicates_above: float  # the cosine that was measured for its encoder
    alike_above: Mapping[str, float]  # those that were measured for its vectors, by image and by caption
    sees_photos: bool  # or else compares them only by their captions

    def of_photos(self, examples: Sequence[Example]) -> CollectionVectors: ...

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
        self.alike_above: Mapping[str, float] = alike_above(encoder)

    def of_photos(self, examples: Sequence[Example]) -> CollectionVectors:
        pooled = pooled_features(self.encoder, [str(example.file) for example in examples])
        usable = [position for position, example in enumerate(examples) if str(example.file) not in pooled.failed]
        return CollectionVectors(np.array(usable, np.int64), pooled.vectors, pooled.sha256, pooled.failed)

    def of_captions(self, captions: Sequence[str]) -> Vectors:
        raise UserError(f"{self.name} reads no captions; give --by caption a retriever.")


class RetrieverSource:
    def __init__(self, retriever: Retriever):
        self.retriever, self.name, self.sha256 = retriever, retriever.name, retriever.sha256
        self.sees_photos = retriever.sees == "photos"
        self.duplicates_above, self.alike_above = duplicates_above(retriever.encoder), retriever.alike_above

    def of_photos(self, examples: Sequence[Example]) -> CollectionVectors:
        if not self.sees_photos:
            return self._by_references(examples)
        assert self.retriever.encoder is not None
        pooled = pooled_features(self.retriever.encoder, [str(example.file) for example in examples])
        usable = [position for position, example in enumerate(examples) if str(example.file) not in pooled.failed]
        vectors = embed(self.retriever, pooled).vectors
        return CollectionVectors(np.array(usable, np.int64), vectors, pooled.sha256, pooled.failed, pooled.vectors)

    def _by_references(self, examples: Sequence[Example]) -> CollectionVectors:
        """A text-to-text retriever: the mean of the captions' vectors.  The photo is opened for its hash alone."""
        hashes, failed, usable = list[str](), dict[str, str](), list[int]()
        for position, example in enumerate(examples):
            try:
                hashes.append(photo_files.sha256(example.file))
                usable.append(position)
            except BadPhoto as error:
                failed[str(example.file)] = error.reason
        vectors = np.zeros((0, self.retriever.size), np.float32)
        if usable:
            references = [examples[position].captions for position in usable]
            vectors = self.retriever.embed_references(references).numpy(force=True).astype(np.float32)
        return CollectionVectors(np.array(usable, np.int64), vectors, hashes, failed)

    def of_captions(self, captions: Sequence[str]) -> Vectors:
        """(M, E)"""
        parts = [np.zeros((0, self.retriever.size), np.float32)]
        with Progress("captions", len(captions), unit="caption") as bar:
            for batch in batched(captions, _CAPTIONS):
                parts.append(self.retriever.embed_captions(batch).numpy(force=True).astype(np.float32))
                bar.advance(len(batch))
        return np.concatenate(parts)
