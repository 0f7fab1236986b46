"""MSR-VTT as its authors publish it: videodatainfo_2016.json, train_val_videodatainfo.json, test_videodatainfo.json.

    {"videos": [{"video_id": "video0", "split": "train", "category": 9, "start time": 137.72, "end time": 149.44}],
     "sentences": [{"sen_id": 0, "video_id": "video0", "caption": "a car is shown"}]}

A clip without a split gets that of its number: 6,513 train, 497 val and 2,990 test, as in the papers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from capscore.data_files import folder_of, name_of
from capscore.errors import UserError
from capscore.files import is_folder, read_json
from tellapart.data.examples import DataSet, check, listed
from tellapart.data.readers.shared import SPLITS, find_photo, photo_folders

FIELDS = {"id": "video_id", "file": "video_id", "captions": "sentences"}
_FIRST = {"train": 0, "val": 6513, "test": 7010}  # number of each split's first clip; there are 10,000


def read(source: Path, photos: Path | None = None) -> DataSet:
    """`source` is a file of annotations, or a folder with several: they become one data set."""
    files = sorted(source.glob("*videodatainfo*.json")) if is_folder(source) else [source]
    if not files:
        raise UserError(f"{source}: there is no file *videodatainfo*.json in this folder.")
    folders = photo_folders(source, photos)
    dataset = DataSet("msrvtt", [], kind="videos")
    seen: set[str] = set()
    for file in files:
        content = read_json(file)
        videos, sentences = listed(content, "videos", file), listed(content, "sentences", file)
        captions: dict[str, list[Any]] = {str(_of(video, "video_id") or ""): [] for video in videos}
        for position, sentence in enumerate(sentences, start=1):
            clip = str(_of(sentence, "video_id") or "")
            if clip and clip in captions:
                captions[clip].append(_of(sentence, "caption"))
            else:
                name = name_of(sentence, position, "sentences")
                dataset.problems.append(f'{file}: {name}: "video_id" must be that of a clip in this file.')
        records = (_record(video, captions, folders) for video in videos)
        examples, problems = check(
            records, source=file, folder=folder_of(file), kind="videos", fields=FIELDS, seen=seen
        )
        dataset.examples += examples
        dataset.problems += problems
    return dataset


def _of(record: Any, key: str) -> Any:
    return record.get(key) if isinstance(record, dict) else None


def _record(video: Any, captions: dict[str, list[Any]], folders: list[Path]) -> Any:
    """A clip in our schema.  What is broken stays broken: `check` finds the words for it."""
    if not isinstance(video, dict):
        return video
    id = video.get("video_id")
    split = video.get("split", _by_number(id))
    return {
        "id": id,
        "file": find_photo(f"{id}.mp4", folders) if isinstance(id, str) else id,
        "split": SPLITS.get(split, split) if isinstance(split, str) else split,
        "captions": captions[str(id or "")],
    }


def _by_number(id: Any) -> str:
    number = re.fullmatch(r"video(\d{1,4})", id) if isinstance(id, str) else None
    return max((first, split) for split, first in _FIRST.items() if first <= int(number[1]))[1] if number else ""
