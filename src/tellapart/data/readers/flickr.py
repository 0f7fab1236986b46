"""Flickr8k and Flickr30k as text, a caption to a line, in the three published forms:

    1000268201_693b08cb0e.jpg#0<TAB>A child in a pink dress ...       Flickr8k.token.txt, results_20130124.token
    image,caption                                                     captions.txt, with or without a comment_number
    image_name| comment_number| comment                               results.csv

The splits come from lists beside it, if there are any: Flickr_8k.trainImages.txt, .devImages.txt, .testImages.txt.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

from capscore.data_files import folder_of
from capscore.errors import UserError
from capscore.files import read_text
from tellapart.data.examples import DataSet, check
from tellapart.data.readers.shared import find_photo, photo_folders, split_in_name, with_splits

Line = Callable[[str], tuple[str, str] | None]  # a line -> name of the photo and caption, or None if it is malformed


def read(source: Path, photos: Path | None = None) -> DataSet:
    from tellapart.data.media.photos import PHOTO_SUFFIXES  # here, because it brings an image library with it

    captions: dict[str, list[str]] = {}
    problems = []
    lines = [line.rstrip("\r") for line in read_text(source).split("\n")]
    parse, first = _form(lines, source)
    for position, line in enumerate(lines[first:], start=first + 1):
        if not line.strip():
            continue
        parsed = parse(line)
        if parsed is None:
            problems.append(f"{source}: line {position}: it has no photo and caption in the form of the other lines.")
        elif Path(parsed[0]).suffix.lower() not in PHOTO_SUFFIXES:  # Flickr8k has five such lines
            problems.append(f"{source}: line {position}: {parsed[0]!r} is not the name of a photo.")
        else:
            captions.setdefault(parsed[0], []).append(parsed[1])

    folders = photo_folders(source, photos)
    records = ({"id": name, "file": find_photo(name, folders), "captions": own} for name, own in captions.items())
    examples, broken = check(records, source=source, folder=folder_of(source))
    name = "flickr30k" if "30k" in str(source).lower() or source.name.startswith("results") else "flickr8k"
    dataset = DataSet(name, examples, problems=problems + broken)
    lists = sorted(filter(split_in_name, folder_of(source).glob("*Images.txt")))
    return with_splits(dataset, lists) if lists else dataset


def _form(lines: list[str], source: Path) -> tuple[Line, int]:
    """How to take a line apart, and at which line to begin."""
    header = re.sub(r'[\s"]', "", lines[0].lower())
    if header.startswith("image_name|"):
        return _piped, 1
    if re.fullmatch(r"(image|image_name),(.+,)?(caption|comment)", header):
        return _comma_separated(header.count(",") + 1), 1
    if any(map(_token, lines[:10])):
        return _token, 0
    raise UserError(
        f"{source}: these are not Flickr captions: the first lines are neither NAME.jpg#0<TAB>CAPTION nor "
        '"image,caption" nor "image_name| comment_number| comment".'
    )


def _token(line: str) -> tuple[str, str] | None:
    found = re.fullmatch(r"(.+?)#\d+\t(.*)", line)
    return (found[1].strip(), found[2]) if found else None


def _piped(line: str) -> tuple[str, str] | None:
    """The second | may be missing, as in the 20,000th caption of the published results.csv."""
    found = re.fullmatch(r"([^|]+)\|\s*\d+(?:\s*\||\s)(.*)", line)
    return (found[1].strip(), found[2]) if found else None


def _comma_separated(columns: int) -> Line:
    def parse(line: str) -> tuple[str, str] | None:
        try:
            # Line by line, and not the file as a whole: a quotation mark left open would swallow the captions after it.
            (cells,) = csv.reader([line], strict=True)
        except (csv.Error, ValueError):
            return None
        if len(cells) < columns:
            return None
        return cells[0].strip(), ",".join(cells[columns - 1 :])  # a caption with unquoted commas

    return parse
