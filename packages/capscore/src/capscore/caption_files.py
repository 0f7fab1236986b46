"""Captions and references in any common form: by id in a dict or a file, COCO results, COCO annotations, data files.

    captions     {id: caption}, {id: [captions]}, [{"image_id", "caption"}], or the rows of `tellapart caption --out`
    references   {id: [captions]}, COCO annotations, or a data file
    data file    {"dataset": name, "images": [{"id", "file", "split", "captions": [...]}]}, or "videos"

In {id: [captions]} a caption may also be {"caption": text}: pycocoevalcap's own gts and res are such.

Ids are compared as text: a JSON file cannot tell 42 from "42" where it stands as a key.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from numbers import Integral
from pathlib import Path, PurePath
from typing import Any

from capscore import files, tables
from capscore.errors import UserError
from capscore.printable import first_few
from capscore.tables import BrokenLine, are_slips, json_rows
from capscore.tokenize import tokenize_file

KINDS = ("images", "videos")  # of records in a data file

_SHOWN = 10  # ids that a message lists
_LONGEST_SHOWN = 80  # characters of one of them


@dataclass(frozen=True)
class Captions:
    """Some captions for each id, in the order of the source."""

    source: str  # what to call it in a message
    by_id: dict[str, list[str]]
    ids_of_files: dict[str, str] = field(default_factory=dict)  # a photo's file to its id, in a data file
    failed: list[str] = field(default_factory=list)  # photos that `tellapart caption` could not use


def read(path: Path | str, broken: list[str] | None = None) -> Captions:
    """Captions to be scored.

    broken  where a sentence goes for each line that cannot be used; none: the first is an error, as of captions whose
            scores would be others without it
    """
    path = Path(path)
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind in (".jsonl", ".csv"):
        return from_rows(_lines(path, broken) if kind == ".jsonl" else _cells(path, broken), str(path))
    content = files.read_json_value(path, pairs=lambda pairs: _once(pairs, path))
    if isinstance(content, list):
        return from_rows(content, str(path))
    if isinstance(content, dict) and any(_are_records(content.get(key)) for key in ("annotations", *KINDS)):
        raise UserError(f"{path}: holds references, not captions to be scored; is it the second file?")
    return from_mapping(content, str(path))


def read_references(path: Path | str, split: str | None = None) -> Captions:
    """References; `split` chooses a part of a data file."""
    path = Path(path)
    content = files.read_json_value(path, pairs=lambda pairs: _once(pairs, path))
    return references_from(content, path, split)


def references_from(content: Any, source: Path, split: str | None = None) -> Captions:
    """As `read_references`, of what such a file holds; `source` is what to call it."""
    if isinstance(content, Mapping):
        if _are_records(content.get("annotations")):
            if split is not None:
                raise UserError(f"{source}: COCO annotations have no splits; leave out --split.")
            return _gathered(content["annotations"], str(source), keys=("image_id",))
        for kind in KINDS:
            if _are_records(content.get(kind)):
                return _from_data_file(content[kind], source, kind, split)
    if isinstance(content, list):
        raise UserError(f"{source}: a list holds captions to be scored, not references; is it the first file?")
    if split is not None:
        raise UserError(f"{source}: only a data file has splits; leave out --split.")
    return from_mapping(content, str(source))


def from_mapping(content: Any, source: str) -> Captions:
    """{id: caption}, {id: [captions]} or {id: [{"caption"}]}."""
    if not isinstance(content, Mapping):
        raise UserError(f"{source}: must be an object of ids and captions, not {files.type_of(content)}.")
    by_id: dict[str, list[str]] = {}
    for id, captions in content.items():
        name = _id(id, source)
        if name in by_id:
            raise UserError(f"{source}: {name!r} occurs twice, as a number and as a string.")
        by_id[name] = _texts(captions, name, source)
    return Captions(source, by_id)


def from_rows(rows: Iterable[Any], source: str) -> Captions:
    """[{"image_id" (or "id", or "file"), "caption"}], one caption an id."""
    captions = _gathered(rows, source)
    for name, texts in captions.by_id.items():
        if len(set(texts)) > 1:
            raise UserError(f"{source}: {name!r} occurs twice, with different captions.")
        del texts[1:]
    return captions


def from_sequence(captions: Sequence[Any], source: str) -> Captions:
    """Captions without ids: the first belongs to the first."""
    return Captions(source, {str(i): _texts(item, str(i), source) for i, item in enumerate(captions)})


@dataclass(frozen=True)
class Paired:
    """Photos that have captions as well as references, in the order of the references."""

    ids: list[str]
    captions: list[list[str]]
    references: list[list[str]]
    problems: list[str]  # a sentence for each kind of photo that was left out

    def only(self, ids: Collection[str]) -> Paired:
        rows = [row for row, id in enumerate(self.ids) if id in ids]
        return Paired(
            [self.ids[row] for row in rows],
            [self.captions[row] for row in rows],
            [self.references[row] for row in rows],
            self.problems,
        )


def pair(captions: Captions, references: Captions, *, allow_missing: bool = False) -> Paired:
    """An id that only one side has is an error, or is left out if that is allowed."""
    ids = photos_meant(captions.by_id, references.by_id, references.ids_of_files)
    candidates = {ids.get(name, name): texts for name, texts in captions.by_id.items()}
    if len(candidates) < len(captions.by_id):
        raise UserError(f"{captions.source}: two of its captions are of one photo of {references.source}.")
    wanted = references.by_id
    problems = [
        *_lists([id for id in wanted if wanted[id] and not candidates.get(id)], f"no caption in {captions.source}"),
        *_lists([id for id in candidates if not wanted.get(id)], f"no reference in {references.source}"),
    ]
    if problems and not allow_missing:
        raise UserError(f"{' '.join(problems)} To score the others: --allow-missing (in Python, allow_missing=True).")
    both = [id for id in wanted if wanted[id] and candidates.get(id)]
    if not both:
        raise UserError(f"{captions.source} and {references.source} have no photo in common.")
    return Paired(both, [candidates[id] for id in both], [wanted[id] for id in both], problems)


def photos_meant(names: Collection[str], ids: Collection[str], ids_of_files: Mapping[str, str]) -> dict[str, str]:
    """The id of the photo that each name of a caption means, where it means one: the id itself, or a photo's file.

    Where no name is the path of one of the files, they lie elsewhere: then names of files count without their folders,
    if only one photo and one caption have them.

    >>> photos_meant(["7", "copy/dog.jpg"], ["7", "9"], {"/photos/cat.jpg": "7", "/photos/dog.jpg": "9"})
    {'7': '7', 'copy/dog.jpg': '9'}
    """
    meant = {name: name for name in names if name in ids}
    if not ids_of_files:
        return meant
    others = [name for name in names if name not in meant]
    by_path = {name: ids_of_files[file] for name in others if (file := place(name)) in ids_of_files}
    if by_path:
        return meant | by_path
    theirs, ours = Counter(map(_last, ids_of_files)), Counter(map(_last, others))
    once = {_last(file): id for file, id in ids_of_files.items() if theirs[_last(file)] == 1 and id not in meant}
    return meant | {name: once[_last(name)] for name in others if ours[_last(name)] == 1 and _last(name) in once}


def _last(file: str) -> str:
    return PurePath(file).name


def _lists(ids: list[str], lack: str) -> list[str]:
    short = (repr(id) if len(id) <= _LONGEST_SHOWN else f"{id[:_LONGEST_SHOWN]!r}..." for id in ids)
    shown = first_few(short, _SHOWN)
    return [f"{len(ids)} photo{' has' if len(ids) == 1 else 's have'} {lack}: {shown}."] if ids else []


def _gathered(rows: Iterable[Any], source: str, keys: tuple[str, ...] = ("image_id", "id", "file")) -> Captions:
    """All captions of an id, which is under the first of `keys` that a row has."""
    by_id: dict[str, list[str]] = {}
    failed = []
    for position, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise UserError(f"{source}: entry {position} must be an object, not {files.type_of(row)}.")
        key = next((key for key in keys if key in row and row[key] != ""), None)
        if key is None:
            raise UserError(f'{source}: entry {position} has no "image_id".')
        name = _id(row[key], source)
        if "caption" in row:
            by_id.setdefault(name, []).append(_text(row["caption"], name, source))
        elif "error" in row:
            failed.append(name)
        else:
            raise UserError(f'{source}: {name!r}: "caption" is missing.')
    return Captions(source, by_id, failed=failed)


def _from_data_file(records: list[Any], path: Path, kind: str, split: str | None) -> Captions:
    by_id: dict[str, list[str]] = {}
    ids_of_files = {}
    folder, splits = folder_of(path), set()
    if records and isinstance(records[0], Mapping) and "filename" in records[0] and "captions" not in records[0]:
        refuse_other_formats(records, path, mark="captions")
    for position, record in enumerate(records, start=1):
        where = name_of(record, position, kind)
        id = record.get("id") if isinstance(record, Mapping) else None
        if isinstance(id, bool) or not isinstance(id, int | str):
            raise UserError(f'{path}: {where}: "id" must be a whole number or a string.')
        if not isinstance(record.get("split", ""), str):
            raise UserError(f'{path}: {where}: "split" must be a string, not {files.type_of(record["split"])}.')
        splits.add(record.get("split", ""))
        if split is not None and record.get("split", "") != split:
            continue
        name = str(record["id"])
        if name in by_id:
            raise UserError(f"{path}: {where}: the id was given to an earlier record too.")
        by_id[name] = _texts(record.get("captions", []), name, str(path))
        if isinstance(record.get("file"), str):
            ids_of_files[place(str(absolute(record["file"], folder)))] = name
    if split is not None and not by_id:
        names = ", ".join(sorted(map(repr, splits))) or "none"
        raise UserError(f"{path}: has no split {split!r}; it has {names}.")
    return Captions(str(path), by_id, ids_of_files)


def _are_records(value: Any) -> bool:
    return isinstance(value, list) and (not value or isinstance(value[0], dict))


def _lines(path: Path, broken: list[str] | None) -> list[Any]:
    """JSON lines.  Only "\\n" ends a line: JSON text may hold every other line break."""
    lines = files.read_text(path).split("\n")
    if broken is not None:
        rows, left_out = json_rows((line.encode() for line in lines), partial(_usable, source=path))
        return _but_slips(rows, left_out, path, broken)
    return [
        files.parse_json(line, path, line=number, pairs=lambda pairs: _once(pairs, path))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _usable(row: Any, source: Path) -> Any:
    """The same row, or a ValueError."""
    try:
        _gathered([row], str(source))
    except UserError as error:
        raise ValueError(str(error).removeprefix(f"{source}: ").removeprefix("entry 1 ").rstrip(".")) from None
    return row


def _but_slips(rows: list[Any], left_out: list[BrokenLine], path: Path, broken: list[str]) -> list[Any]:
    if not are_slips(len(rows), len(left_out)):
        raise UserError(f"{path}: {left_out[0]}.")
    broken += [f"{path}: {line}; it is left out" for line in left_out]
    return rows


def _cells(path: Path, broken: list[str] | None) -> list[Any]:
    """Rows of a table with a line of names; an empty cell is none, but for the caption."""
    try:
        table = tables.parse_csv(files.read_text(path, errors="surrogateescape"), strict=broken is None)
    except ValueError as error:
        raise UserError(f"{path}: this is not a table in CSV ({error}).") from None
    rows = []
    for row in table.rows:
        cells = {name: tables.text_of(cell) for name, cell in row.items() if name and cell}
        cells |= {"file": tables.name_of(row["file"])} if row.get("file") else {}
        rows.append(cells if "error" in cells or "caption" not in row else {"caption": "", **cells})
    return rows if broken is None else _but_slips(rows, table.broken, path, broken)


def place(name: str) -> str:
    """One name for a file, however it was named."""
    try:
        return str(files.real(Path(name)))
    except ValueError:  # a NUL byte: an id that is no file's name
        return name


def _once(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    """An object whose keys are told apart: Python would keep the last of two without a word."""
    content = dict(pairs)
    if len(content) < len(pairs):
        for key, value in pairs:
            if content[key] != value:
                raise UserError(f"{path}: {key!r} occurs twice, with different captions.")
    return content


def _id(id: Any, source: str) -> str:
    if isinstance(id, bool) or not isinstance(id, Integral | str):
        shown = json.dumps(id, default=str)
        raise UserError(f"{source}: an id must be a whole number or a string, not {shown[:40]}.")
    return str(id)


def _texts(captions: Any, name: str, source: str) -> list[str]:
    if isinstance(captions, str):
        return [captions]
    if not isinstance(captions, Sequence):
        raise UserError(f"{source}: {name!r}: must be a caption or a list of captions, not {files.type_of(captions)}.")
    return [
        _text(_of_record(caption, name, source) if isinstance(caption, Mapping) else caption, name, source)
        for caption in captions
    ]


def _of_record(record: Mapping[Any, Any], name: str, source: str) -> Any:
    """The caption of a record as COCO annotations have them; its "id" is the annotation's, which is no photo's."""
    if "image_id" in record and (other := _id(record["image_id"], source)) != name:
        raise UserError(f"{source}: {name!r}: one of its captions has the image_id {other!r}.")
    if "caption" not in record:
        raise UserError(f'{source}: {name!r}: "caption" is missing.')
    return record["caption"]


def _text(caption: Any, name: str, source: str) -> str:
    if not isinstance(caption, str):
        raise UserError(f"{source}: {name!r}: a caption must be a string, not {files.type_of(caption)}.")
    return caption


# Records of data files


def name_of(record: Any, position: int, kind: str) -> str:
    """The name of a record in a sentence: its id, or its place where that does not help to find it."""
    thing = kind.removesuffix("s")
    id = record.get("id") if isinstance(record, dict) else None
    # repr, because an id may hold what no terminal can show
    return f"{thing} {id!r}" if isinstance(id, int | str) and id != "" else f"{thing} number {position}"


def refuse_other_formats(records: list[Any], path: Path, mark: str) -> None:
    """One sentence instead of one for each record, where several formats keep records of another shape in "images".

    The key of a photo's name gives a format away; `mark` is the one to expect.
    """
    first = next((record for record in records if isinstance(record, dict)), {})
    if mark in first:
        return
    if "file" in first:
        raise UserError(f"{path}: this is a data file already; there is nothing to prepare.")
    for other, name in (("file_name", "coco"), ("filename", "karpathy")):
        if other in first:
            command = f"tellapart prepare {name} {path} --out DATA.json"
            raise UserError(f"{path}: this is in the {name} format; make a data file of it with: {command}")


def folder_of(path: Path) -> Path:
    """The real folder of a file.  The file's own link is not followed: its photos are beside the link."""
    return files.real(path.parent)


