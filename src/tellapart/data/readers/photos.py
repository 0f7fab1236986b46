"""The photos of a data set: the folders in which they are looked for, and which split a name stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from capscore.caption_files import folder_of
from capscore.errors import UserError
from capscore.files import is_file, is_folder, read_text, real
from capscore.printable import first_few
from tellapart.data.examples import DataSet, Example

# Where the archives of the data sets unpack their photos
PHOTO_FOLDERS = (
    *("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "flickr30k_images"),
    *("videos", "TrainValVideo", "TestVideo", "YouTubeClips"),
)

SPLITS = {
    "train": "train",
    "restval": "train",  # Karpathy's name for the rest of COCO's val, which is used for training
    "val": "val",
    "valid": "val",
    "validation": "val",
    "validate": "val",  # MSR-VTT
    "dev": "val",
    "test": "test",
}


@cache  # asked for each image of a file
def split_in_name(path: Path) -> str:
    """captions_val2014.json -> val, Flickr_8k.devImages.txt -> val, captions.json -> ''."""
    words = "|".join(sorted(SPLITS, key=len, reverse=True))
    match = re.search(rf"(?<![a-z])({words})(?=images|[^a-z]|$)", path.name.lower())
    return SPLITS[match[1]] if match else ""


def photo_folders(source: Path, photos: Path | None) -> list[Path]:
    """The folders in which to look for photos: the one that was given, else those beside the source and one above; and
    in each the ones that archives unpack."""
    if photos is not None:
        if not is_folder(photos):
            raise UserError(f"{photos}: there is no such folder of photos.")
        folder = real(photos)
        return [folder, *(folder / name for name in PHOTO_FOLDERS if is_folder(folder / name))]
    here = real(source) if is_folder(source) else folder_of(source)
    around = [folder / name for folder in (here, here.parent) for name in (*PHOTO_FOLDERS, "")]
    return [folder for folder in around if is_folder(folder)] or [here]


def find_photo(name: Any, folders: list[Path], *subfolders: Any) -> Any:
    """The path of the first file there is by this name, else where one would expect it.

    A name or a subfolder that is no string is none of our business: the record is checked as a whole later.
    """
    if not isinstance(name, str) or not name:
        return name
    inside = [subfolder for subfolder in (*subfolders, "") if isinstance(subfolder, str)]
    candidates = (folder / subfolder / name for folder in folders for subfolder in inside)
    return str(next(filter(is_file, candidates), folders[0] / inside[0] / name))


def with_splits(dataset: DataSet, lists: Iterable[Path]) -> DataSet:
    """The data set with its splits as lists of photos say, one name in a line; the list's own name says which split.

    A photo in no list gets no split: it was left out of them on purpose, as 91 photos of Flickr8k were.
    """
    names_of_photos = {key for example in dataset.examples for key in _keys(example)}
    splits: dict[str, str] = {}
    problems = []
    for path in lists:
        split = split_in_name(path)
        if not split:
            raise UserError(f"{path}: the name of a split file must say which split it lists: train, val, dev or test.")
        names = dict.fromkeys(filter(None, map(str.strip, read_text(path).split("\n"))))
        for name in names:
            if splits.setdefault(name, split) != split:  # training on the test split must not happen quietly
                problems.append(f"{path}: {name!r} is in the {splits[name]} split already, and stays there.")
        unknown = [name for name in names if name not in names_of_photos]
        if unknown:
            some = first_few(map(repr, unknown))
            problems.append(f"{path}: {len(unknown)} of its {len(names)} names are not in the data: {some}.")
    of_examples = [next((splits[key] for key in _keys(e) if key in splits), "") for e in dataset.examples]
    examples = [replace(e, split=split) for e, split in zip(dataset.examples, of_examples, strict=True)]
    return replace(dataset, examples=examples, problems=dataset.problems + problems)


def _keys(example: Example) -> tuple[str, ...]:
    """The names by which a list may call a photo."""
    return example.file.name, example.file.stem, str(example.id)
