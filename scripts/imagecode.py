"""A reader of ImageCoDe over MSR-VTT: neighbouring frames, some with a description that tells them from the others.

tellapart prepare imagecode imagecode_msrvtt.json --photos videos/ --out imagecode.json --plugin scripts/imagecode.py

    {"sets": [{"set": "...video1417-shot1_0", "video": "video1417", "split": "train", "shot": 1, "start": 0,
               "descriptions": {"2": "a singer holding the microphone ..."}}]}

The frames are not published with the descriptions and are cut anew, so this is an approximate test and not the official
score.  A set is ten frames evenly over its part of a shot, by our own shots; a shot has as many parts as the file has
sets of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capscore.caption_files import folder_of
from capscore.files import read_json
from tellapart.data.examples import DataSet, Segment, check, listed
from tellapart.data.media.clips import open_clip, shots
from tellapart.data.readers import READERS, Entry
from tellapart.data.readers.photos import find_photo, photo_folders
from tellapart.errors import BadPhoto

FRAMES = 10  # of a set
_SHORTEST = 0.5  # seconds of a shot


def read(source: Path, photos: Path | None = None) -> DataSet:
    records, folders = listed(read_json(source), "sets", source), photo_folders(source, photos)
    sets = [each for each in records if _is_set(each)]
    problems = [f"{source}: set number {n}: it is broken." for n, each in enumerate(records, 1) if not _is_set(each)]
    parts: dict[tuple[str, int], int] = {}
    for each in sets:
        parts[each["video"], each["shot"]] = max(parts.get((each["video"], each["shot"]), 0), each["start"] + 1)
    shots_of: dict[str, list[tuple[float, float]]] = {}
    frames: list[dict[str, Any]] = []
    for each in sets:
        file = find_photo(f"{each['video']}.mp4", folders)
        if each["video"] not in shots_of:
            shots_of[each["video"]] = _shots(file, problems)
        of_clip = shots_of[each["video"]]
        number = max(each["shot"] - 1, 0)  # from 1; 0 where no cut was found
        if number < len(of_clip):
            frames += _frames(each, file, of_clip[number], parts[each["video"], each["shot"]])
        elif of_clip:
            problems.append(f"{source}: {each['set']}: left out; the clip has {len(of_clip)} shots by our count.")
    examples, broken = check(frames, source=source, folder=folder_of(source))
    return DataSet("imagecode", examples, problems=problems + broken)


def _is_set(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and all(isinstance(record.get(key), str) and record[key] for key in ("set", "video", "split"))
        and all(isinstance(record.get(key), int) and 0 <= record[key] < 1000 for key in ("shot", "start"))
        and isinstance(record.get("descriptions"), dict)
    )


def _shots(file: str, problems: list[str]) -> list[tuple[float, float]]:
    try:
        with open_clip(file) as clip:
            return shots(clip, _SHORTEST)
    except BadPhoto as error:
        problems.append(f"{error}; its sets are left out.")
        return []


def _frames(frames: dict[str, Any], file: str, shot: tuple[float, float], parts: int) -> Iterator[dict[str, Any]]:
    length = (shot[1] - shot[0]) / parts
    for frame in range(FRAMES):
        time = shot[0] + length * (frames["start"] + (frame + 0.5) / FRAMES)
        text = frames["descriptions"].get(str(frame))
        yield {
            "id": f"{frames['set']}-{frame}",
            "file": Segment(file, time, time).name,
            "split": frames["split"],
            "captions": [] if text is None else [text],
            "set": frames["set"],
        }


READERS["imagecode"] = Entry(__name__, "ImageCoDe's descriptions of neighbouring frames of MSR-VTT clips, cut anew")
