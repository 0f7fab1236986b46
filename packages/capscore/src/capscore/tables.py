"""Rows that people edit and programs pass on: JSON lines, and tables in CSV that go through spreadsheets.

One slip must not cost the other rows, nor the words in the line itself: a line that cannot be used is named by its
number with the reason, and the rest is used.

In CSV, what is in a cell is text, comes back as it was, and runs nothing.  A name or a caption is untrusted.  Written
as it is, a line break in it would forge a row, and `=...` would be a formula in a spreadsheet; so both are written out,
in a way that reading undoes.  What people save with their own programs is read as well: with a byte order mark, with
semicolons or tabs, with the bytes of Windows.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from capscore.printable import UNPRINTABLE

Row = TypeVar("Row")
_MOST = 1000  # in a file with more it is no slip


@dataclass(frozen=True)
class BrokenLine:
    number: int  # from 1
    reason: str
    text: bytes

    def __str__(self) -> str:
        return f"line {self.number}: {self.reason}"


def json_rows(lines: Iterable[bytes], row: Callable[[object], Row]) -> tuple[list[Row], list[BrokenLine]]:
    """The rows of JSON lines; `row` makes one of a value, or says in a ValueError why it is none."""
    rows, broken = list[Row](), list[BrokenLine]()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(row(json.loads(line)))
        except (ValueError, RecursionError) as error:
            broken.append(BrokenLine(number, reason_of(error), line))
    return rows, broken


def are_slips(rows: int, broken: int) -> bool:
    """Or else it is a file of something else."""
    return broken <= min(rows, _MOST)


def reason_of(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"this is not JSON (column {error.colno}: {error.msg})"
        case UnicodeDecodeError():
            return "this is not UTF-8 text"
        case RecursionError():
            return "the JSON is nested too deeply"
    return str(error)


Cell = str | float | None  # a text, a number, or nothing

_SEPARATORS = ",;\t"
_MOST_BROKEN = 100  # lines; each is looked at again


@dataclass
class Table:
    columns: list[str]
    rows: list[dict[str, str]] = field(default_factory=list)  # cells as they stand there: see `text_of` and `name_of`
    lines: list[BrokenLine] = field(default_factory=list)  # of each row, should it turn out to be none
    broken: list[BrokenLine] = field(default_factory=list)
    separator: str = ","
    whole: bool = True  # or the last row has fewer cells than there are columns


def parse_csv(text: str, *, strict: bool = True) -> Table:
    """ValueError says why it is no table.

    strict  and not, in place of that, a table without the lines that are no rows
    """
    csv.field_size_limit(max(len(text), 1 << 17))
    first = text.partition("\n")[0]
    separator = max(_SEPARATORS, key=first.count)
    lines, start = list(io.StringIO(text, newline="")), 0
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        table = Table([name.strip() for name in next(reader, [])], separator=separator)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None
    width = len(table.columns)
    while (begin := start + reader.line_num) < len(lines):
        try:
            cells = next(reader)
            end = start + reader.line_num
            if any(cells[width:]):
                raise ValueError("has more cells than there are columns")
        except (csv.Error, ValueError) as error:
            if strict:
                raise ValueError(f"line {start + reader.line_num}: {error}") from None
            if len(table.broken) == _MOST_BROKEN:
                raise ValueError("too many lines are no rows") from None
            end = begin + 1  # a quote that is not closed would take all lines after it along
            table.broken.append(_line(lines, begin, end, str(error)))
            start, reader = end, csv.reader(islice(lines, end, None), delimiter=separator, strict=True)
            continue
        if any(cells):
            table.rows.append(dict(zip(table.columns, cells + [""] * (width - len(cells)), strict=False)))
            table.whole = len(cells) >= width
            if not strict:
                table.lines.append(_line(lines, begin, end, ""))
    return table


def _line(lines: list[str], begin: int, end: int, reason: str) -> BrokenLine:
    return BrokenLine(begin + 1, reason, "".join(lines[begin:end]).rstrip("\r\n").encode("utf-8", "surrogateescape"))


def csv_line(cells: Iterable[Cell], separator: str = ",") -> str:
    """One row."""
    text = io.StringIO()
    written = [safe(cell) if isinstance(cell, str) else cell for cell in cells]
    csv.writer(text, delimiter=separator, lineterminator="\n").writerow(written)
    return text.getvalue()


class Json(str):
    """A cell that holds a value as JSON, which programs read without us."""

    __slots__ = ()

    @classmethod
    def of(cls, value: Any) -> Json:
        # After a quote or a separator another program may see the beginning of a cell; JSON can write the sign out.
        return cls(_BEGINNING.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value)))


def safe(text: str) -> str:
    """A cell that no program takes for more than a text; `text_of` gives the text again."""
    if isinstance(text, Json):
        return text
    # What looks written out already gets its backslash written out, and so comes back as it is.
    text = _WRITTEN_OUT.sub(lambda match: f"\\x5c{match[0][1:]}", text)
    text = UNPRINTABLE.sub(_write_out, _HALVES.sub(_write_out, text))
    text = _BEGINNING.sub(_write_out, text)
    return f"'{text}" if _is_formula(text) else text


def text_of(cell: str) -> str:
    """The text that `safe` or another program wrote.  Bytes that are not UTF-8 are taken for those of Windows."""
    if _HALVES.search(cell):
        data = cell.encode("utf-8", "surrogateescape")
        try:
            cell = data.decode("cp1252")
        except UnicodeDecodeError:
            cell = data.decode("latin-1")
    return _undone(cell)


def name_of(cell: str) -> str:
    """The same for a file's name, which need not be UTF-8."""
    name = _undone(cell)
    return name if "\0" not in name and os.path.lexists(name) else text_of(cell)


def _undone(cell: str) -> str:
    cell = cell[1:] if cell.startswith("'") and _is_formula(cell) else cell
    return _WRITTEN_OUT.sub(lambda match: chr(int(match[0][2:], 16)), cell)


def _is_formula(cell: str) -> bool:
    begins = cell.lstrip("'").lstrip()[:1]
    return bool(begins) and unicodedata.normalize("NFKC", begins) in "=+-@"  # full-width ones too


def _write_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


_WRITTEN_OUT = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4})")
_HALVES = re.compile("[\ud800-\udfff]")  # bytes of a name that are not UTF-8, and other halves of characters
_BEGINNING = re.compile('(?<=[,;|"])[=+@\uff0b\uff0d\uff1d\uff20-]')  # of a cell, to one who separates otherwise
