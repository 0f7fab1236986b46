"""Filling stores: items that are missing or have changed are read by threads, encoded and appended.

A kill costs at most one batch.
A line of the journal is {"id", "file", "sha256", "bytes", "mtime_ns", "row"}.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from capscore.errors import UserError
from capscore.files import is_file
from capscore.printable import print_message
from capscore.progress import Progress
from tellapart import paths
from tellapart.data.examples import Example, file_of, status_of
from tellapart.data.items import Unusable
from tellapart.data.media import clips, photos
from tellapart.data.media.photos import Ready
from tellapart.data.store import Store, StoredFeatures
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.encoder import Features, FrameEncoder
from tellapart.errors import BadPhoto
from tellapart.parallel import batched, ordered_map

PHOTO_KEYS = ("file", "sha256", "bytes", "mtime_ns")
_LONGEST_NAME = 150  # bytes of a data set's name in that of its folder; file systems take 255 for the whole
BATCH = 16  # photos through the encoder at once; more is no faster on a CPU


def safe_name(name: str) -> str:
    """A name as part of a folder's."""
    safe = re.sub(r"[^\w.-]", "_", name) or "photos"
    if len(safe.encode()) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
        safe = f"{safe.encode()[:_LONGEST_NAME].decode(errors='ignore')}-{digest}"
    return safe


@dataclass
class Extracted:
    store: StoredFeatures
    failed: dict[str, str]  # id -> why that photo has no features
    computed: int  # photos that were not there before


@dataclass
class EncodedBatch:
    """Rows of some photos for the store's arrays, and the photos' lines of the journal but for the row."""

    arrays: Sequence[Tensor]
    entries: list[dict[str, Any]]
    failed: list[tuple[Example, str]]  # why a photo has none


class EncodedRows(NamedTuple):
    """B rows for each of a store's arrays, and where items differ in it how many regions each has."""

    arrays: Sequence[Tensor]
    counts: Sequence[int] | None = None


Extraction = Callable[[Sequence[Example]], Iterator[EncodedBatch]]


def encode_items(
    encoder: PhotoEncoder, make: Callable[[NDArray[np.uint8]], EncodedRows | Features], examples: Sequence[Example]
) -> Iterator[EncodedBatch]:
    """Items batch by batch, as an encoder takes them.

    make  of pixels (B, ...), as the encoder reads them
    """

    def of_batch(batch: Sequence[photos.Photo]) -> EncodedRows:
        output = make(np.stack([photo.pixels for photo in batch]))
        if isinstance(output, EncodedRows):
            return output
        return EncodedRows([output.grid, output.pooled], None if output.counts is None else output.counts.tolist())

    return encode_batches(partial(read_item, encoder), of_batch, examples)


ItemRead = TypeVar("ItemRead", bound=Ready)
Result = TypeVar("Result")


def encode_batches(
    read: Callable[[Path], ItemRead], make: Callable[[Sequence[ItemRead]], EncodedRows], examples: Sequence[Example]
) -> Iterator[EncodedBatch]:
    """Items batch by batch, read by threads while others are encoded.

    make  raises BadPhoto where one of the items cannot be used
    """

    def load(example: Example) -> tuple[Example, tuple[ItemRead, dict[str, Any]] | BadPhoto]:
        entry = entry_of(example)  # before it is read: if it changes meanwhile, the next run finds that it has
        try:
            photo = read(example.file)
        except BadPhoto as error:
            return example, error
        return example, (photo, entry | {"sha256": photo.sha256})

    for batch in batched(ordered_map(load, examples), BATCH):
        good = [(example, *loaded) for example, loaded in batch if not isinstance(loaded, BadPhoto)]
        failed = [(example, loaded.reason) for example, loaded in batch if isinstance(loaded, BadPhoto)]
        try:
            yield _encoded(good, make, failed)
        except BadPhoto:  # one of them: the others go on
            for item in good:
                try:
                    yield _encoded([item], make, [])
                except BadPhoto as error:
                    failed.append((item[0], error.reason))
            yield EncodedBatch((), [], failed)


def _encoded(
    good: Sequence[tuple[Example, ItemRead, dict[str, Any]]],
    make: Callable[[Sequence[ItemRead]], EncodedRows],
    failed: list[tuple[Example, str]],
) -> EncodedBatch:
    rows = make([photo for _, photo, _ in good]) if good else EncodedRows(())
    entries = [entry for *_, entry in good]
    if rows.counts is not None:
        entries = [entry | {"regions": count} for entry, count in zip(entries, rows.counts, strict=True)]
    return EncodedBatch(rows.arrays, entries, failed)


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
    """True of the photo whose features are stored.  Its date and place may have changed; its bytes decide."""
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
    read = getattr(encoder, "read", None)
    if read is not None:
        return read(source)  # type: ignore[no-any-return]
    return clips.read(source, encoder.config.image_size, encoder.fit)


