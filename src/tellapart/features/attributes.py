"""The stream `attributes`: words of a photo with their probabilities, kept like features.

ids.i32           (rows, N) numbers of words in the source's own list, most probable first; -1 behind the last
probability.f32   (rows, N) of each; 0 behind the last
count.i32         (rows, 1) how many a photo has: none where no word is above the threshold

A captioner knows words by other ids.  They are looked up when attributes are read, and words that it does not have are
no attributes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tellapart.data.examples import Example
from tellapart.data.media.photos import Photo
from tellapart.data.store import Array, Rows, Store
from tellapart.data.stored import StoredFeatures
from tellapart.data.streams import Stream
from tellapart.data.tokenizers import Tokenizer, WordTokenizer
from tellapart.encoders import PhotoEncoder
from tellapart.features.extracted import (
    BATCH,
    PHOTO_KEYS,
    EncodedBatch,
    Extracted,
    add_missing,
    encode_batches,
    entry_of,
    safe_name,
)
from tellapart.parallel import batched

SIZE = 2  # a word's id and its probability
GIVES = "attributes"  # what an identity says


@dataclass(frozen=True)
class AttributeSource:
    """Takes the place of an encoder: a tagger, a retriever or a detector.

    name           as folders and messages have it
    words          (W,) that it knows
    prepare        a photo, by its path or opened -> what is kept of it for `probabilities`, and the hash of its file
    probabilities  of B photos, (B, W)
    made_by        what attributes must share to be used together, beside the fields here
    most           N: attributes of a photo
    threshold      words that are no more probable than this are no attributes
    part           what a model must carry to use it (`models.parts`), if anything
    region_encoder the encoder whose regions (R, D) `probabilities` takes in place of a photo, if it does
    imported       the features that it takes instead, where another program made them (`imported.ImportedFeatures`)
    """

    name: str
    words: tuple[str, ...]
    prepare: Callable[[Any], tuple[NDArray[Any], str]]
    probabilities: Callable[[Sequence[NDArray[Any]]], Tensor]
    made_by: dict[str, Any]
    most: int
    threshold: float
    part: object = None
    region_encoder: PhotoEncoder | None = None
    imported: Any = None
    feature_size: int = SIZE

    @property
    def identity(self) -> dict[str, Any]:
        chosen = {"name": self.name, "gives": GIVES, "most": self.most, "threshold": self.threshold}
        return chosen | self.made_by

    def of(self, contents: Sequence[NDArray[Any]]) -> tuple[Tensor, Tensor]:
        """Numbers of words (B, N), -1 where there is none, and their probabilities (B, N), most probable first."""
        probability, ids = self.probabilities(contents).float().cpu().topk(min(self.most, len(self.words)))
        has = probability > self.threshold
        return ids.where(has, -1), probability.where(has, 0.0)


def captioner_ids(words: Sequence[str], tokenizer: Tokenizer) -> Tensor:
    """(W,) the id of each word in a captioner's vocabulary; -1 where it has none, or not as one token

    >>> captioner_ids(["dog", "kazoo"], WordTokenizer(["a", "dog"]))
    tensor([ 5, -1])
    """
    unknown = tokenizer.unk if isinstance(tokenizer, WordTokenizer) else None
    tokens = map(tokenizer.encode, words)
    return torch.tensor([own[0] if len(own) == 1 and own[0] != unknown else -1 for own in tokens])


def stream_of(ids: Tensor, probability: Tensor, known: Tensor) -> Tensor:
    """(B, N, 2), as captioners take it: rows without a word have the id -1

    ids    (B, N) numbers in a source's list
    known  (W,) the captioner's id of each
    """
    own = torch.where(ids >= 0, known[ids.long().clamp(min=0)], -1)
    return torch.stack([own.float(), probability], -1)


class AttributeStore(Store):
    """The attributes of a data set's photos, to those that learn from them."""

    def __init__(self, folder: Path, source: AttributeSource, made_from: str = ""):
        """made_from  the digest of the imported features, if it comes of such"""
        most = min(source.most, len(source.words))
        self.shape, self.words = (most, SIZE), source.words
        self._known = torch.arange(len(source.words))
        arrays = {"ids": Array((most,), "i32"), "probability": Array((most,), "f32"), "count": Array((1,), "i32")}
        manifest = {"format": 1, "encoder": source.identity} | ({"made_from": made_from} if made_from else {})
        super().__init__(folder, manifest, arrays, PHOTO_KEYS)

    def use(self, tokenizer: Tokenizer) -> None:
        """From now on words have the ids of this vocabulary."""
        self._known = captioner_ids(self.words, tokenizer)

    def __contains__(self, example: Example) -> bool:
        return str(example.id) in self.lines

    def row(self, example: Example) -> int:
        return self.row_of(str(example.id))

    def count(self, example: Example) -> int:
        return int(self.read("count", [self.row(example)]))

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        """(len(rows), most, 2)"""
        return stream_of(self.read("ids", rows, most), self.read("probability", rows, most), self._known)

    def pooled(self, rows: Rows) -> Tensor:
        """(len(rows), 2)"""
        return self.grid(rows).mean(1)


