"""MSVD (the Microsoft Research Video Description Corpus) in the two published forms:

    VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description        video_corpus.csv
    -4wsuPCjDBc_5_15 a squirrel is eating a peanut                                AllVideoDescriptions.txt

Clips have their places in the papers' split (1,200 train, 100 val, 670 test) by the order of their names, or by
youtube_mapping.txt beside the source ("-4wsuPCjDBc_5_15 vid1").  Descriptions in other languages are left out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from capscore.data_files import folder_of
from capscore.errors import UserError
from capscore.files import is_file, read_text
from tellapart.data.examples import DataSet, Example, check
from tellapart.data.readers.shared import find_photo, photo_folders

CLIPS, TRAIN, VAL = 1970, 1200, 100
_HEADER = ("videoid", "start", "end", "language", "description")


def read(source: Path, photos: Path | None = None) -> DataSet:
    lines = [line.rstrip("\r") for line in read_text(source).split("\n")]
    header = [name.strip('"\ufeff ').lower() for name in lines[0].split(",")]
    captions: dict[str, list[str]] = {}
    problems = []
    for position, found in _from_csv(lines, header) if set(_HEADER) <= set(header) else _from_text(lines):
        if found is None:
            problems.append(f"{source}: line {position}: it has no clip and description in the form of the others.")
        else:
            captions.setdefault(found[0], []).append(found[1])
    if not captions:
        raise UserError(
            f"{source}: these are not MSVD's descriptions: the lines are neither ID_START_END DESCRIPTION nor a table "
            "with VideoID, Start, End, Language and Description."
        )
    folders = photo_folders(source, photos)
    records = ({"id": name, "file": _file(name, folders), "captions": own} for name, own in captions.items())
    examples, broken = check(records, source=source, folder=folder_of(source), kind="videos")
    dataset = DataSet("msvd", examples, kind="videos", problems=problems + broken)
    return _with_splits(dataset, source)


def _from_csv(lines: list[str], header: list[str]) -> Iterator[tuple[int, tuple[str, str] | None]]:
    places = [header.index(name) for name in _HEADER]
    for position, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            (cells,) = csv.reader([line], strict=True)
            clip, start, end, language, text = (cells[place] for place in places)
        except (csv.Error, ValueError, IndexError):
            yield position, None
            continue
        if language.strip().lower() == "english":
            yield position, (f"{clip}_{start}_{end}", text)


def _from_text(lines: list[str]) -> Iterator[tuple[int, tuple[str, str] | None]]:
    for position, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            found = re.fullmatch(r"(\S+_\d+_\d+)\s+(.*)", line)
            yield position, (found[1], found[2]) if found else None


def _file(name: str, folders: list[Path]) -> str:
    for suffix in (".avi", ".mp4"):  # as published, and as many have converted them
        file: str = find_photo(name + suffix, folders)
        if is_file(Path(file)):
            break
    return file


def _with_splits(dataset: DataSet, source: Path) -> DataSet:
    mapping = folder_of(source) / "youtube_mapping.txt"
    if is_file(mapping):
        pairs = re.findall(r"^(\S+)\s+vid(\d{1,6})\s*$", read_text(mapping), re.MULTILINE)
        places = {name: int(number) - 1 for name, number in pairs}
        examples = [example for example in dataset.examples if str(example.id) in places]
    else:
        # The table names clips that were never published; those that are here decide.
        here = [example for example in dataset.examples if is_file(example.file)]
        examples = here if len(here) == CLIPS else dataset.examples
        if len(examples) != CLIPS:
            why = f"has {len(examples):,} clips, not {CLIPS:,}, and there is no youtube_mapping.txt beside it"
            return replace(dataset, problems=[*dataset.problems, f"{source}: {why}: the splits are not known."])
        places = {name: place for place, name in enumerate(sorted(str(example.id) for example in examples))}
    examples.sort(key=lambda example: places[str(example.id)])
    return replace(dataset, examples=[_placed(example, places[str(example.id)]) for example in examples])


def _placed(example: Example, place: int) -> Example:
    split = "train" if place < TRAIN else "val" if place < TRAIN + VAL else "test"
    return replace(example, split=split)
