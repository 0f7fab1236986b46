"""Karpathy's splits: dataset_coco.json, dataset_flickr8k.json, dataset_flickr30k.json.

    {"dataset": "coco", "images": [{"filepath": "val2014", "filename": "COCO_val2014_000000391895.jpg", "imgid": 0,
     "cocoid": 391895, "split": "test", "sentences": [{"raw": "A man with a red helmet ...", "tokens": [...]}]}]}

The Flickr files have neither `filepath` nor `cocoid`.  `tokens` are left out: every model tokenises in its own way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capscore.data_files import folder_of, refuse_other_formats
from capscore.files import read_json
from tellapart.data.examples import DataSet, check, listed, stem
from tellapart.data.readers.shared import SPLITS, find_photo, photo_folders

FIELDS = {"id": 'cocoid" or "imgid', "file": "filename", "captions": "sentences"}


def read(source: Path, photos: Path | None = None) -> DataSet:
    """`photos` is the folder that holds train2014 and val2014, or the photos themselves."""
    content = read_json(source)
    folders = photo_folders(source, photos)
    images = listed(content, "images", source)
    refuse_other_formats(images, source, mark="filename")
    records = (_record(image, folders) for image in images)
    examples, problems = check(records, source=source, folder=folder_of(source), fields=FIELDS)
    name = content.get("dataset")
    return DataSet(name if isinstance(name, str) else stem(source), examples, problems=problems)


def _record(image: Any, folders: list[Path]) -> Any:
    """An image in our schema.  What is broken stays broken: `check` finds the words for it."""
    if not isinstance(image, dict):
        return image
    record: dict[str, Any] = {
        "id": image.get("cocoid", image.get("imgid")),
        "file": find_photo(image.get("filename"), folders, image.get("filepath")),
    }
    if "split" in image:
        split = image["split"]
        record["split"] = SPLITS.get(split, split) if isinstance(split, str) else split
    if "sentences" in image:
        sentences = image["sentences"]
        record["captions"] = [_raw(sentence) for sentence in sentences] if isinstance(sentences, list) else sentences
    return record


def _raw(sentence: Any) -> Any:
    return sentence.get("raw") if isinstance(sentence, dict) else sentence
