"""Data sets that are published as text: a photo or clip and a caption to a line."""

from __future__ import annotations

import csv
import re
import zlib
from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from capscore.caption_files import folder_of
from capscore.errors import UserError
from capscore.files import is_file, is_folder, read_text
from tellapart.data.examples import DataSet, check
from tellapart.data.readers.photos import find_photo, photo_folders, split_in_name, with_splits

Line = Callable[[str], tuple[str, str] | None]  # a line -> name of the photo and caption, or None if it is malformed


def _lines(source: Path) -> list[str]:
    return [line.rstrip("\r") for line in read_text(source).split("\n")]


def _cells(line: str) -> list[str]:
    """Of a line of CSV, none where it is malformed.

    Line by line, and not the file as a whole: a quotation mark left open would swallow the captions after it.
    """
    try:
        (cells,) = csv.reader([line], strict=True)
    except (csv.Error, ValueError):
        return []
    return cells


def read_flickr(source: Path, photos: Path | None = None) -> DataSet:
    """Flickr8k and Flickr30k, in the three published forms:

        1000268201_693b08cb0e.jpg#0<TAB>A child in a pink dress ...       Flickr8k.token.txt, results_20130124.token
        image,caption                                                     captions.txt, with or without a comment_number
        image_name| comment_number| comment                               results.csv

    The splits come from lists beside it, if there are any: Flickr_8k.trainImages.txt, .devImages.txt, .testImages.txt.
    """
    from tellapart.data.media.photos import PHOTO_SUFFIXES  # here, because it brings an image library with it

    captions: dict[str, list[str]] = {}
    problems = []
    lines = _lines(source)
    parse, first = _flickr_form(lines, source)
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
    records = ({"id": name, "file": find_photo(name, folders), "captions": texts} for name, texts in captions.items())
    examples, broken = check(records, source=source, folder=folder_of(source))
    name = "flickr30k" if "30k" in str(source).lower() or source.name.startswith("results") else "flickr8k"
    dataset = DataSet(name, examples, problems=problems + broken)
    lists = sorted(filter(split_in_name, folder_of(source).glob("*Images.txt")))
    return with_splits(dataset, lists) if lists else dataset


def _flickr_form(lines: list[str], source: Path) -> tuple[Line, int]:
    """The parser of a line, and the first line with a caption."""
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
    match = re.fullmatch(r"(.+?)#\d+\t(.*)", line)
    return (match[1].strip(), match[2]) if match else None


def _piped(line: str) -> tuple[str, str] | None:
    """The second | may be missing, as in the 20,000th caption of the published results.csv."""
    match = re.fullmatch(r"([^|]+)\|\s*\d+(?:\s*\||\s)(.*)", line)
    return (match[1].strip(), match[2]) if match else None


def _comma_separated(columns: int) -> Line:
    def parse(line: str) -> tuple[str, str] | None:
        cells = _cells(line)  # a caption may have unquoted commas
        return (cells[0].strip(), ",".join(cells[columns - 1 :])) if len(cells) >= columns else None

    return parse


# Conceptual Captions

_SPLITS = {"training": "train", "validation": "val"}
_FOLDERS = {"train": ("training", "train"), "val": ("validation", "val")}  # of the photos of one file
_SHARD = 10_000  # photos of one folder


def read_conceptual(source: Path, photos: Path | None = None) -> DataSet:
    """Conceptual Captions: a caption, a tab and the URL of its image in a line.

        a very typical bus station<TAB>http://lh6.ggpht.com/-IvRtNLNcG8o/.../_11MuAAKalQ/IMG_3422.JPG?imgmax=800

    Train_GCC-training.tsv, Validation_GCC-1.1.0-Validation.tsv.  Nothing is fetched: photos are those that you have.
    They are looked for by the line's number from 0 (as img2dataset names them, 000000012.jpg, also in its folders of
    10,000), and by the CRC-32 of the URL (as in the first program for it, and those after it).  Both files count from
    0: photos of each may be in a folder of their own, training/ and validation/, and ids have the split, train-12.
    `url` is kept.
    """
    lines = _lines(source)
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
    of_split = [folder / name for folder in folders for name in _FOLDERS.get(split, ()) if is_folder(folder / name)]
    records = []
    for number, (caption, url) in ((number, parsed) for number, line in enumerate(lines) if (parsed := _parsed(line))):
        names = [f"{number:09}.jpg", f"{zlib.crc32(url.encode())}.jpg", f"{zlib.crc32(url.encode())}"]
        around = of_split or folders
        places = [find_photo(name, around, f"{number // _SHARD:05}", "") for name in names]
        file = next((place for place in places if Path(place).is_file()), str(around[0] / names[0]))
        id = f"{split}-{number}" if split else number
        records.append({"id": id, "file": file, "split": split, "captions": [caption], "url": url})
    examples, broken = check(records, source=source, folder=folder_of(source))
    return DataSet("conceptual", examples, problems=problems + broken)


