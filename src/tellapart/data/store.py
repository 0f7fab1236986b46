"""Rows of numbers on disk: memory-mapped arrays with a journal, filled once, resumable after a kill.

    manifest.json   what made the rows, and their shape
    NAME.f16        (rows, ...) one file per array; half precision, or another type of number by its suffix
    rows.jsonl      a line per row: {"id", "row", ...}

A row's line is written only after its numbers are on the disk, so what a kill leaves behind the last line is cut
off and computed again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from capscore.progress import notice
from tellapart import journals
from tellapart.data.examples import Example
from tellapart.data.streams import REGIONS
from tellapart.data.tokenizers import Tokenizer

Rows = Sequence[int] | NDArray[np.int64]
Number = Literal["f16", "f32", "i32", "u8"]
_NUMBERS: dict[Number, tuple[type[np.generic], torch.dtype]] = {
    "f16": (np.float16, torch.float16),
    "f32": (np.float32, torch.float32),
    "i32": (np.int32, torch.int32),
    "u8": (np.uint8, torch.uint8),
}


class Array(NamedTuple):
    """An array of a store: the shape of a row, and how its numbers are written."""

    shape: tuple[int, ...]
    number: Number = "f16"


class Store:
    """Numbers by id, read from disk as they are asked for."""

    def __init__(
        self,
        folder: Path,
        manifest: dict[str, Any],
        arrays: Mapping[str, tuple[int, ...] | Array],
        keys: Collection[str] = (),
    ):
        """Opens a store, or makes an empty one.  Refuses one with another manifest.

        arrays  the shape of a row in each array, and its type of number unless that is half precision
        keys    what a line of the journal has beside id and row
        """
        self.folder, self._keys = folder, {"id", "row", *keys}
        self.arrays = {name: array if isinstance(array, Array) else Array(array) for name, array in arrays.items()}
        _claim(folder, manifest)
        self._read_journal()

    def _read_journal(self) -> None:
        file = self.folder / "rows.jsonl"
        try:
            lines = journals.read_lines(file)
        except OSError as error:
            raise UserError(f"{file}: the file cannot be read ({error.strerror}).") from None
        self.lines: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(lines, 1):
            entry = self._parse(line)
            if entry is None:
                raise UserError(f"{file}: line {number} is damaged; delete the folder {self.folder}.")
            self.lines[str(entry["id"])] = entry
        self.rows = max((entry["row"] + 1 for entry in self.lines.values()), default=0)
        for array, size in self._files().items():
            if self.rows and (not array.exists() or array.stat().st_size < self.rows * size):
                raise UserError(f"{array} is shorter than rows.jsonl says; delete the folder {self.folder}.")
        self._journal_bytes = sum(len(line) + 1 for line in lines)
        self._maps: dict[str, NDArray[Any]] = {}

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        """A line of the journal; None if it is damaged."""
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(entry, dict) or not entry.keys() >= self._keys:
            return None
        return entry if isinstance(entry["row"], int) and entry["row"] >= 0 else None

    def row_of(self, id: str) -> int:
        return int(self.lines[id]["row"])

    def dtype(self, name: str) -> torch.dtype:
        """The numbers of an array as they are written."""
        return _NUMBERS[self.arrays[name].number][1]

    def read(self, name: str, rows: Rows, first: int | None = None) -> Tensor:
        """(len(rows), ...) of an array, halves in single precision; or of each row only what comes first"""
        numbers = torch.from_numpy(self._mapped(name)[np.asarray(rows, np.int64), :first])
        return numbers.float() if numbers.is_floating_point() else numbers

    def append(self, tensors: Sequence[Tensor], entries: list[dict[str, Any]]) -> None:
        """Add rows: first their numbers, then, once those are safe, the lines that say so."""
        for file, array, tensor in zip(self._files(), self.arrays.values(), tensors, strict=True):
            journals.append(file, tensor.to("cpu", _NUMBERS[array.number][1]).numpy().tobytes())
        for entry in entries:
            entry["row"] = self.rows
            self.rows += 1
            self.lines[str(entry["id"])] = entry
        journals.append(self.folder / "rows.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries).encode())
        self._maps = {}

    @contextmanager
    def writing(self, *, wait: bool = False) -> Iterator[None]:
        """Only one process may fill a store; what a killed one left half-written is cut off first.

        wait  for another process that fills it; without, it is refused
        """
        busy = "another process is filling this store"
        with journals.held(self.folder, f"{busy}{'; waiting for it' if wait else ''}.", notice if wait else None):
            self._read_journal()  # again: another process may have added to it before we held the lock
            sizes = {file: self.rows * size for file, size in self._files().items()}
            sizes[self.folder / "rows.jsonl"] = self._journal_bytes
            for file, size in sizes.items():
                try:
                    with journals.appending(file) as handle:
                        handle.truncate(size)
                except OSError as error:
                    raise UserError(f"{file}: the file cannot be written ({error.strerror}).") from None
            yield

    def _files(self) -> dict[Path, int]:
        """The arrays and the bytes of a row in each."""
        arrays = ((name, _NUMBERS[array.number][1].itemsize, array) for name, array in self.arrays.items())
        return {self.folder / f"{name}.{a.number}": size * math.prod(a.shape) for name, size, a in arrays}

    def _mapped(self, name: str) -> NDArray[Any]:
        array = self.arrays[name]
        number, shape = _NUMBERS[array.number][0], (self.rows, *array.shape)
        if not self.rows:  # an empty file cannot be mapped
            return np.zeros(shape, number)
        if name not in self._maps:
            self._maps[name] = np.memmap(self.folder / f"{name}.{array.number}", number, "r", shape=shape)
        return self._maps[name]


class StoredFeatures(Protocol):
    """One stream of a data set on disk, to those that learn from it.

    identity  of the source that made it (`features.sources`)
    shape     the most rows of an item, and D
    """

    identity: dict[str, Any]
    shape: tuple[int, int]

    def __contains__(self, example: Example) -> bool: ...

    def row(self, example: Example) -> int: ...

    def count(self, example: Example) -> int:
        """The rows of an item."""

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        """(len(rows), most, D): the first rows of each item, zeros behind its last"""

    def pooled(self, rows: Rows) -> Tensor:
        """(len(rows), D)"""
        return self.grid(rows).mean(1)

    def use(self, tokenizer: Tokenizer) -> None:
        """From now on words have the ids of this vocabulary; changes nothing where there are no words."""
        return


class FeatureStore(Store, StoredFeatures):
    """Features of a data set by the items' ids.

    A line of the journal says how many rows an item has ("regions"), where items differ in it.
    """

    def __init__(
        self,
        folder: Path,
        manifest: dict[str, Any],
        arrays: Mapping[str, tuple[int, ...] | Array],
        keys: Collection[str],
        main: str = "grid",
    ):
        """main  the array that has the rows"""
        super().__init__(folder, manifest, arrays, keys)
        self.identity = manifest["encoder"]
        self._main, shape = main, self.arrays[main].shape
        self.shape = (shape[0], shape[-1])

    def __contains__(self, example: Example) -> bool:
        return str(example.id) in self.lines

    def row(self, example: Example) -> int:
        return self.row_of(str(example.id))

    def count(self, example: Example) -> int:
        return int(self.lines[str(example.id)].get("regions", self.shape[0]))

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        return self.read(self._main, rows, most)

    def pooled(self, rows: Rows) -> Tensor:
        return self.read("pooled", rows)


class Stores(dict[str, StoredFeatures]):
    """A data set's stored features by the name of their stream; empty where only captions count."""

    @property
    def main(self) -> StoredFeatures:
        """The features for retrievers and neighbours: the regions, else the first stream."""
        return self[REGIONS] if REGIONS in self else next(iter(self.values()))

    def have(self, example: Example) -> bool:
        """True where every stream has the example."""
        return all(example in store for store in self.values())

    def pooled(self, examples: Sequence[Example]) -> Tensor:
        """(len(examples), D) of the main stream"""
        return self.main.pooled([self.main.row(example) for example in examples])


def _claim(folder: Path, manifest: dict[str, Any]) -> None:
    file = folder / "manifest.json"
    if not files.is_file(file):
        files.replace(file, (json.dumps(manifest, indent=1) + "\n").encode())
        return
    try:
        there = json.loads(files.read_bytes(file))
    except (ValueError, RecursionError):
        there = None
    if not isinstance(there, dict):
        raise UserError(f"{file} is damaged; delete the folder {folder}.")
    here = json.loads(json.dumps(manifest))  # a tuple comes back as a list
    if there != here:
        field, *values = _difference(there, here)
        theirs, ours = (str(value)[:60] for value in values)
        raise UserError(
            f"{folder} holds features of another source: {field} is {theirs} there and {ours} here. "
            "Give another folder, or delete that one."
        )


def _difference(there: Any, here: Any) -> tuple[str, Any, Any]:
    """The first field in which two manifests differ, and both values."""
    field = next(key for key in [*here, *there] if here.get(key) != there.get(key))
    theirs, ours = there.get(field), here.get(field)
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return _difference(theirs, ours)
    return field, theirs, ours