def entry_of(example: Example, sha256: str = "") -> dict[str, Any]:
    """Its line of the journal but for the row."""
    length, date = _stamp(example.file) or (0, 0)
    return {"id": example.id, "file": str(example.file), "sha256": sha256, "bytes": length, "mtime_ns": date}


def _stamp(file: Path) -> tuple[int, int] | None:
    """A file's size and date; None if it is not there."""
    status = status_of(file)
    return None if status is None else (status.st_size, status.st_mtime_ns)


# Outputs of frozen networks for photos, kept between runs: one store in the user's cache for each network.  Photos as
# one vector each are kept so, and by `detectors.detector` what a detector finds.


def in_cache(
    kind: str, identity: dict[str, Any], read: Callable[[Path], Result], *, but: tuple[type[UserError], ...] = ()
) -> Result:
    """The result of `read` with the store of this identity; with one that is gone afterwards where there is no cache.

    kind  of the store: a folder of the cache
    but   errors that are not the cache's, and that another store would not help
    """
    root = paths.cache()
    if root is not None:
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        try:
            return read(root / kind / digest)
        except but:
            raise
        except UserError as error:  # no room, no right to write, damage, or another process is at it
            print_message(f"Nothing is kept of the photos for the next time: {error}")
    with TemporaryDirectory(prefix="tellapart-") as folder:
        return read(Path(folder))


@dataclass
class ReadPhotos:
    files: list[str]  # the photos that could be read, in the order given
    sha256: list[str]  # of each one's bytes
    failed: dict[str, str]  # file -> why not


def stored_rows(
    store: Store, files: Sequence[str], extraction: Extraction, title: str
) -> tuple[list[str], list[str], dict[str, str], list[int]]:
    """The fields of `ReadPhotos`, and the photos' rows in a store; missing and changed ones are read first."""
    examples = {file: Example(str(Path(file).absolute()), Path(file).absolute()) for file in files}
    wanted = list(examples.values())
    reasons, _ = add_missing(store, wanted, extraction, title, quiet=True, wait=False)
    for example in wanted:  # its row may be here still, but whether a photo is there must not depend on a cache
        if str(example.id) not in reasons and not is_file(file_of(example.file)):
            reasons[str(example.id)] = "there is no such file"
    usable = [file for file in files if str(examples[file].id) not in reasons]
    lines = [store.lines[str(examples[file].id)] for file in usable]
    failed = {file: reasons[str(example.id)] for file, example in examples.items() if str(example.id) in reasons}
    return usable, [str(line["sha256"]) for line in lines], failed, [int(line["row"]) for line in lines]


CLIP_FRAMES = 8  # by which retrievers know a clip


@dataclass
class Pooled(ReadPhotos):
    vectors: NDArray[np.float32]  # (P, D)


def pooled_identity(identity: dict[str, Any]) -> dict[str, Any]:
    """The identity of pooled features, which do not depend on the regions that are kept beside them."""
    return {
        key: value
        for key, value in identity.items()
        if key not in ("grid", "pooling", "coarse", "detected", "detector")
    }


def pooled_features(encoder: PhotoEncoder, files: Sequence[str]) -> Pooled:
    """The pooled features of photos, and of clips the mean of their frames'.

    What was seen before and has not changed is read from the cache.  An encoder may have its own way to read clips.
    """
    are_clips = [not hasattr(encoder, "read") and clips.named_as_clip(file) for file in files]
    if not any(are_clips):
        return _pooled(encoder, files)
    both = [_pooled(FrameEncoder(encoder, CLIP_FRAMES), list(compress(files, are_clips)))]
    if not all(are_clips):
        both.append(_pooled(encoder, [file for file, is_clip in zip(files, are_clips, strict=True) if not is_clip]))
    place_of = {file: (part, row) for part in both for row, file in enumerate(part.files)}
    usable = [(file, *place_of[file]) for file in files if file in place_of]
    return Pooled(
        [file for file, _, _ in usable],
        [part.sha256[row] for _, part, row in usable],
        {file: reason for part in both for file, reason in part.failed.items()},
        np.stack([part.vectors[row] for _, part, row in usable]) if usable else both[0].vectors,
    )


def _pooled(encoder: PhotoEncoder, files: Sequence[str]) -> Pooled:
    identity = pooled_identity(encoder.identity)

    def make(pixels: NDArray[np.uint8]) -> EncodedRows:
        return EncodedRows([encoder(pixels).pooled])

    def read(folder: Path) -> Pooled:
        manifest = {"format": 1, "encoder": identity}
        store = Store(folder, manifest, {"pooled": (encoder.pooled_size,)}, PHOTO_KEYS)
        extraction = partial(encode_items, encoder, make)
        title = f"photos through {encoder.config.name}"
        names, sha256, failed, rows = stored_rows(store, files, extraction, title)
        return Pooled(names, sha256, failed, store.read("pooled", rows).numpy())

    return in_cache("photos", identity, read)
