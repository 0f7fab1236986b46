"""Outputs of a frozen network for photos, kept between runs: one store in the user's cache for each network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from capscore.errors import UserError
from capscore.files import is_file
from capscore.printable import print_message
from tellapart import paths
from tellapart.data.examples import Example, file_of
from tellapart.data.store import Store
from tellapart.features.extracted import Extraction, add_missing

Result = TypeVar("Result")


def in_cache(
    kind: str, identity: dict[str, Any], read: Callable[[Path], Result], *, but: tuple[type[UserError], ...] = ()
) -> Result:
    """What `read` makes with the store of this identity; with one that is gone afterwards where there is no cache.

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
    """Where photos are in a store; those that are missing or have changed are read first."""
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
