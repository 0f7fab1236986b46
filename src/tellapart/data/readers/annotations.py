"""Data sets that are published as JSON: photos or clips in one list, and the captions with them or in another list.

Each reader turns records into ours.  What is broken stays broken on the way: `examples.check` finds the words for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from capscore.caption_files import folder_of, name_of, refuse_other_formats
from capscore.errors import UserError
from capscore.files import is_folder, read_json
from tellapart.data.examples import DataSet, check, listed, stem
from tellapart.data.readers.photos import SPLITS, find_photo, photo_folders, split_in_name

_FIRST = {"train": 0, "val": 6513, "test": 7010}  # of MSR-VTT: the number of each split's first clip, of 10,000
_DOMAINS = {"in-domain": "in", "near-domain": "near", "out-domain": "out"}  # of nocaps


def read_karpathy(source: Path, photos: Path | None = None) -> DataSet:
    """Karpathy's splits: dataset_coco.json, dataset_flickr8k.json, dataset_flickr30k.json.

        {"dataset": "coco", "images": [{"filepath": "val2014", "filename": "COCO_val2014_000000391895.jpg", "imgid": 0,
         "cocoid": 391895, "split": "test", "sentences": [{"raw": "A man with a red ...", "tokens": [...]}]}]}

    The Flickr files have neither `filepath` nor `cocoid`.  `tokens` are left out: every model tokenises in its own way.

    photos  the folder that holds train2014 and val2014, or the photos themselves
    """
    content = read_json(source)
    folders = photo_folders(source, photos)
    images = listed(content, "images", source)
    refuse_other_formats(images, source, mark="filename")

    def record(image: dict[str, Any]) -> dict[str, Any]:
        sentences = image.get("sentences", [])
        return {
            "id": image.get("cocoid", image.get("imgid")),
            "file": find_photo(image.get("filename"), folders, image.get("filepath")),
            "split": _split(image.get("split", "")),
            "captions": [_field(each, "raw") for each in sentences] if isinstance(sentences, list) else sentences,
        }

    name = content.get("dataset")
    fields = {"id": 'cocoid" or "imgid', "file": "filename", "captions": "sentences"}
    return _single(name if isinstance(name, str) else stem(source), source, images, record, fields)


def read_concadia(source: Path, photos: Path | None = None) -> DataSet:
    """Concadia: wiki_split.json, Wikipedia's images with two kinds of text.

        {"images": [{"filename": "70.jpg", "split": "test", "caption": {"raw": "Reentry ...", "tokens": [...]},
         "description": {"raw": "White streaks of light ...", "tokens": [...]}, "context": {...}}]}

    A caption goes with an image, a description stands in for it.  `captions` has the captions; the descriptions are a
    key of their own, which `evaluate --text descriptions` compares with.
    """
    images = listed(read_json(source), "images", source)
    if images and not any(isinstance(image, dict) and "description" in image for image in images):
        raise UserError(f'{source}: this is not Concadia: no image has a "description".')
    folders = photo_folders(source, photos)

    def texts(text: Any) -> list[Any]:
        raw = text.get("raw") if isinstance(text, dict) else text
        return [] if raw is None else [raw]

    def record(image: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": image.get("filename"),
            "file": find_photo(image.get("filename"), folders),
            "split": _split(image.get("split", "")),
            "captions": texts(image.get("caption")),
            "descriptions": [text for text in texts(image.get("description")) if isinstance(text, str)],
        }

    fields = {"id": "filename", "file": "filename", "captions": "caption"}
    return _single("concadia", source, images, record, fields)


def _single(
    name: str,
    source: Path,
    images: list[Any],
    record: Callable[[dict[str, Any]], dict[str, Any]],
    fields: dict[str, str],
) -> DataSet:
    """A data set whose images have their captions with them; record: of an image -> one of ours"""
    records = (record(image) if isinstance(image, dict) else image for image in images)
    examples, problems = check(records, source=source, folder=folder_of(source), fields=fields)
    return DataSet(name, examples, problems=problems)


def read_coco(source: Path, photos: Path | None = None) -> DataSet:
    """COCO's own annotations: captions_train2014.json, captions_val2014.json, captions_val2017.json ...

        {"images": [{"id": 391895, "file_name": "COCO_val2014_000000391895.jpg", "license": 3}],
         "annotations": [{"id": 770337, "image_id": 391895, "caption": "A man with a red helmet ..."}]}

    The split is the one in the file's name.  `license` is kept, because it says what may be done with a photo.
    """
    return _coco("coco", "captions_*.json", source, photos)


def read_nocaps(source: Path, photos: Path | None = None) -> DataSet:
    """nocaps' own annotations, in COCO's form: nocaps_val_4500_captions.json, and the image lists without captions.

        {"images": [{"id": 0, "file_name": "0013ea2087020901.jpg", "domain": "in-domain"}], "annotations": [...]}

    The splits are the domains, `in`, `near` and `out`: figures are compared by domain.  A list without domains has the
    split of its file's name.
    """
    return _coco("nocaps", "nocaps_*.json", source, photos)


def _coco(name: str, pattern: str, source: Path, photos: Path | None) -> DataSet:
    folders = photo_folders(source, photos)

    def record(image: dict[str, Any], captions: list[Any], file: Path) -> dict[str, Any]:
        domain = image.get("domain") if name == "nocaps" else None
        return {
            "id": image.get("id"),
            # captions_val2014.json describes the photos that the archive unpacks to val2014
            "file": find_photo(image.get("file_name"), folders, stem(file).removeprefix("captions_")),
            "split": _DOMAINS.get(domain, domain) if isinstance(domain, str) else split_in_name(file),
            "captions": captions,
        } | {key: image[key] for key in ("license",) if key in image}

    return _joined(name, _files(source, pattern), _COCO, record)


def read_msrvtt(source: Path, photos: Path | None = None) -> DataSet:
    """MSR-VTT: videodatainfo_2016.json, train_val_videodatainfo.json, test_videodatainfo.json, or a folder of them.

        {"videos": [{"video_id": "video0", "split": "train", "category": 9, "start time": 137.72, "end time": 149.44}],
         "sentences": [{"sen_id": 0, "video_id": "video0", "caption": "a car is shown"}]}

    A clip without a split gets that of its number: 6,513 train, 497 val and 2,990 test, as in the papers.
    """
    folders = photo_folders(source, photos)

    def record(video: dict[str, Any], captions: list[Any], _: Path) -> dict[str, Any]:
        id = video.get("video_id")
        return {
            "id": id,
            "file": find_photo(f"{id}.mp4", folders) if isinstance(id, str) else id,
            "split": _split(video.get("split", _split_by_number(id))),
            "captions": captions,
        }

    return _joined("msrvtt", _files(source, "*videodatainfo*.json"), _MSRVTT, record)


def _split_by_number(id: Any) -> str:
    number = re.fullmatch(r"video(\d{1,4})", id) if isinstance(id, str) else None
    return max((first, split) for split, first in _FIRST.items() if first <= int(number[1]))[1] if number else ""


# Items in one list, their captions in another


class _Form(NamedTuple):
    items: str  # the key of the list of items
    id: str  # the key of an item's id
    file: str  # the key of an item's file
    texts: str  # the key of the list of captions
    item: str  # the key by which a caption names its item
    may_lack_texts: bool = False


_COCO = _Form("images", "id", "file_name", "annotations", "image_id", may_lack_texts=True)
_MSRVTT = _Form("videos", "video_id", "video_id", "sentences", "video_id")


def _files(source: Path, pattern: str) -> list[Path]:
    """A file of annotations, or a folder with several, which become one data set."""
    files = sorted([*source.glob(pattern), *source.glob(f"{pattern}.gz")]) if is_folder(source) else [source]
    if not files:
        raise UserError(f"{source}: there is no file {pattern} in this folder.")
    return files


Record = Callable[[dict[str, Any], list[Any], Path], dict[str, Any]]  # of an item, its captions and their file


def _joined(name: str, files: Sequence[Path], form: _Form, record: Record) -> DataSet:
    dataset, ids = DataSet(name, [], kind=form.items), set[str]()
    for file in files:
        content = read_json(file)
        items = listed(content, form.items, file)
        refuse_other_formats(items, file, mark=form.file)
        texts = [] if form.may_lack_texts and form.texts not in content else listed(content, form.texts, file)
        captions: dict[str, list[Any]] = {_id(item, form.id): [] for item in items}
        lost = []
        for position, text in enumerate(texts, start=1):
            if (id := _id(text, form.item)) and id in captions:
                captions[id].append(text.get("caption"))
            else:
                name, kind = name_of(text, position, form.texts), "an image" if form.items == "images" else "a clip"
                lost.append(f'{file}: {name}: "{form.item}" must be the id of {kind} in this file.')
        records = (record(i, captions[_id(i, form.id)], file) if isinstance(i, dict) else i for i in items)
        fields = {"id": form.id, "file": form.file, "captions": form.texts}
        examples, problems = check(
            records, source=file, folder=folder_of(file), kind=form.items, fields=fields, ids=ids
        )
        dataset.examples += examples
        dataset.problems += problems + lost
    return dataset


def _id(record: Any, key: str) -> str:
    """An id as a key; empty when there is none."""
    value = _field(record, key)
    return str(value) if isinstance(value, int | str) else ""


def _field(record: Any, key: str) -> Any:
    return record.get(key) if isinstance(record, dict) else None


def _split(name: Any) -> Any:
    return SPLITS.get(name, name) if isinstance(name, str) else name
