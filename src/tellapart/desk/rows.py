"""The file that `caption --out` writes: JSON lines or CSV, one row per photo, made so that a kill loses nothing.

Rows are added at the end as they come; which of them need not be made again is the matter of `resume`.  People edit
these files, by hand and in spreadsheets, and what they write stays: rows, cells and columns of their own, a last line
without its line break, the separator and the byte order mark of their spreadsheet.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

from capscore import csv_table, files
from capscore.broken_lines import BrokenLine, are_slips, json_rows, reason_of
from capscore.errors import UserError
from capscore.printable import print_message

# "file" and "caption", "logprob", "key" (and "captions", or "look_alikes", "gap"), or "file" and "error"; "id" where
# there is one; "language", a tag, where one was asked for; "edited", "review" and "original" where a person decided
# about the caption (see `review`); and whatever else people put there
Row = dict[str, Any]
Review = Literal["approved", "rejected", "edited"]

COLUMNS = ("file", "caption", "logprob", "error", "id", "key", "look_alikes", "gap", "captions", "edited", "attributes",
           "review", "original", "language")  # fmt: skip
REVIEWS: tuple[Review, ...] = ("approved", "rejected", "edited")
_NUMBERS = ("logprob", "gap")
_LISTS = ("look_alikes", "captions", "attributes")  # JSON in a cell
KEY = re.compile("([0-9a-f]{16})(?:-([0-9a-f]{8})-([0-9a-f]{8}))?")  # see `resume`; the short form is an earlier one
_CUT_OFF_ROW = re.compile(rb'\{("(f(i(l(e(".*)?)?)?)?)?)?', re.DOTALL)


class CaptionsFile:
    def __init__(self, path: Path, option: str = "--out "):
        """Reads the rows that are there; a last one that a kill cut off does not count.

        option  what stands before the name in a message
        """
        self._option = option
        if path.suffix not in (".jsonl", ".csv"):
            raise UserError(f"{option}{path}: the name must end in .jsonl, .csv or .json (COCO results).")
        self.path, self._csv = path, path.suffix == ".csv"
        self._columns, self._separator, self._mark = list(COLUMNS), ",", b""
        self._cut_off = b""
        self._broken: list[BrokenLine] = []
        self.rejected = 0  # lines that were put aside while this wrote
        self._held: files.HeldFile | None = None
        self.rows = self._read()

    @property
    def problems(self) -> list[str]:
        """A sentence for each line that could not be used, of those who only read."""
        return [f"{self._option}{self.path}: {line}; it is left out" for line in self._broken]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Only one process may add rows."""
        with files.held_file(self.path, "another process writes to this file.", by_user=True) as self._held:
            try:
                self.keep(self.read_again())  # another process may have added to it before we held it
                yield
            finally:
                self._held = None

    def keep(self, rows: Iterable[Row]) -> None:
        """Make these, and only these, the rows of the file, in one step."""
        self.rows = list(rows)
        known = dict.fromkeys(self._columns)
        if self._csv and (more := [name for row in self.rows for name in row if name not in known]):
            self._columns += dict.fromkeys(more)
        try:
            data = self._header() + b"".join(map(self._line, self.rows))
        except RecursionError:
            raise self._no_captions() from None
        if not files.is_file(self.path) or self.path.read_bytes() != data:
            (self._held.replace if self._held else partial(files.replace, self.path, by_user=True))(data)

    def append(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        files.append(self.path, b"".join(map(self._line, rows)), by_user=True)
        self.rows += rows

    def read_again(self) -> list[Row]:
        """The rows of the file now: they may have been edited meanwhile.  What else is in it is put aside."""
        rows = self._read()
        lines = [(line.text, str(line)) for line in self._broken]
        if self._cut_off:  # most likely left by a kill, but it may have been written by hand
            lines.append((self._cut_off, "the last line breaks off"))
        for line, reason in lines:
            aside = self.path.with_name(f"{self.path.name}.rejected")
            files.append(aside, line + b"\n")
            print_message(f"{self.path}: {reason}; it was put aside in {aside}")
        self.rejected += len(self._broken)
        return rows

    def copy(self) -> Path:
        """A copy of the file as it is, beside it."""
        names = (f"{self.path.stem}.before{number or ''}{self.path.suffix}" for number in count())
        path = next(path for path in map(self.path.with_name, names) if not os.path.lexists(path))
        files.replace(path, self.path.read_bytes())
        return path

    # JSON lines and CSV

    def _header(self) -> bytes:
        return self._mark + csv_table.line(self._columns, self._separator).encode() if self._csv else b""

    def _line(self, row: Row) -> bytes:
        if not self._csv:  # ASCII: a file name need not be UTF-8, and JSON can escape what UTF-8 cannot write
            return (json.dumps(row) + "\n").encode("ascii")
        cells = [_cell(name, row.get(name)) for name in self._columns]
        return csv_table.line(cells, self._separator).encode()

    def _read(self) -> list[Row]:
        self._cut_off, self._broken = b"", []
        data = self._bytes()
        try:
            rows = self._read_csv(data) if self._csv else self._read_json(data)
        except ValueError:
            raise self._no_captions() from None
        if not are_slips(len(rows), len(self._broken)):
            raise self._no_captions(self._broken[0])
        return rows

    def _bytes(self) -> bytes:
        if files.is_folder(self.path):
            raise UserError(f"{self._option}{self.path}: this is a folder; give the name of a file.")
        if not os.path.exists(self.path):  # noqa: PTH110 - Path.exists raises where a name is too long
            return b""
        if not files.is_file(self.path):  # a pipe or a device cannot be read and added to
            raise UserError(f"{self._option}{self.path}: this is not a regular file.")
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise UserError(f"{self._option}{self.path}: the file cannot be read ({error.strerror}).") from None

    def _no_captions(self, line: BrokenLine | None = None) -> UserError:
        why = f" ({line})" if line else ""
        return UserError(f"{self._option}{self.path}: exists and is no file of captions{why}; choose another name.")

    def _read_json(self, data: bytes) -> list[Row]:
        *lines, last = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
        if _CUT_OFF_ROW.fullmatch(last) and _is_cut_off(last):
            self._cut_off, last = last, b""
        rows, self._broken = json_rows([*lines, last], _checked)
        return rows

    def _read_csv(self, data: bytes) -> list[Row]:
        text = data.decode("utf-8-sig", "surrogateescape")
        if ",".join(COLUMNS).startswith(text):  # nothing yet, or cut off in the line of names
            return []
        whole, _, last = text.rpartition("\n")
        table = csv_table.parse(text, strict=False)
        if last and "key" in table.columns and _breaks_off(table, last):
            table = csv_table.parse(f"{whole}\n", strict=False)
            self._cut_off = last.encode("utf-8", "surrogateescape")
        if not {"file", "caption"} <= set(table.columns):
            raise ValueError
        self._mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        self._separator = table.separator
        self._columns = [*COLUMNS, *(name for name in table.columns if name and name not in COLUMNS)]
        rows, self._broken = list[Row](), table.broken
        for cells, line in zip(table.rows, table.lines, strict=True):
            try:
                rows.append(_from_cells(cells))
            except (ValueError, RecursionError) as error:
                self._broken.append(replace(line, reason=reason_of(error)))
        return rows


def _checked(row: Any) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"must be an object, not {files.type_of(row)}")
    if not isinstance(row.get("file"), str):
        raise ValueError('"file" must be the name of a photo')
    if "caption" not in row and "error" not in row:
        raise ValueError('has neither a "caption" nor an "error"')
    if not isinstance(row.get("caption", ""), str):
        raise ValueError(f'"caption" must be a string, not {files.type_of(row["caption"])}')
    return row


