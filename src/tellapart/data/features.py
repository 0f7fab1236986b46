"""The feature cache: one memory-mapped store per encoder and data set, filled once, resumable after a kill.

    manifest.json   which encoder and weights made it, and the shape of a row
    grid.f16        (rows, R, D) half precision
    pooled.f16      (rows, D)
    rows.jsonl      a line per photo: {"id", "file", "sha256", "bytes", "mtime_ns", "row"}

A photo's line is written only after its features are on the disk, so whatever a kill leaves behind the last line is
cut off and computed again.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tellapart import files
from tellapart.data import photos
from tellapart.data.examples import Example
from tellapart.encoders.encoder import Encoder
from tellapart.errors import BadPhoto, UserError
from tellapart.parallel import batched, ordered_map
from tellapart.progress import Progress

_FORMAT = 1
_BATCH = 16  # photos through the encoder at once; more is no faster on a CPU


def store_folder(root: Path, dataset: str, encoder: Encoder) -> Path:
    """Where a data set's store lies below a features folder."""
    name = re.sub(r"[^\w.-]", "_", dataset) or "photos"
    config = encoder.config
    return root / f"{name}.{config.name}-{config.image_size}px-{config.grid}x{config.grid}"


class FeatureStore:
    """Features of a data set's photos, read from disk as they are asked for."""

    def __init__(self, folder: Path, encoder: Encoder):
        """Opens a store, or makes an empty one.  Refuses one that another encoder filled."""
        self.folder = folder
        self.shape = (encoder.regions, encoder.feature_size)
        manifest = {"format": _FORMAT, "encoder": encoder.identity, "regions": self.shape[0], "features": self.shape[1]}
        _claim(folder, manifest)
        self.lines: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(files.read_lines(folder / "rows.jsonl"), 1):
            try:
                entry = json.loads(line)
                self.lines[str(entry["id"])] = entry
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{folder / 'rows.jsonl'}: line {number} is damaged; delete the folder.") from None
        self.rows = max((entry["row"] + 1 for entry in self.lines.values()), default=0)
        for file, size in self._files().items():
            if self.rows and (not file.exists() or file.stat().st_size < self.rows * size):
                raise UserError(f"{file} is shorter than rows.jsonl says; delete the folder {folder}.")
        self._maps: tuple[NDArray[np.float16], NDArray[np.float16]] | None = None

    def __contains__(self, example: Example) -> bool:
        return str(example.id) in self.lines

    def row(self, example: Example) -> int:
        return int(self.lines[str(example.id)]["row"])

    def grid(self, rows: Sequence[int] | NDArray[np.int64]) -> Tensor:
        """(len(rows), R, D)"""
        return torch.from_numpy(self._mapped()[0][rows]).float()

    def pooled(self, rows: Sequence[int] | NDArray[np.int64]) -> Tensor:
        """(len(rows), D)"""
        return torch.from_numpy(self._mapped()[1][rows]).float()

    def append(self, grid: Tensor, pooled: Tensor, entries: list[dict[str, Any]]) -> None:
        """Add photos: first their features, then, once those are safe, the lines that say so."""
        for file, tensor in zip(self._files(), (grid, pooled), strict=True):
            files.append(file, tensor.half().cpu().numpy().tobytes())
        for entry in entries:
            entry["row"] = self.rows
            self.rows += 1
            self.lines[str(entry["id"])] = entry
        files.append(self.folder / "rows.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries).encode())
        self._maps = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Only one process may fill a store; what a killed one left half-written is cut off first."""
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.folder}: another process is filling this store.") from None
            journal = self.folder / "rows.jsonl"
            sizes = {file: self.rows * size for file, size in self._files().items()}
            sizes[journal] = sum(len(line) + 1 for line in files.read_lines(journal))
            for file, size in sizes.items():
                with file.open("ab") as handle:
                    handle.truncate(size)
            yield

    def _files(self) -> dict[Path, int]:
        """The two arrays and the bytes of a row in each."""
        regions, features = self.shape
        return {self.folder / "grid.f16": regions * features * 2, self.folder / "pooled.f16": features * 2}

    def _mapped(self) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        if self._maps is None:
            grid, pooled = self._files()
            regions, features = self.shape
            self._maps = (
                np.memmap(grid, np.float16, "r", shape=(self.rows, regions, features)),
                np.memmap(pooled, np.float16, "r", shape=(self.rows, features)),
            )
        return self._maps


@dataclass
class Extracted:
    store: FeatureStore
    failed: dict[str, str]  # id -> why that photo has no features
    computed: int  # photos that were not there before


def extract(examples: Sequence[Example], encoder: Encoder, folder: Path) -> Extracted:
    """Make sure that every photo is in the store; those that are there already and have not changed cost nothing."""
    store = FeatureStore(folder, encoder)
    if all(example in store and _unchanged(store.lines[str(example.id)], example.file) for example in examples):
        return Extracted(store, {}, 0)
    with store.writing():
        missing = [e for e in examples if e not in store or not _unchanged(store.lines[str(e.id)], e.file)]
        failed: dict[str, str] = {}
        computed = 0

        def load(example: Example) -> tuple[Example, photos.Photo | BadPhoto]:
            try:
                return example, photos.read(example.file, encoder.config.image_size)
            except BadPhoto as error:
                return example, error

        with Progress(f"features of {folder.name}", len(examples), done=len(examples) - len(missing)) as bar:
            for batch in batched(ordered_map(load, missing), _BATCH):
                good = [(example, photo) for example, photo in batch if isinstance(photo, photos.Photo)]
                for example, photo in batch:
                    if isinstance(photo, BadPhoto):
                        failed[str(example.id)] = photo.reason
                        bar.message(str(photo))
                if good:
                    features = encoder(np.stack([photo.pixels for _, photo in good]))
                    store.append(*features, [_entry(example, photo) for example, photo in good])
                    computed += len(good)
                bar.advance(len(batch))
    return Extracted(store, failed, computed)


def _claim(folder: Path, manifest: dict[str, Any]) -> None:
    file = folder / "manifest.json"
    if not file.exists():
        files.replace(file, (json.dumps(manifest, indent=1) + "\n").encode())
        return
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{file} is damaged; delete the folder {folder}.") from None
    if found != manifest:
        raise UserError(
            f"{folder} holds features of another encoder ({_brief(found)}); this one is {_brief(manifest)}. "
            "Give another folder, or delete that one."
        )


def _brief(manifest: dict[str, Any]) -> str:
    encoder = manifest.get("encoder", {})
    return (
        f"{encoder.get('name')}, {encoder.get('image_size')} pixels, grid {encoder.get('grid')}, "
        f"weights {str(encoder.get('weights_sha256'))[:8]}"
    )


def _entry(example: Example, photo: photos.Photo) -> dict[str, Any]:
    status = example.file.stat()
    return {
        "id": example.id,
        "file": str(example.file),
        "sha256": photo.sha256,
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
    }


def _unchanged(entry: dict[str, Any], file: Path) -> bool:
    """Whether the photo is still the one whose features we have.  Its date may change; its bytes decide."""
    try:
        status = file.stat()
    except OSError:
        return True  # the photo has gone; its features are still right
    if (status.st_size, status.st_mtime_ns) == (entry["bytes"], entry["mtime_ns"]):
        return True
    return bool(status.st_size == entry["bytes"] and photos.sha256(file) == entry["sha256"])
