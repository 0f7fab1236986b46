"""Conceptual Captions as it is published: a caption, a tab and the URL of its image in a line.

    a very typical bus station<TAB>http://lh6.ggpht.com/-IvRtNLNcG8o/TpFyrudaT6I/AAAAAAAAM6o/_11MuAAKalQ/IMG_3422.JPG?imgmax=800

Train_GCC-training.tsv, Validation_GCC-1.1.0-Validation.tsv.  Nothing is fetched: photos are those that you have.  They are
looked for by the line's number from 0 (as img2dataset names them, 000000012.jpg, also in its folders of 10,000), and
by the CRC-32 of the URL (as in the first program for it, and those after it).  Both files count from 0: photos of each
may be in a folder of their own, training/ and validation/, and ids have the split, train-12.  `url` is kept.
"""  # noqa: E501  a record of the file

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capscore.data_files import folder_of
from capscore.errors import UserError
from capscore.files import is_folder, read_text
from tellapart.data.examples import DataSet, check
from tellapart.data.readers.shared import find_photo, photo_folders, split_in_name

_SPLITS = {"training": "train", "validation": "val"}
_FOLDERS = {"train": ("training", "train"), "val": ("validation", "val")}  # of the photos of one file
_SHARD = 10_000  # photos of one folder


def read(source: Path, photos: Path | None = None) -> DataSet:
    lines = [line.rstrip("\r") for line in read_text(source).split("\n")]
    if not any(_parsed(line) for line in lines[:10]):
        raise UserError(f"{source}: this is not Conceptual Captions: no line is CAPTION<TAB>URL.")
    problems = [
        f"{source}: line {number}: it is not a caption, a tab and a URL."
        for number, line in enumerate(lines, start=1)
        if line.strip() and not _parsed(line)
    ]
    named = source.name.lower()
    split = next((split for word, split in _SPLITS.items() if word in named), split_in_name(source))
    folders = photo_folders(source, photos)
    own = [folder / name for folder in folders for name in _FOLDERS.get(split, ()) if is_folder(folder / name)]
    records = _records(lines, own or folders, split)
    examples, broken = check(records, source=source, folder=folder_of(source))
    return DataSet("conceptual", examples, problems=problems + broken)


def _parsed(line: str) -> tuple[str, str] | None:
    caption, tab, url = line.partition("\t")
    return (caption, url.strip()) if tab and url.strip().startswith(("http://", "https://")) else None


def _records(lines: list[str], folders: list[Path], split: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines):
        if parsed := _parsed(line):
            caption, url = parsed
            names = [f"{number:09}.jpg", f"{zlib.crc32(url.encode())}.jpg", f"{zlib.crc32(url.encode())}"]
            shard = f"{number // _SHARD:05}"
            places = [find_photo(name, folders, shard, "") for name in names]
            file = next((place for place in places if Path(place).is_file()), str(folders[0] / names[0]))
            yield {
                "id": f"{split}-{number}" if split else number,
                "file": file,
                "split": split,
                "captions": [caption],
                "url": url,
            }
