"""Concadia: wiki_split.json, Wikipedia's images with two kinds of text.

    {"images": [{"filename": "70.jpg", "split": "test", "caption": {"raw": "Reentry ...", "tokens": [...]},
     "description": {"raw": "White streaks of light ...", "tokens": [...]}, "context": {...}}]}

A caption goes with an image, a description stands in for it.  `captions` has the captions; the descriptions are a key
of their own, which `evaluate --text descriptions` compares with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capscore.data_files import folder_of
from capscore.errors import UserError
from capscore.files import read_json
from tellapart.data.examples import DataSet, check, listed
from tellapart.data.readers.shared import SPLITS, find_photo, photo_folders

FIELDS = {"id": "filename", "file": "filename", "captions": "caption"}


def read(source: Path, photos: Path | None = None) -> DataSet:
    content = read_json(source)
    images = listed(content, "images", source)
    if images and not any(isinstance(image, dict) and "description" in image for image in images):
        raise UserError(f'{source}: this is not Concadia: no image has a "description".')
    folders = photo_folders(source, photos)
    examples, problems = check(
        (_record(image, folders) for image in images), source=source, folder=folder_of(source), fields=FIELDS
    )
    return DataSet("concadia", examples, problems=problems)


def _record(image: Any, folders: list[Path]) -> Any:
    """An image in our schema.  What is broken stays broken: `check` finds the words for it."""
    if not isinstance(image, dict):
        return image
    name, split = image.get("filename"), image.get("split", "")
    return {
        "id": name,
        "file": find_photo(name, folders),
        "split": SPLITS.get(split, split) if isinstance(split, str) else split,
        "captions": _texts(image.get("caption")),
        "descriptions": [text for text in _texts(image.get("description")) if isinstance(text, str)],
    }


def _texts(text: Any) -> list[Any]:
    raw = text.get("raw") if isinstance(text, dict) else text
    return [] if raw is None else [raw]
