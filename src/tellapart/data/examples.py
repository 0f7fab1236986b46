"""The one schema: what every reader makes and everything else takes.

    {"dataset": name, "images": [{"id", "file", "split", "captions": [...]}]}      (or "videos")

`file` is relative to the JSON file or absolute, and may name a segment of a clip, `trip.mp4#t=12.5,20`: seconds, as in
addresses on the web.  `captions` may be absent.  Unknown keys are kept.

A file that is wrong as a whole is a `UserError`.  A record that is wrong is left out and named in `DataSet.problems`:
one bad line among 100,000 should not cost a night's run, and should not go unnoticed either.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from capscore import files
from capscore.caption_files import KINDS, absolute, folder_of, name_of, refuse_other_formats
from capscore.errors import UserError
from tellapart.data.tokenizers import split_words


@dataclass(frozen=True)
class Example:
    """One photo or clip of a data set."""

    id: int | str
    file: Path  # absolute; Path() where a record has none
    split: str = ""
    captions: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)  # keys the schema does not know, kept as they were


@dataclass
class DataSet:
    name: str
    examples: list[Example]
    kind: str = "images"  # or "videos"
    problems: list[str] = field(default_factory=list)  # a sentence for each record or caption that was left out
    extra: dict[str, Any] = field(default_factory=dict)  # top-level keys the schema does not know

    def split(self, name: str) -> list[Example]:
        return [example for example in self.examples if example.split == name]


def read(path: Path | str, *, needs_files: bool = True) -> DataSet:
    """A data file, plain or gzipped.  Where only captions matter, `needs_files=False` takes records without a photo."""
    path = Path(path)
    content = files.read_json(path)
    kinds = [kind for kind in KINDS if kind in content]
    if len(kinds) != 1:
        which = "both" if kinds else "neither"
        raise UserError(f'{path}: a data file has a list "images" or a list "videos"; this one has {which}.')
    records = listed(content, kinds[0], path)
    refuse_other_formats(records, path, mark="file")
    examples, problems = check(records, source=path, folder=folder_of(path), kind=kinds[0], needs_files=needs_files)
    name = content.get("dataset", stem(path))
    if not isinstance(name, str):
        raise UserError(f'{path}: "dataset" must be a string, not {files.type_of(name)}.')
    extra = {key: value for key, value in content.items() if key not in ("dataset", kinds[0])}
    return DataSet(name, examples, kinds[0], problems, extra)


def write(dataset: DataSet, path: Path | str) -> None:
    """The whole data set or nothing: what was at `path` before stays until the new file is complete."""
    path = Path(path)
    try:
        data = _to_json(dataset, folder_of(path)).encode("ascii")
    except RecursionError:
        raise UserError(f"{path}: a value among the unknown keys is nested too deeply to be written.") from None
    files.replace(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data, by_user=True)


def _to_json(dataset: DataSet, folder: Path) -> str:
    """A record to a line, so that grep and diff are useful.

    ASCII, because a file name need not be UTF-8: Python keeps its odd bytes as lone surrogates, which JSON can escape
    and UTF-8 cannot write.
    """
    head = json.dumps({"dataset": dataset.name, **dataset.extra})
    names = relative_names((example.file for example in dataset.examples), folder)
    records = [
        json.dumps({"id": e.id, "file": file, "split": e.split, "captions": e.captions, **e.extra})
        for e, file in zip(dataset.examples, names, strict=True)
    ]
    return f'{head[:-1]}, "{dataset.kind}": [\n' + ",\n".join(records) + "\n]}\n"


# Records


def check(
    records: Iterable[Any],
    *,
    source: Path,
    folder: Path,
    kind: str = "images",
    fields: Mapping[str, str] | None = None,
    ids: set[str] | None = None,
    needs_files: bool = True,
) -> tuple[list[Example], list[str]]:
    """The records that keep to the schema, as examples, and a sentence for each record or caption that does not.

    `source` is named in the sentences, `folder` is what a relative `file` is relative to.  A reader of another format
    turns its records into ours and has them checked here; `fields` says how that format calls our keys, so that a
    sentence names what the user can find in the file.  `ids` is shared between the files of one data set.
    """
    fields, ids = fields or {}, set() if ids is None else ids
    examples, problems = [], []
    for position, record in enumerate(records, start=1):
        broken = _why_broken(record, fields, ids, needs_files)
        if broken:
            problems.append(f"{source}: {name_of(record, position, kind)}: {broken}")
            continue
        ids.add(str(record["id"]))
        captions, faults = _captions(record.get("captions", []), fields)
        problems += [f"{source}: {name_of(record, position, kind)}: {problem}" for problem in faults]
        extra = {key: value for key, value in record.items() if key not in ("id", "file", "split", "captions")}
        file = absolute(record["file"], folder) if record.get("file") is not None else Path()
        examples.append(Example(record["id"], file, clean(record.get("split", "")), captions, extra))
    return examples, problems


def clean(text: str) -> str:
    """One line of text: white space runs become one space, control characters and halves of characters go."""
    return " ".join(_NOT_TEXT.sub(" ", text).split())


_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def _why_broken(record: Any, fields: Mapping[str, str], ids: set[str], needs_files: bool) -> str:
    """The reason why a record cannot be used; empty where it can."""

    def called(key: str) -> str:
        return f'"{fields.get(key, key)}"'

    if not isinstance(record, dict):
        return f"it must be an object, not {files.type_of(record)}."
    id, file, split = record.get("id"), record.get("file"), record.get("split", "")
    if id is None:
        return f"{called('id')} is missing."
    if not isinstance(id, int | str) or isinstance(id, bool):
        fraction = " with a fraction" if isinstance(id, float) else ""
        return f"{called('id')} must be a whole number or a string, not {files.type_of(id)}{fraction}."
    if id == "":
        return f"{called('id')} is empty."
    if str(id) in ids:  # 1 and "1" are one id: a file of results has them as keys, and JSON's keys are strings
        return f"{called('id')} was given to an earlier record too; this one is left out."
    if file is None and needs_files:
        return f"{called('file')} is missing."
    if not isinstance(file, str | None):
        return f"{called('file')} must be a string, not {files.type_of(file)}."
    if file is not None and not _can_be_a_file(file):
        return f"{called('file')} {file!r} cannot be the name of a file."
    if not isinstance(split, str):
        return f"{called('split')} must be a string, not {files.type_of(split)}."
    if not isinstance(record.get("captions", []), list):
        return f"{called('captions')} must be a list of strings, not {files.type_of(record['captions'])}."
    return ""


def _captions(captions: list[Any], fields: Mapping[str, str]) -> tuple[tuple[str, ...], list[str]]:
    """The captions that can be used, and what is wrong with the others."""
    key = fields.get("captions", "captions")
    kept, problems = [], []
    for position, caption in enumerate(captions, start=1):
        text = clean(caption) if isinstance(caption, str) else ""
        if not isinstance(caption, str):
            problems.append(f'"{key}" number {position} must be a string, not {files.type_of(caption)}.')
        elif not any(character.isprintable() and character != " " for character in text):  # zero-width ones are not
            problems.append(f'"{key}" number {position} is empty.')
        else:
            kept.append(text)
    return tuple(kept), problems


def _can_be_a_file(name: str) -> bool:
    try:
        return name.strip() != "" and b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:  # half of a character that no file system gave us
        return False


# Files


def listed(content: dict[str, Any], key: str, path: Path) -> list[Any]:
    """A list that a file must have."""
    if key not in content:
        raise UserError(f'{path}: there is no list "{key}" in it.')
    value = content[key]
    if not isinstance(value, list):
        raise UserError(f'{path}: "{key}" must be a list, not {files.type_of(value)}.')
    return value


def stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")


def relative_names(paths: Iterable[Path], folder: Path) -> list[str]:
    """Names of files for a file in `folder`: relative to it where they lie below it, else absolute."""
    start = f"{folder}/".replace("//", "/")  # text, because Path.relative_to takes seconds for 100,000 photos
    names = [str(file.absolute()) for file in paths]
    elsewhere = [name for name in names if not name.startswith(start)]
    real = dict(zip(elsewhere, places(elsewhere), strict=True))  # below it all the same, where a link leads there
    return [(real[name] if real.get(name, "").startswith(start) else name).removeprefix(start) for name in names]


# Photos that must not be learned from, in any data set


class Exclusion:
    """Photos that a run must not learn from, such as those that another one is judged by.

    The same photo is known by its id in a data set of the same name, or by its file's name; and, because data sets
    name their photos differently, by two captions that they share.

    which  of the photos of these data sets; all unless it is given
    """

    def __init__(self, sets: Iterable[DataSet], which: Callable[[Example], bool] = lambda example: True):
        self._names, self._captions = set[str](), set[str]()
        for dataset in sets:
            for example in filter(which, dataset.examples):
                self._names |= _names(example, dataset.name)
                self._captions.update(map(_words, example.captions))

    @classmethod
    def of_files(cls, files: Iterable[str], which: Callable[[Example], bool] = lambda example: True) -> Exclusion:
        return cls((read(Path(file), needs_files=False) for file in files), which)

    def has(self, example: Example, dataset: str) -> bool:
        if not self._names.isdisjoint(_names(example, dataset)):
            return True
        captions = set(map(_words, example.captions))
        return len(captions & self._captions) >= min(2, max(len(captions), 1))


def _names(example: Example, dataset: str) -> set[str]:
    names = {f"{dataset}:{example.id}"} | ({example.file.stem} if example.file.name else set())
    return names | ({Path(example.id).stem} if isinstance(example.id, str) else set())


def _words(caption: str) -> str:
    return " ".join(split_words(caption))


# Segments of clips: all that takes the name of a file takes that of a segment

_SECONDS = r"\d{1,9}(?:\.\d{1,9})?"
_SEGMENT = re.compile(rf"(.+)#t=({_SECONDS})(?:,({_SECONDS}))?", re.DOTALL)


class Segment(NamedTuple):
    file: str
    start: float  # seconds
    end: float  # infinity: up to the end of the clip

    @property
    def name(self) -> str:
        """
        >>> Segment("trip.mp4", 12.5, 20).name
        'trip.mp4#t=12.5,20'
        """
        start, end = (f"{time:.3f}".rstrip("0").rstrip(".") for time in (self.start, self.end))
        return f"{self.file}#t={start},{end}"


def segment_of(name: str | os.PathLike[str]) -> Segment | None:
    """The segment that a name stands for; None for a whole file, also one that really has such a name.

    >>> segment_of("trip.mp4#t=12.5,20")
    Segment(file='trip.mp4', start=12.5, end=20.0)
    """
    match = _SEGMENT.fullmatch(os.fspath(name)) if "#t=" in os.fspath(name) else None
    if match is None or os.path.lexists(name):
        return None
    start, end = float(match[2]), float(match[3]) if match[3] else math.inf
    return Segment(match[1], start, max(start, end))


def file_of(name: str | os.PathLike[str]) -> Path:
    """The file that an item is in."""
    segment = segment_of(name)
    return Path(name if segment is None else segment.file)


def status_of(name: str | os.PathLike[str]) -> os.stat_result | None:
    """Of the file that an item is in; None where there is none."""
    try:
        return file_of(name).stat()
    except (OSError, ValueError):  # a NUL byte in the name
        return None


def places(names: Sequence[str]) -> list[str]:
    """Each file in one form, however it is named: its folder without links and "..", and its name there."""
    folders: dict[str, str] = {}
    paths = []
    for name in names:
        folder, last = os.path.split(name)
        if "\0" in name or last in ("", ".", ".."):
            paths.append(name)
            continue
        if folder not in folders:
            folders[folder] = str(files.real(Path(folder)))
        paths.append(os.path.join(folders[folder], last))  # noqa: PTH118 - strings, of many thousand photos
    return paths
