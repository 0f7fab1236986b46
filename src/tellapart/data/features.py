"""The feature cache: one memory-mapped store per encoder and data set, filled once, resumable after a kill.

    manifest.json   which encoder and weights made it, and the shape of a row
    grid.f16        (rows, R, D) half precision
    pooled.f16      (rows, D)
    rows.jsonl      a line per photo: {"id", "file", "sha256", "bytes", "mtime_ns", "row"}

A photo's line is written only after its features are on the disk, so whatever a kill leaves behind the last line is
cut off and computed again.
"""

from __future__ import annotations

import hashlib
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
_KEYS = {"id", "file", "sha256", "bytes", "mtime_ns", "row"}
_LONGEST_NAME = 150  # bytes of a data set's name in that of its folder; file systems take 255 for the whole
_BATCH = 16  # photos through the encoder at once; more is no faster on a CPU


def store_folder(root: Path, dataset: str, encoder: Encoder) -> Path:
    """Where a data set's store lies below a features folder."""
    name = re.sub(r"[^\w.-]", "_", dataset) or "photos"
    if len(name.encode()) > _LONGEST_NAME:
        digest = hashlib.sha256(dataset.encode(errors="surrogatepass")).hexdigest()[:8]
        name = f"{name.encode()[:_LONGEST_NAME].decode(errors='ignore')}-{digest}"
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
        self._read_journal()

    def _read_journal(self) -> None:
        file = self.folder / "rows.jsonl"
        try:
            lines = files.read_lines(file)
        except OSError as error:
            raise UserError(f"{file}: the file cannot be read ({error.strerror}).") from None
        self.lines: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(lines, 1):
            entry = _parse(line)
            if entry is None:
                raise UserError(f"{file}: line {number} is damaged; delete the folder {self.folder}.")
            self.lines[str(entry["id"])] = entry
        self.rows = max((entry["row"] + 1 for entry in self.lines.values()), default=0)
        for array, size in self._files().items():
            if self.rows and (not array.exists() or array.stat().st_size < self.rows * size):
                raise UserError(f"{array} is shorter than rows.jsonl says; delete the folder {self.folder}.")
        self._journal_bytes = sum(len(line) + 1 for line in lines)
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
        with files.held(self.folder, "another process is filling this store."):
            self._read_journal()  # again: another process may have added to it before we held the lock
            self._cut_off_rest()
            yield

    def _cut_off_rest(self) -> None:
        sizes = {file: self.rows * size for file, size in self._files().items()}
        sizes[self.folder / "rows.jsonl"] = self._journal_bytes
        for file, size in sizes.items():
            try:
                with file.open("ab") as handle:
                    handle.truncate(size)
            except OSError as error:
                raise UserError(f"{file}: the file cannot be written ({error.strerror}).") from None

    def _files(self) -> dict[Path, int]:
        """The two arrays and the bytes of a row in each."""
        regions, features = self.shape
        return {self.folder / "grid.f16": regions * features * 2, self.folder / "pooled.f16": features * 2}

    def _mapped(self) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        if self._maps is None:
            grid, pooled = self._files()
            regions, features = self.shape
            if not self.rows:  # an empty file cannot be mapped
                return np.zeros((0, regions, features), np.float16), np.zeros((0, features), np.float16)
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

        def load(example: Example) -> tuple[Example, _Loaded | BadPhoto]:
            try:
                return example, _load(example, encoder.config.image_size)
            except BadPhoto as error:
                return example, error

        with Progress(f"features of {folder.name}", len(examples), done=len(examples) - len(missing)) as bar:
            for batch in batched(ordered_map(load, missing), _BATCH):
                good = [photo for _, photo in batch if isinstance(photo, _Loaded)]
                for example, photo in batch:
                    if isinstance(photo, BadPhoto):
                        failed[str(example.id)] = photo.reason
                        store.lines.pop(str(example.id), None)  # of what the photo was before it went bad
                        bar.message(str(photo))
                if good:
                    features = encoder(np.stack([photo.pixels for photo in good]))
                    store.append(*features, [photo.entry for photo in good])
                    computed += len(good)
                bar.advance(len(batch))
    return Extracted(store, failed, computed)


def _claim(folder: Path, manifest: dict[str, Any]) -> None:
    file = folder / "manifest.json"
    if not files.is_file(file):
        files.replace(file, (json.dumps(manifest, indent=1) + "\n").encode())
        return
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: the file cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{file} is damaged; delete the folder {folder}.")
    if found != manifest:
        raise UserError(
            f"{folder} holds features of another encoder ({_brief(found)}); this one is {_brief(manifest)}. "
            "Give another folder, or delete that one."
        )


def _brief(manifest: dict[str, Any]) -> str:
    encoder = manifest.get("encoder")
    if not isinstance(encoder, dict):
        return "one that we do not know"
    return (
        f"{encoder.get('name')}, {encoder.get('image_size')} pixels, grid {encoder.get('grid')}, "
        f"weights {str(encoder.get('weights_sha256'))[:8]}"
    )


def _parse(line: bytes) -> dict[str, Any] | None:
    """A line of the journal; None if it is damaged."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(entry, dict) and entry.keys() >= _KEYS and isinstance(entry["row"], int) and entry["row"] >= 0
    return entry if whole else None


@dataclass
class _Loaded:
    pixels: NDArray[np.uint8]
    entry: dict[str, Any]  # its line of the journal, but for the row


def _load(example: Example, size: int) -> _Loaded:
    stamp = _stamp(example.file)  # before it is read: if it changes meanwhile, the next run finds that it has
    photo = photos.read(example.file, size)
    length, date = stamp or (0, 0)
    entry = {"id": example.id, "file": str(example.file), "sha256": photo.sha256, "bytes": length, "mtime_ns": date}
    return _Loaded(photo.pixels, entry)


def _stamp(file: Path) -> tuple[int, int] | None:
    """A file's size and date; None if it is not there."""
    try:
        status = file.stat()
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


def _unchanged(entry: dict[str, Any], file: Path) -> bool:
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