def extract(
    examples: Sequence[Example],
    source: AttributeSource,
    root: Path,
    dataset: str,
    regions: StoredFeatures | None = None,
    made_from: str = "",
) -> Extracted:
    """The attributes of a data set's photos: made now where they are missing.

    regions    of the photos, for a source over imported features
    made_from  the digest of their import
    """
    folder = folder_of(source, root, dataset)
    store = AttributeStore(folder, source, made_from)
    extraction = partial(encode_batches, lambda file: Photo(*source.prepare(file)), partial(_rows, source))
    if regions is not None:
        extraction = partial(_of_regions, source, regions, made_from)
    failed, computed = add_missing(store, examples, extraction, f"attributes of {folder.name}")
    return Extracted(store, failed, computed)


def folder_of(source: AttributeSource, root: Path, dataset: str) -> Path:
    above = f"-above{source.threshold:g}" if source.threshold else ""
    return root / f"{safe_name(dataset)}.{safe_name(source.name)}-attributes-{source.most}{above}"


def _of_regions(
    source: AttributeSource, regions: StoredFeatures, made_from: str, examples: Sequence[Example]
) -> Iterator[EncodedBatch]:
    """From stored regions; the photos need not be there."""
    for batch in batched(examples, BATCH):
        good, failed = [one for one in batch if one in regions], [one for one in batch if one not in regions]
        photos = [
            Photo(regions.grid([regions.row(one)], regions.count(one))[0].numpy(), f"{made_from} {one.id}")
            for one in good
        ]
        entries = [entry_of(one, photo.sha256) for one, photo in zip(good, photos, strict=True)]
        without = [(one, f"has no imported features ({source.imported.name})") for one in failed]
        yield EncodedBatch(_rows(source, photos) if good else (), entries, without)


def _rows(source: AttributeSource, photos: Sequence[Photo]) -> Sequence[Tensor]:
    ids, probability = source.of([photo.pixels for photo in photos])
    return [ids, probability, (ids >= 0).sum(1, keepdim=True)]


def as_stream(source: AttributeSource, contents: Sequence[NDArray[Any]], known: Tensor) -> Stream:
    """Of photos that a captioner is about to see."""
    ids, probability = source.of(contents)
    return Stream(stream_of(ids, probability, known), ids >= 0)


def named(
    source: AttributeSource, contents: Sequence[NDArray[Any]], known: Tensor | None = None
) -> list[list[tuple[str, float]]]:
    """Of each photo its words and their probabilities, most probable first.

    known  (W,) the captioner's id of each; words that it does not know are left out
    """
    ids, probability = (part.tolist() for part in source.of(contents))
    allowed = set(range(len(source.words)) if known is None else torch.nonzero(known >= 0).flatten().tolist())
    return [
        [(source.words[word], chance) for word, chance in zip(*own, strict=True) if word in allowed]
        for own in zip(ids, probability, strict=True)
    ]


def scores_of(probabilities: Sequence[NDArray[np.float32]]) -> Tensor:
    """For sources that know a photo's probabilities as soon as they have read it."""
    return torch.from_numpy(np.stack(probabilities))
