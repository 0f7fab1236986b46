"""Data files: {"dataset": name, "images": [{"id", "file", "split", "captions": [...]}]}, or "videos"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capscore import files
from capscore.errors import UserError

KINDS = ("images", "videos")


def name_of(record: Any, position: int, kind: str) -> str:
    """What to call a record in a sentence: by its id, and by where it stands when that does not help to find it."""
    one = kind.removesuffix("s")
    id = record.get("id") if isinstance(record, dict) else None
    # repr, because an id may hold what no terminal can show
    return f"{one} {id!r}" if isinstance(id, int | str) and id != "" else f"{one} number {position}"


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