def _parsed(line: str) -> tuple[str, str] | None:
    caption, tab, url = line.partition("\t")
    return (caption, url.strip()) if tab and url.strip().startswith(("http://", "https://")) else None


# MSVD

CLIPS, ENDS = 1970, (1200, 1300)  # of the splits train and val; the rest is test
_HEADER = ("videoid", "start", "end", "language", "description")


def read_msvd(source: Path, photos: Path | None = None) -> DataSet:
    """MSVD (the Microsoft Research Video Description Corpus) in the two published forms:

        VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description        video_corpus.csv
        -4wsuPCjDBc_5_15 a squirrel is eating a peanut                                AllVideoDescriptions.txt

    Clips have their places in the papers' split (1,200 train, 100 val, 670 test) by the order of their names, or by
    youtube_mapping.txt beside the source ("-4wsuPCjDBc_5_15 vid1").  Descriptions in other languages are left out.
    """
    lines = _lines(source)
    header = [name.strip('"\ufeff ').lower() for name in lines[0].split(",")]
    captions: dict[str, list[str]] = {}
    problems = []
    for position, parsed in _from_csv(lines, header) if set(_HEADER) <= set(header) else _from_text(lines):
        if parsed is None:
            problems.append(f"{source}: line {position}: it has no clip and description in the form of the others.")
        else:
            captions.setdefault(parsed[0], []).append(parsed[1])
    if not captions:
        raise UserError(
            f"{source}: these are not MSVD's descriptions: the lines are neither ID_START_END DESCRIPTION nor a table "
            "with VideoID, Start, End, Language and Description."
        )
    folders = photo_folders(source, photos)
    records = []
    for name, texts in captions.items():  # as published, and as many have converted them
        files = [find_photo(f"{name}.{suffix}", folders) for suffix in ("avi", "mp4")]
        file = next((file for file in files if is_file(Path(file))), files[-1])
        records.append({"id": name, "file": file, "captions": texts})
    examples, broken = check(records, source=source, folder=folder_of(source), kind="videos")
    dataset = DataSet("msvd", examples, kind="videos", problems=problems + broken)
    return _with_papers_split(dataset, source)


def _from_csv(lines: list[str], header: list[str]) -> Iterator[tuple[int, tuple[str, str] | None]]:
    places = [header.index(name) for name in _HEADER]
    for position, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        cells = _cells(line)
        if len(cells) <= max(places):
            yield position, None
            continue
        clip, start, end, language, text = (cells[place] for place in places)
        if language.strip().lower() == "english":
            yield position, (f"{clip}_{start}_{end}", text)


def _from_text(lines: list[str]) -> Iterator[tuple[int, tuple[str, str] | None]]:
    for position, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            match = re.fullmatch(r"(\S+_\d+_\d+)\s+(.*)", line)
            yield position, (match[1], match[2]) if match else None


def _with_papers_split(dataset: DataSet, source: Path) -> DataSet:
    mapping = folder_of(source) / "youtube_mapping.txt"
    if is_file(mapping):
        pairs = re.findall(r"^(\S+)\s+vid(\d{1,6})\s*$", read_text(mapping), re.MULTILINE)
        places = {name: int(number) - 1 for name, number in pairs}
        examples = [example for example in dataset.examples if str(example.id) in places]
    else:
        # The table names clips that were never published; those that are here decide.
        existing = [example for example in dataset.examples if is_file(example.file)]
        examples = existing if len(existing) == CLIPS else list(dataset.examples)
        if len(examples) != CLIPS:
            why = f"has {len(examples):,} clips, not {CLIPS:,}, and there is no youtube_mapping.txt beside it"
            return replace(dataset, problems=[*dataset.problems, f"{source}: {why}: the splits are not known."])
        places = {name: place for place, name in enumerate(sorted(str(example.id) for example in examples))}
    examples.sort(key=lambda example: places[str(example.id)])
    splits = [("train", "val", "test")[bisect(ENDS, places[str(example.id)])] for example in examples]
    return replace(dataset, examples=[replace(e, split=split) for e, split in zip(examples, splits, strict=True)])
