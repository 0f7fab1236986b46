"""Photos as one vector each, kept between runs: one store in the user's cache for each encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tellapart.data.store import Store
from tellapart.encoders import PhotoEncoder
from tellapart.features.extracted import PHOTO_KEYS, look
from tellapart.features.photo_cache import in_cache, stored_rows


@dataclass
class Pooled:
    files: list[str]  # the photos that could be read, in the order given
    vectors: NDArray[np.float32]  # (P, D)
    sha256: list[str]  # of each photo's bytes
    failed: dict[str, str]  # file -> why not


def pooled_identity(identity: dict[str, Any]) -> dict[str, Any]:
    """What pooled features must share: they do not depend on the regions that are kept beside them."""
    return {key: value for key, value in identity.items() if key not in ("grid", "pooling", "coarse")}


def pooled_features(encoder: PhotoEncoder, files: Sequence[str]) -> Pooled:
    """The pooled features of photos; those that were seen before and have not changed are read from the cache."""
    identity = pooled_identity(encoder.identity)

    def make(pixels: NDArray[np.uint8]) -> list[Tensor]:
        return [encoder(pixels).pooled]

    def read(folder: Path) -> Pooled:
        manifest = {"format": 1, "encoder": identity}
        store = Store(folder, manifest, {"pooled": (encoder.pooled_size,)}, PHOTO_KEYS)
        looking = partial(look, encoder, make)
        found = stored_rows(store, files, looking, f"photos through {encoder.config.name}")
        return Pooled(found.files, store.read("pooled", found.rows).numpy(), found.sha256, found.failed)

    return in_cache("photos", identity, read)
