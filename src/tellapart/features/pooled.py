"""Photos as one vector each, kept between runs: one store in the user's cache for each encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tellapart.data.media import clips
from tellapart.data.store import Store
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.frames import FrameEncoder
from tellapart.features.extracted import PHOTO_KEYS, Made, encode_items
from tellapart.features.photo_cache import ReadPhotos, in_cache, stored_rows

CLIP_FRAMES = 8  # by which retrievers know a clip


@dataclass
class Pooled(ReadPhotos):
    vectors: NDArray[np.float32]  # (P, D)


def pooled_identity(identity: dict[str, Any]) -> dict[str, Any]:
    """What pooled features must share: they do not depend on the regions that are kept beside them."""
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
    found = {file: (one, row) for one in both for row, file in enumerate(one.files)}
    usable = [(file, *found[file]) for file in files if file in found]
    return Pooled(
        [file for file, _, _ in usable],
        [one.sha256[row] for _, one, row in usable],
        {file: reason for one in both for file, reason in one.failed.items()},
        np.stack([one.vectors[row] for _, one, row in usable]) if usable else both[0].vectors,
    )


def _pooled(encoder: PhotoEncoder, files: Sequence[str]) -> Pooled:
    identity = pooled_identity(encoder.identity)

    def make(pixels: NDArray[np.uint8]) -> Made:
        return Made([encoder(pixels).pooled])

    def read(folder: Path) -> Pooled:
        manifest = {"format": 1, "encoder": identity}
        store = Store(folder, manifest, {"pooled": (encoder.pooled_size,)}, PHOTO_KEYS)
        extraction = partial(encode_items, encoder, make)
        found = stored_rows(store, files, extraction, f"photos through {encoder.config.name}")
        return Pooled(found.files, found.sha256, found.failed, store.read("pooled", found.rows).numpy())

    return in_cache("photos", identity, read)