def absolute(file: str, folder: Path) -> Path:
    """A file named relative to `folder`, or absolutely."""
    path = folder / file
    # A link before ".." leads to another folder than the text of the path says, so the file system has to be asked.
    return files.real(path.parent) / path.name if ".." in path.parts else path


# The captions that a model was trained on


class TrainingCaptions:
    """A set of captions by their words.

    >>> training = TrainingCaptions([["a", "dog"]])
    >>> ["a", "dog"] in training, ["a", "cat"] in training
    (True, False)
    """

    def __init__(self, captions: Iterable[Sequence[str]]):
        self._captions = {" ".join(words) for words in captions}

    def __contains__(self, words: Sequence[str]) -> bool:
        return " ".join(words) in self._captions

    def __len__(self) -> int:
        return len(self._captions)

    @cached_property
    def signature(self) -> str:
        """Their number and a hash: two sets that are not the same have another one."""
        digest = hashlib.sha256("\n".join(sorted(self._captions)).encode("utf-8", "surrogatepass"))
        return f"{len(self)}-{digest.hexdigest()[:8]}"


def read_training(sources: str | Path | Sequence[str | Path]) -> TrainingCaptions:
    """The captions of some files: of a data file those of its split "train", or all where it has no splits."""
    texts: list[str] = []
    for source in [sources] if isinstance(sources, str | Path) else sources:
        path = Path(source)
        content = files.read_json_value(path)
        references = references_from(content, path, "train" if _has_splits(content) else None)
        texts += [text for captions in references.by_id.values() for text in captions]
    if not texts:
        raise UserError("the files of training captions hold no caption.")
    return TrainingCaptions(tokenize_file(texts))


def _has_splits(content: Any) -> bool:
    groups = [content.get(kind) for kind in KINDS] if isinstance(content, Mapping) else []
    records = [record for group in groups if isinstance(group, list) for record in group]
    return any(isinstance(record, Mapping) and record.get("split") for record in records)