def _is_cut_off(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return True
    except RecursionError:
        pass
    return False


def _breaks_off(table: csv_table.Table, last: str) -> bool:
    """Whether the last line of a table of ours, which has no line break, is not a whole row."""
    if table.broken and table.broken[-1].text == last.encode("utf-8", "surrogateescape"):
        return True
    if not table.rows:
        return False
    key = table.rows[-1]["key"]
    return not table.whole or bool(key and KEY.fullmatch(key) is None)


def _cell(name: str, value: Any) -> csv_table.Cell:
    if name in _LISTS and value is not None:
        return csv_table.Json.of(value)
    if name == "edited":
        return "true" if value else ""
    if name in _NUMBERS or value is None:
        return value if isinstance(value, int | float) else None
    return value if isinstance(value, str) else json.dumps(value)


def _from_cells(cells: dict[str, str]) -> Row:
    cells = {name: cell for name, cell in cells.items() if name}
    row: Row = {"file": csv_table.name_of(cells["file"])}
    row |= {"id": csv_table.text_of(cells["id"])} if cells.get("id") else {}
    key = csv_table.text_of(cells.get("key", ""))
    if key or cells["caption"] or not cells.get("error"):  # a row with a key has a caption, even where that is empty
        row |= {"caption": csv_table.text_of(cells["caption"])}
        row |= {"logprob": _number(cells["logprob"])} if "logprob" in cells and key else {}
        if cells.get("look_alikes"):
            row |= {"look_alikes": json.loads(cells["look_alikes"]), "gap": _number(cells.get("gap", ""))}
        for name in ("captions", "attributes"):
            if cells.get(name):
                row |= {name: json.loads(cells[name])}
        row |= {"key": key} if key else {}
        row |= {"edited": True} if cells.get("edited", "").casefold() not in ("", "false", "0") else {}
    else:
        row |= {"error": csv_table.text_of(cells["error"])}
    theirs = (
        name
        for name, cell in cells.items()
        if cell and (name not in COLUMNS or name in ("review", "original", "language"))
    )
    return row | {name: csv_table.text_of(cells[name]) for name in theirs}


def _number(cell: str) -> float | None:
    return float(cell.replace(",", ".")) if cell else None  # in many countries a comma is the decimal point
