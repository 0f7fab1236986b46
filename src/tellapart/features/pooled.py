"""Outputs of frozen networks for photos, kept between runs: one store in the user's cache for each network.

Photos as one vector each are kept so, and by `detectors.detections` what a detector finds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from capscore.errors import UserError
from capscore.files import is_file
from capscore.printable import print_message
from tellapart import paths
from tellapart.data.examples import Example, file_of
from tellapart.data.media import clips
from tellapart.data.store import Store
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.encoder import FrameEncoder
from tellapart.features.extracted import PHOTO_KEYS, EncodedRows, Extraction, add_missing, encode_items

Result = TypeVar("Result")


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


@dataclass
class StoredRows(ReadPhotos):
    rows: list[int]  # of each in the store


def stored_rows(store: Store, files: Sequence[str], extraction: Extraction, title: str) -> StoredRows:
    """The rows of photos in a store; those that are missing or have changed are read first."""
    examples = {file: Example(str(Path(file).absolute()), Path(file).absolute()) for file in files}
    wanted = list(examples.values())
    reasons, _ = add_missing(store, wanted, extraction, title, quiet=True, wait=False)
    for example in wanted:  # its row may be here still, but whether a photo is there must not depend on a cache
        if str(example.id) not in reasons and not is_file(file_of(example.file)):
            reasons[str(example.id)] = "there is no such file"
    usable = [file for file in files if str(examples[file].id) not in reasons]
    lines = [store.lines[str(examples[file].id)] for file in usable]
    failed = {file: reasons[str(example.id)] for file, example in examples.items() if str(example.id) in reasons}
    return StoredRows(usable, [str(line["sha256"]) for line in lines], failed, [int(line["row"]) for line in lines])


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
        stored = stored_rows(store, files, extraction, f"photos through {encoder.config.name}")
        return Pooled(stored.files, stored.sha256, stored.failed, store.read("pooled", stored.rows).numpy())

    return in_cache("photos", identity, read)
