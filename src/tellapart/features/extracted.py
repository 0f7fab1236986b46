"""The feature cache: one memory-mapped store per encoder and data set, filled once, resumable after a kill.

grid.f16     (rows, R, D) half precision
pooled.f16   (rows, D)
boxes.f16    (rows, R, 4): where regions are, if a detector finds them
count.i32    (rows, 1): how many of the regions an item has, if items differ in it
rows.jsonl   a line per photo: {"id", "file", "sha256", "bytes", "mtime_ns", "row"}
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from capscore import files
from capscore.progress import Progress
from tellapart.data.examples import Example, status_of
from tellapart.data.items import Unusable
from tellapart.data.media import clips, photos
from tellapart.data.store import Array, Rows, Store
from tellapart.data.stored import StoredFeatures
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.encoder import Features
from tellapart.errors import BadPhoto
from tellapart.parallel import batched, ordered_map

_FORMAT = 1
PHOTO_KEYS = ("file", "sha256", "bytes", "mtime_ns")
_LONGEST_NAME = 150  # bytes of a data set's name in that of its folder; file systems take 255 for the whole
BATCH = 16  # photos through the encoder at once; more is no faster on a CPU


def store_folder(root: Path, dataset: str, encoder: PhotoEncoder) -> Path:
    """Where a data set's store lies below a features folder."""
    config = encoder.config
    cells = "+".join(f"{side}x{side}" for side in config.grids)
    clip = (f"-{config.frames}f" if config.frames else "") + (f"-{config.around}around" if config.around else "")
    settings = f"{config.image_size}px-{cells}{clip}" + (f"-{config.pooling}" if config.pooling != "avg" else "")
    if config.detected:
        settings += f"-{config.detected}boxes-{encoder.identity['detector']['weights_sha256'][:8]}"
    return root / f"{safe_name(dataset)}.{safe_name(Path(config.name).name)}-{settings}"


def safe_name(name: str) -> str:
    """A name as part of a folder's."""
    safe = re.sub(r"[^\w.-]", "_", name) or "photos"
    if len(safe.encode()) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
        safe = f"{safe.encode()[:_LONGEST_NAME].decode(errors='ignore')}-{digest}"
    return safe


class FeatureStore(Store):
    """Features of a data set's photos, read from disk as they are asked for."""

    def __init__(self, folder: Path, encoder: PhotoEncoder):
        """Opens a store, or makes an empty one.  Refuses one that another encoder filled."""
        self.shape, self.encoder_identity = (encoder.regions, encoder.feature_size), encoder.identity
        manifest = {"format": _FORMAT, "encoder": encoder.identity, "regions": self.shape[0], "features": self.shape[1]}
        arrays: dict[str, tuple[int, ...] | Array] = {"grid": self.shape, "pooled": (encoder.pooled_size,)}
        if encoder.config.detected:
            arrays |= {"boxes": (self.shape[0], 4)}
        if encoder.config.detected or getattr(encoder, "counts_regions", False):
            arrays |= {"count": Array((1,), "i32")}
        super().__init__(folder, manifest, arrays, PHOTO_KEYS)

    def __contains__(self, example: Example) -> bool:
        return str(example.id) in self.lines

    def row(self, example: Example) -> int:
        return self.row_of(str(example.id))

    def count(self, example: Example) -> int:
        """How many regions an item has."""
        return self.count_of(self.row(example))

    def count_of(self, row: int) -> int:
        return int(self.read("count", [row])) if "count" in self.arrays else self.shape[0]

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        """(len(rows), R, D), or only the first regions"""
        return self.read("grid", rows, most)

    def pooled(self, rows: Rows) -> Tensor:
        """(len(rows), D)"""
        return self.read("pooled", rows)


def stored(root: Path, dataset: str, encoder: PhotoEncoder) -> FeatureStore | None:
    """What an encoder has seen of a data set, if it has seen any."""
    folder = store_folder(root, dataset, encoder)
    return FeatureStore(folder, encoder) if files.is_file(folder / "manifest.json") else None


@dataclass
class Extracted:
    store: StoredFeatures
    failed: dict[str, str]  # id -> why that photo has no features
    computed: int  # photos that were not there before


@dataclass
class EncodedBatch:
    """What became of some photos: rows for the store's arrays, and the photos' lines of the journal but for the row."""

    arrays: Sequence[Tensor]
    entries: list[dict[str, Any]]
    failed: list[tuple[Example, str]]  # why a photo has none


Made = Features | Sequence[Tensor]  # B rows for each of the store's arrays
Extraction = Callable[[Sequence[Example]], Iterator[EncodedBatch]]


def extract(
    examples: Sequence[Example], encoder: PhotoEncoder, folder: Path, extraction: Extraction | None = None
) -> Extracted:
    """Make sure that every photo is in the store; those that are there already and have not changed cost nothing.

    extraction  what computes the features with an encoder like this one (default: this process)
    """
    store = FeatureStore(folder, encoder)
    extraction = extraction or getattr(encoder, "encode_items", None) or partial(encode_items, encoder, encoder)
    failed, computed = add_missing(store, examples, extraction, f"features of {folder.name}")
    return Extracted(store, failed, computed)


def encode_items(
    encoder: PhotoEncoder, make: Callable[[NDArray[np.uint8]], Made], examples: Sequence[Example]
) -> Iterator[EncodedBatch]:
    """Items batch by batch, as an encoder takes them.

    make  pixels (B, ...), as the encoder reads them -> a tensor with B rows for each of the store's arrays
    """

    def of_batch(batch: Sequence[photos.Photo]) -> Made:
        return make(np.stack([photo.pixels for photo in batch]))

    return encode_batches(partial(read_item, encoder), of_batch, examples)


