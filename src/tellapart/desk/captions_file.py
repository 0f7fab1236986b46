"""The file that `caption --out` writes: JSON lines or CSV, one row per photo, made so that a kill loses nothing.

Rows are added at the end as they come; which of them need not be made again is the matter of `resume`.  People edit
these files, by hand and in spreadsheets, and what they write stays: rows, cells and columns of their own, a last line
without its line break, the separator and the byte order mark of their spreadsheet.

Decisions of people about a caption are fields of its row:

    review    "approved", "rejected" or "edited"
    original  the caption before a person edited it
    edited    true where a person wrote the caption, in a review or by hand

`caption`, run again, never replaces a caption that is edited or approved; a rejected one is replaced once the model or
its settings are others.  `adapt --feedback` learns from all three.

With --out F.json, captions are also written as results for the COCO evaluation server: a list of {"image_id",
"caption"}, made of a file of JSON lines beside it when the rows are done.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from capscore import files, tables
from capscore.errors import UserError
from capscore.printable import print_message
from capscore.tables import BrokenLine, are_slips, json_rows, reason_of
from tellapart import journals
from tellapart.data.items import Input

# "file" and "caption", "logprob", "key" (and "captions", or "look_alikes", "gap"), or "file" and "error"; "id" where
# there is one; "language", a tag, where one was asked for; "edited", "review" and "original" where a person decided
# about the caption (see above); and whatever else people put there
Row = dict[str, Any]
Review = Literal["approved", "rejected", "edited"]

COLUMNS = ("file", "caption", "logprob", "error", "id", "key", "look_alikes", "gap", "captions", "edited", "attributes",
           "review", "original", "language")  # fmt: skip
REVIEWS: tuple[Review, ...] = ("approved", "rejected", "edited")
_NUMBERS = ("logprob", "gap")
_LISTS = ("look_alikes", "captions", "attributes")  # JSON in a cell
_KEY = re.compile("([0-9a-f]{16})-([0-9a-f]{8})-([0-9a-f]{8})")
_CUT_OFF_ROW = re.compile(rb'\{("(f(i(l(e(".*)?)?)?)?)?)?', re.DOTALL)


class Key(NamedTuple):
    """Fingerprints in a row: what was captioned and how, and what the caption was when it was made."""

    picture: str
    settings: str  # the model and its settings
    caption: str

    def __str__(self) -> str:
        return "-".join(self)


def key_of(row: Row) -> Key | None:
    """None: the row is not of this program."""
    match = _KEY.fullmatch(str(row.get("key", "")))
    return Key(*match.groups()) if match else None


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
        self._held: journals.HeldFile | None = None
        self.rows = self._read()

    @property
    def problems(self) -> list[str]:
        """A sentence for each line that could not be used, of those who only read."""
        return [f"{self._option}{self.path}: {line}; it is left out" for line in self._broken]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Only one process may add rows."""
        with journals.held_file(self.path, "another process writes to this file.", by_user=True) as self._held:
            try:
                self.keep(self.read_again())  # another process may have added to it before we held it
                yield
            finally:
                self._held = None

    def keep(self, rows: Iterable[Row]) -> None:
        """Make these, and only these, the rows of the file, in one step."""
        self.rows = list(rows)
        if self._csv:
            self._columns = list(dict.fromkeys([*self._columns, *(name for row in self.rows for name in row)]))
        try:
            data = self._header() + b"".join(map(self._line, self.rows))
        except RecursionError:
            raise self._no_captions() from None
        if not files.is_file(self.path) or self.path.read_bytes() != data:
            (self._held.replace if self._held else partial(files.replace, self.path, by_user=True))(data)

    def append(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        journals.append(self.path, b"".join(map(self._line, rows)), by_user=True)
        self.rows += rows

    def read_again(self) -> list[Row]:
        """The rows of the file now: they may have been edited meanwhile.  What else is in it is put aside."""
        rows = self._read()
        lines = [(line.text, str(line)) for line in self._broken]
        if self._cut_off:  # most likely left by a kill, but it may have been written by hand
            lines.append((self._cut_off, "the last line breaks off"))
        for line, reason in lines:
            aside = self.path.with_name(f"{self.path.name}.rejected")
            journals.append(aside, line + b"\n")
            print_message(f"{self.path}: {reason}; it was put aside in {aside}")
        self.rejected += len(self._broken)
        return rows

    # JSON lines and CSV

    def _header(self) -> bytes:
        return self._mark + tables.csv_line(self._columns, self._separator).encode() if self._csv else b""

    def _line(self, row: Row) -> bytes:
        if not self._csv:  # ASCII: a file name need not be UTF-8, and JSON can escape what UTF-8 cannot write
            return (json.dumps(row) + "\n").encode("ascii")
        cells = [_cell(name, row.get(name)) for name in self._columns]
        return tables.csv_line(cells, self._separator).encode()

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
        table = tables.parse_csv(text, strict=False)
        if last and "key" in table.columns and _breaks_off(table, last):
            table = tables.parse_csv(f"{whole}\n", strict=False)
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
        with suppress(RecursionError):
            json.loads(line)
    except ValueError:
        return True
    return False


def _breaks_off(table: tables.Table, last: str) -> bool:
    """True if the last line of a table of ours, which has no line break, is not a whole row."""
    if table.broken and table.broken[-1].text == last.encode("utf-8", "surrogateescape"):
        return True
    if not table.rows:
        return False
    key = table.rows[-1]["key"]
    return not table.whole or bool(key and _KEY.fullmatch(key) is None)


def _cell(name: str, value: Any) -> tables.Cell:
    if name in _LISTS and value is not None:
        return tables.Json.of(value)
    if name == "edited":
        return "true" if value else ""
    if name in _NUMBERS or value is None:
        return value if isinstance(value, int | float) else None
    return value if isinstance(value, str) else json.dumps(value)


def _from_cells(cells: dict[str, str]) -> Row:
    cells = {name: cell for name, cell in cells.items() if name}
    row: Row = {"file": tables.name_of(cells["file"])}
    row |= {"id": tables.text_of(cells["id"])} if cells.get("id") else {}
    key = tables.text_of(cells.get("key", ""))
    if key or cells["caption"] or not cells.get("error"):  # a row with a key has a caption, even where that is empty
        row |= {"caption": tables.text_of(cells["caption"])}
        row |= {"logprob": _number(cells["logprob"])} if "logprob" in cells and key else {}
        if cells.get("look_alikes"):
            row |= {"look_alikes": json.loads(cells["look_alikes"]), "gap": _number(cells.get("gap", ""))}
        for name in ("captions", "attributes"):
            if cells.get(name):
                row |= {name: json.loads(cells[name])}
        row |= {"key": key} if key else {}
        row |= {"edited": True} if cells.get("edited", "").casefold() not in ("", "false", "0") else {}
    else:
        row |= {"error": tables.text_of(cells["error"])}
    ours = set(COLUMNS) - {"review", "original", "language"}
    return row | {name: tables.text_of(cell) for name, cell in cells.items() if cell and name not in ours}


def _number(cell: str) -> float | None:
    return float(cell.replace(",", ".")) if cell else None  # in many countries a comma is the decimal point


# Reviews


def is_by_hand(row: Row) -> bool:
    """True if a person wrote the caption, as far as one can know; without a key of ours, one did."""
    if "caption" not in row:
        return False
    if row.get("edited"):
        return True
    key = key_of(row)
    if key is None:
        return bool(row["caption"].strip())  # or the row only lists a photo to be captioned
    return key.caption != fingerprint(row)


def is_approved(row: Row) -> bool:
    return "caption" in row and row.get("review") == "approved"


def fingerprint(row: Row) -> str:
    """Of the captions.  How their characters are put together and spaced is no matter: programs change that."""
    listed = row.get("captions") or []
    texts = [row["caption"], *(item.get("caption", "") if isinstance(item, dict) else item for item in listed)]
    return short_hash(json.dumps([" ".join(unicodedata.normalize("NFC", str(text)).split()) for text in texts]))


def short_hash(text: str) -> str:
    """As keys have it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def review_of(row: Row) -> Review | None:
    """None: not reviewed.  A caption that was changed by hand, in an editor or a spreadsheet, counts as edited.

    >>> review_of({"file": "a.jpg", "caption": "my dog Rex", "edited": True})
    'edited'
    """
    if "caption" not in row:
        return None
    decided = next((review for review in REVIEWS if row.get("review") == review), None)
    return decided or ("edited" if is_by_hand(row) else None)


def reviewed(row: Row, review: Review | None, caption: str | None = None) -> Row:
    """The row after a decision; None takes decisions back, and brings the caption back that was there before.

    caption  what a person wrote instead; only with "edited"

    >>> reviewed({"file": "a.jpg", "caption": "a dog"}, "edited", "my dog Rex")
    {'file': 'a.jpg', 'caption': 'my dog Rex', 'original': 'a dog', 'edited': True, 'review': 'edited'}
    """
    if (review == "edited") != (caption is not None):
        raise ValueError("a review is 'edited' if and only if there is another caption")
    if review is None:
        back = {"caption": row["original"]} if "original" in row else {}
        dropped = {"review", "original", *(["edited"] if back else [])}
        return {name: value for name, value in row.items() if name not in dropped} | back
    if caption is not None:
        row = row | {"caption": caption, "original": row.get("original", row.get("caption", "")), "edited": True}
    return row | {"review": review}


# Results for the COCO server


def rows_of_results(path: Path) -> Path:
    """The file of rows beside results.  What is at `path` must be results, or nothing: it will be replaced."""
    if files.is_file(path):
        existing = files.read_json_value(path)
        if not isinstance(existing, list) or not all(
            isinstance(row, dict) and row.keys() == {"image_id", "caption"} for row in existing
        ):
            raise UserError(f"--out {path}: exists and is no file of COCO results; choose another name.")
    beside = path.with_suffix(".jsonl")
    files.refuse_link(beside)  # the user named the other
    return beside


def require_ids(inputs: Sequence[Input], path: Path) -> None:
    for photo in inputs:
        if photo.id is None:
            why = f"COCO results need image ids, which {photo.file} has none of"
            raise UserError(f"--out {path}: {why}; give a data file.")


def write_results(rows: Iterable[Row], inputs: Sequence[Input], path: Path) -> None:
    """The captions of these photos, each once, in their order."""
    captions = {row["id"]: row["caption"] for row in rows if "caption" in row and "id" in row}
    results = [{"image_id": photo.id, "caption": captions[photo.id]} for photo in inputs if photo.id in captions]
    files.replace(path, (json.dumps(results) + "\n").encode(), by_user=True)


# Languages


_TAG = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{2,8})*")
_TAGS = """
af Afrikaans; am Amharic; ar Arabic; az Azerbaijani; be Belarusian; bg Bulgarian; bn Bengali; bs Bosnian; ca Catalan,
Català; cs Czech, Čeština; cy Welsh, Cymraeg; da Danish, Dansk; de German, Deutsch; el Greek; en English; eo Esperanto;
es Spanish, Español; et Estonian, Eesti; eu Basque, Euskara; fa Persian, Farsi; fi Finnish, Suomi; fr French, Français;
ga Irish, Gaeilge; gl Galician, Galego; gu Gujarati; he Hebrew; hi Hindi; hr Croatian, Hrvatski; hu Hungarian, Magyar;
hy Armenian; id Indonesian; is Icelandic, Íslenska; it Italian, Italiano; ja Japanese; ka Georgian; kk Kazakh; km Khmer;
kn Kannada; ko Korean; la Latin; lb Luxembourgish; lo Lao; lt Lithuanian, Lietuvių; lv Latvian, Latviešu; mk Macedonian;
ml Malayalam; mn Mongolian; mr Marathi; ms Malay; mt Maltese; my Burmese; nb Norwegian, Bokmål, Norsk; ne Nepali;
nl Dutch, Nederlands; nn Nynorsk; pa Punjabi; pl Polish, Polski; ps Pashto; pt Portuguese, Português; pt-BR Brazilian
Portuguese; ro Romanian, Română; ru Russian; si Sinhala; sk Slovak, Slovenčina; sl Slovenian, Slovene, Slovenščina;
sq Albanian, Shqip; sr Serbian, Srpski; sv Swedish, Svenska; sw Swahili; ta Tamil; te Telugu; th Thai; tl Tagalog,
Filipino; tr Turkish, Türkçe; uk Ukrainian; ur Urdu; uz Uzbek; vi Vietnamese; xh Xhosa; yi Yiddish; zh Chinese,
Mandarin; zh-Hans Simplified Chinese; zh-Hant Traditional Chinese; zu Zulu
"""
_TAG_OF = {
    name.strip().casefold(): tag
    for tag, _, names in (entry.strip().partition(" ") for entry in " ".join(_TAGS.split()).split(";"))
    for name in names.split(",")
}


def tag_of(language: str) -> str:
    """Nothing if it is not known.

    >>> tag_of("German"), tag_of("pt-BR"), tag_of("Klingon")
    ('de', 'pt-BR', '')
    """
    if tag := _TAG_OF.get(language.casefold()):
        return tag
    primary = language.partition("-")[0].lower()
    return language if _TAG.fullmatch(language) and primary in {tag[:2] for tag in _TAG_OF.values()} else ""
