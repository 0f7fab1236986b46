"""Photos as one vector each, kept between runs: one store in the user's cache for each encoder."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tellapart import places
from tellapart.data.examples import Example
from tellapart.data.features import PHOTO_KEYS, add_missing, look
from tellapart.data.store import Store
from tellapart.encoders import PhotoEncoder
from tellapart.errors import UserError
from tellapart.files import is_file


@dataclass
class Pooled:
    files: list[str]  # the photos that could be read, in the order given
    vectors: NDArray[np.float32]  # (P, D)
    sha256: list[str]  # of each photo's bytes
    failed: dict[str, str]  # file -> why not


def pooled_features(encoder: PhotoEncoder, files: Sequence[str]) -> Pooled:
    """The pooled features of photos; those that were seen before and have not changed are read from the cache."""
    of_the_grid = ("grid", "pooling")  # which are not in them
    identity = {key: value for key, value in encoder.identity.items() if key not in of_the_grid}
    root = places.cache()
    if root is not None:
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        try:
            return _read(encoder, files, {"format": 1, "encoder": identity}, root / "photos" / digest)
        except UserError as error:  # no room, no right to write, damage, or another process is at it
            print(f"Nothing is kept of the photos for the next time: {error}", file=sys.stderr)
    with TemporaryDirectory(prefix="tellapart-") as folder:
        return _read(encoder, files, {"format": 1, "encoder": identity}, Path(folder))


def _read(encoder: PhotoEncoder, files: Sequence[str], manifest: dict[str, object], folder: Path) -> Pooled:
    store = Store(folder, manifest, {"pooled": (encoder.pooled_size,)}, PHOTO_KEYS)
    examples = {file: Example(str(Path(file).absolute()), Path(file).absolute()) for file in files}

    def make(pixels: NDArray[np.uint8]) -> list[Tensor]:
        return [encoder(pixels).pooled]

    title = f"photos through {encoder.config.name}"
    wanted = list(examples.values())
    looking = partial(look, encoder, make)
    reasons, _ = add_missing(store, wanted, looking, title, quiet=True)
    for example in wanted:  # its vector may be here still, but whether a photo is there must not depend on a cache
        if str(example.id) not in reasons and not is_file(example.file):
            reasons[str(example.id)] = "there is no such file"
    there = [file for file in files if str(examples[file].id) not in reasons]
    lines = [store.lines[str(examples[file].id)] for file in there]
    return Pooled(
        there,
        store.read("pooled", [int(line["row"]) for line in lines]).numpy(),
        [str(line["sha256"]) for line in lines],
        {file: reasons[str(example.id)] for file, example in examples.items() if str(example.id) in reasons},
    )