class HasHash(Protocol):
    """An item that was read, in any form."""

    @property
    def sha256(self) -> str:
        """Of the file's bytes."""


ItemRead = TypeVar("ItemRead", bound=HasHash)


def encode_batches(
    read: Callable[[Path], ItemRead], make: Callable[[Sequence[ItemRead]], Made], examples: Sequence[Example]
) -> Iterator[EncodedBatch]:
    """Items batch by batch, read by threads while others are encoded.

    make  B items -> a tensor with B rows for each of the store's arrays; raises BadPhoto where one cannot be used
    """

    def load(example: Example) -> tuple[Example, tuple[ItemRead, dict[str, Any]] | BadPhoto]:
        try:
            return example, _load(example, read)
        except BadPhoto as error:
            return example, error

    for batch in batched(ordered_map(load, examples), BATCH):
        good = [(example, *loaded) for example, loaded in batch if not isinstance(loaded, BadPhoto)]
        failed = [(example, loaded.reason) for example, loaded in batch if isinstance(loaded, BadPhoto)]
        try:
            yield _encoded(good, make, failed)
        except BadPhoto:  # one of them: the others go on
            for one in good:
                try:
                    yield _encoded([one], make, [])
                except BadPhoto as error:
                    failed.append((one[0], error.reason))
            yield EncodedBatch((), [], failed)


def _encoded(
    good: Sequence[tuple[Example, ItemRead, dict[str, Any]]],
    make: Callable[[Sequence[ItemRead]], Made],
    failed: list[tuple[Example, str]],
) -> EncodedBatch:
    arrays = make([photo for _, photo, _ in good]) if good else ()
    if isinstance(arrays, Features):
        counts = [] if arrays.counts is None else [arrays.counts[:, None]]
        arrays = [arrays.grid, arrays.pooled, *counts]
    return EncodedBatch(arrays, [entry for *_, entry in good], failed)


def add_missing(
    store: Store,
    examples: Sequence[Example],
    extraction: Extraction,
    title: str,
    *,
    quiet: bool = False,
    wait: bool = True,
) -> tuple[dict[str, str], int]:
    """Add what is missing or has changed; returns why photos failed, by id, and how many were computed.

    quiet  the caller names the photos that failed
    wait   for another process that fills the store: it may compute the same photos
    """
    if not missing_from(store, examples):
        return {}, 0
    failed: dict[str, str] = {}
    computed = 0
    with store.writing(wait=wait):
        missing = missing_from(store, examples)
        called = clips.unit(example.file for example in examples)
        with Progress(title, len(examples), unit=called, done=len(examples) - len(missing)) as bar:
            unusable = Unusable(bar.message)
            for batch in extraction(missing):
                for example, reason in batch.failed:
                    failed[str(example.id)] = reason
                    store.lines.pop(str(example.id), None)  # of what the photo was before it went bad
                    if not quiet:
                        unusable.add(str(example.file), reason)
                if batch.entries:
                    store.append(batch.arrays, batch.entries)
                    computed += len(batch.entries)
                bar.advance(len(batch.failed) + len(batch.entries))
            unusable.rest()
    return failed, computed


def missing_from(store: Store, examples: Sequence[Example]) -> list[Example]:
    """Photos that are not in the store, or are not what they were."""
    return [e for e in examples if str(e.id) not in store.lines or not unchanged(store.lines[str(e.id)], e.file)]


def unchanged(entry: dict[str, Any], file: Path) -> bool:
    """Whether the photo is still the one whose features we have.  Its date and place may change; its bytes decide."""
    stamp = _stamp(file)
    if stamp is None:
        return bool(entry["file"] == str(file))  # the photo has gone; its features are right, unless of another photo
    if (str(file), *stamp) == (entry["file"], entry["bytes"], entry["mtime_ns"]):
        return True
    try:
        return bool(stamp[0] == entry["bytes"] and photos.sha256(file) == entry["sha256"])
    except BadPhoto:
        return False  # it is there and cannot be read: to be tried, and named, like any other


def read_item(encoder: PhotoEncoder, source: clips.Source) -> photos.Photo:
    """The pixels of an item as its encoder takes them.

    A photo is fitted into a square (S, S, 3), a clip into that of its middle frame.  An encoder that sees more of clips
    has a method `read(source)` that gives pixels of a shape of its own; one that takes only one kind of items names it
    in `takes`.
    """
    own = getattr(encoder, "read", None)
    if own is not None:
        return own(source)  # type: ignore[no-any-return]
    return clips.read(source, encoder.config.image_size, encoder.fit)


def _load(example: Example, read: Callable[[Path], ItemRead]) -> tuple[ItemRead, dict[str, Any]]:
    """An item, and its line of the journal but for the row."""
    entry = entry_of(example)  # before it is read: if it changes meanwhile, the next run finds that it has
    photo = read(example.file)
    return photo, entry | {"sha256": photo.sha256}


def entry_of(example: Example, sha256: str = "") -> dict[str, Any]:
    """Its line of the journal but for the row."""
    length, date = _stamp(example.file) or (0, 0)
    return {"id": example.id, "file": str(example.file), "sha256": sha256, "bytes": length, "mtime_ns": date}


def _stamp(file: Path) -> tuple[int, int] | None:
    """A file's size and date; None if it is not there."""
    status = status_of(file)
    return None if status is None else (status.st_size, status.st_mtime_ns)
