"""Captions for the COCO evaluation server: a JSON list of {"image_id", "caption"}.

Rows are made in a file of JSON lines beside it, with all that a run needs to continue where it stopped; the list is
written when they are done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from capscore import files
from capscore.errors import UserError
from tellapart.data.items import Input
from tellapart.desk.rows import Row

SUFFIX = ".json"


def rows_beside(path: Path) -> Path:
    """The file of rows.  What is at `path` must be results, or nothing: it will be replaced."""
    if files.is_file(path):
        existing = files.read_json_value(path)
        if not isinstance(existing, list) or not all(
            isinstance(one, dict) and one.keys() == {"image_id", "caption"} for one in existing
        ):
            raise UserError(f"--out {path}: exists and is no file of COCO results; choose another name.")
    beside = path.with_suffix(".jsonl")
    files.refuse_link(beside)  # the user named the other
    return beside


def require_ids(inputs: Sequence[Input], path: Path) -> None:
    for photo in inputs:
        if photo.id is None:
            raise UserError(
                f"--out {path}: COCO results need image ids, which {photo.file} has none of; give a data file."
            )


def write(rows: Iterable[Row], inputs: Sequence[Input], path: Path) -> None:
    """The captions of these photos, each once, in their order."""
    captions = {row["id"]: row["caption"] for row in rows if "caption" in row and "id" in row}
    results = [{"image_id": photo.id, "caption": captions[photo.id]} for photo in inputs if photo.id in captions]
    files.replace(path, (json.dumps(results) + "\n").encode(), by_user=True)
