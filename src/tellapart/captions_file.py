"""The file that `caption --out` writes: JSON lines or CSV, one row per photo, made so that a kill loses nothing.

Rows are added at the end as they come.  A row's `key` is made of the photo's bytes, the model and the settings: a run
that is started again finds the rows that it need not make again.  When all are there they stand in the order of the
input.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tellapart import files
from tellapart.errors import UserError

# "file" and "caption", "logprob", "key" (and "captions", or "look_alikes", "gap"), or "file" and "error"; "id" where
# there is one
Row = dict[str, Any]

_COLUMNS = ("file", "caption", "logprob", "error", "id", "key", "look_alikes", "gap", "captions")
_BEFORE = (_COLUMNS[:6], _COLUMNS[:8])  # tables of earlier versions
_LISTS = ("look_alikes", "captions")  # JSON in a cell


class CaptionsFile:
    def __init__(self, path: Path):
        """Reads the rows that are there; a last one that a kill cut off does not count."""
        if path.suffix not in (".jsonl", ".csv"):
            raise UserError(f"--out {path}: the name must end in .jsonl or .csv.")
        self.path, self._csv = path, path.suffix == ".csv"
        self.rows = self._read()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Only one process may add rows; what a kill left of the last one is cut off first."""
        with files.held_file(self.path, "another process writes to this file."):
            self.rows = self._read()  # again: another process may have added to it before we held it
            data = self.path.read_bytes()
            os.truncate(self.path, data.rfind(b"\n") + 1)
            if not self.rows:
                files.append(self.path, self._header()[len(data) :])
            yield

    def keep(self, rows: Iterable[Row]) -> None:
        """Make these, and only these, the rows of the file, in one step."""
        self.rows = list(rows)
        data = self._header() + b"".join(map(self._line, self.rows))
        if not files.is_file(self.path) or self.path.read_bytes() != data:
            files.replace(self.path, data)

    def append(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        files.append(self.path, b"".join(map(self._line, rows)))
        self.rows += rows

    def _header(self) -> bytes:
        return (",".join(_COLUMNS) + "\n").encode() if self._csv else b""

    def _line(self, row: Row) -> bytes:
        if not self._csv:  # ASCII: a file name need not be UTF-8, and JSON can escape what UTF-8 cannot write
            return (json.dumps(row) + "\n").encode("ascii")
        text = io.StringIO()
        cells = row | {name: json.dumps(row[name]) for name in _LISTS if name in row}
        csv.writer(text, lineterminator="\n").writerow([cells.get(column, "") for column in _COLUMNS])
        return text.getvalue().encode("utf-8", "surrogateescape")

    def _read(self) -> list[Row]:
        if files.is_folder(self.path):
            raise UserError(f"--out {self.path}: this is a folder; give the name of a file.")
        if not files.is_file(self.path):
            return []
        try:
            rows = self._read_csv() if self._csv else [json.loads(line) for line in files.read_lines(self.path)]
            if not all(isinstance(row["file"], str) and ("caption" in row or "error" in row) for row in rows):
                raise ValueError
        except (ValueError, KeyError, TypeError, csv.Error):
            raise UserError(f"--out {self.path}: exists and is no file of captions; choose another name.") from None
        return rows

    def _read_csv(self) -> list[Row]:
        data = self.path.read_bytes()
        if not data:
            return []
        whole = data[: data.rfind(b"\n") + 1].decode("utf-8", "surrogateescape")
        header, *lines = csv.reader(io.StringIO(whole, newline=""))
        if tuple(header) not in (_COLUMNS, *_BEFORE):
            raise ValueError
        return [self._from_csv(dict(zip(header, line, strict=True))) for line in lines if len(line) == len(header)]

    @staticmethod
    def _from_csv(cells: dict[str, str]) -> Row:
        row: Row = {"file": cells["file"]} | ({"id": cells["id"]} if cells["id"] else {})
        if not cells["key"]:  # a row with a caption has a key, even where the caption is empty
            return row | {"error": cells["error"]}
        row |= {"caption": cells["caption"], "logprob": _number(cells["logprob"])}
        if cells.get("look_alikes"):
            row |= {"look_alikes": json.loads(cells["look_alikes"]), "gap": _number(cells["gap"])}
        if cells.get("captions"):
            row |= {"captions": json.loads(cells["captions"])}
        return row | {"key": cells["key"]}


def _number(cell: str) -> float | None:
    return float(cell) if cell else None
