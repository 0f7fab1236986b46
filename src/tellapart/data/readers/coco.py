"""COCO's own annotations: captions_train2014.json, captions_val2014.json, captions_val2017.json ...

    {"images": [{"id": 391895, "file_name": "COCO_val2014_000000391895.jpg", "license": 3}],
     "annotations": [{"id": 770337, "image_id": 391895, "caption": "A man with a red helmet ..."}]}

The split is the one in the file's name.  `license` is kept, because it says what may be done with a photo.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from capscore.data_files import folder_of, name_of, refuse_other_formats
from capscore.errors import UserError
from capscore.files import is_folder, read_json
from tellapart.data.examples import DataSet, check, listed, stem
from tellapart.data.readers.shared import find_photo, photo_folders, split_in_name

FIELDS = {"file": "file_name", "captions": "annotations"}


def _split_of_file(_image: dict[str, Any], split: str) -> str:
    return split


def read(
    source: Path,
    photos: Path | None = None,
    *,
    name: str = "coco",
    pattern: str = "captions_*.json",
    split_of: Callable[[dict[str, Any], str], str] = _split_of_file,
) -> DataSet:
    """`source` is a file of annotations, or a folder with several: they become one data set.

    name, pattern  of data sets that are published in the same form
    split_of       the split of an image, given that of its file
    """
    files = [source]
    if is_folder(source):
        files = sorted([*source.glob(pattern), *source.glob(f"{pattern}.gz")])
    if not files:
        raise UserError(f"{source}: there is no file {pattern} in this folder.")
    folders = photo_folders(source, photos)
    dataset = DataSet(name, [])
    seen: set[str] = set()
    for file in files:
        content = read_json(file)
        images = listed(content, "images", file)
        refuse_other_formats(images, file, mark="file_name")
        captions, lost = _by_image(images, listed(content, "annotations", file) if "annotations" in content else [])
        # captions_val2014.json describes the photos that the archive unpacks to val2014
        subfolder = stem(file).removeprefix("captions_")
        records = (_record(image, captions, split_in_name(file), folders, subfolder, split_of) for image in images)
        examples, problems = check(records, source=file, folder=folder_of(file), fields=FIELDS, seen=seen)
        dataset.examples += examples
        dataset.problems += problems + [f"{file}: {problem}" for problem in lost]
    return dataset


def _by_image(images: list[Any], annotations: list[Any]) -> tuple[dict[str, list[Any]], list[str]]:
    """The captions of each image id, and a sentence for each annotation that belongs to none."""
    captions: dict[str, list[Any]] = {_id(image, "id"): [] for image in images}
    problems = []
    for position, annotation in enumerate(annotations, start=1):
        image = _id(annotation, "image_id")
        if image in captions and image:
            captions[image].append(annotation.get("caption"))
        else:
            name = name_of(annotation, position, "annotations")
            problems.append(f'{name}: "image_id" must be the id of an image in this file.')
    return captions, problems


def _id(record: Any, key: str) -> str:
    """An id as a key; empty when there is none."""
    value = record.get(key) if isinstance(record, dict) else None
    return str(value) if isinstance(value, int | str) else ""


def _record(
    image: Any,
    captions: dict[str, list[Any]],
    split: str,
    folders: list[Path],
    subfolder: str,
    split_of: Callable[[dict[str, Any], str], str],
) -> Any:
    """An image in our schema.  What is broken stays broken: `check` finds the words for it."""
    if not isinstance(image, dict):
        return image
    record = {
        "id": image.get("id"),
        "file": find_photo(image.get("file_name"), folders, subfolder),
        "split": split_of(image, split),
        "captions": captions[_id(image, "id")],
    }
    return record | {key: image[key] for key in ("license",) if key in image}
