"""ImageCoDe over MSR-VTT: neighbouring frames, some with a human description that tells them from the others of a set.

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

from capscore.data_files import folder_of
from capscore.files import read_json
from tellapart.data.examples import DataSet, Segment, check, listed
from tellapart.data.readers.shared import find_photo, photo_folders
from tellapart.errors import BadPhoto

FRAMES = 10
_SHORTEST = 0.5  # seconds of a shot


def read(source: Path, photos: Path | None = None) -> DataSet:
    sets, folders = listed(read_json(source), "sets", source), photo_folders(source, photos)
    good = [one for one in sets if _is_set(one)]
    problems = [f"{source}: set number {n}: it is broken." for n, one in enumerate(sets, 1) if not _is_set(one)]
    parts: dict[tuple[str, int], int] = {}
    for one in good:
        parts[one["video"], one["shot"]] = max(parts.get((one["video"], one["shot"]), 0), one["start"] + 1)
    shots: dict[str, list[tuple[float, float]]] = {}
    records: list[dict[str, Any]] = []
    for one in good:
        file = find_photo(f"{one['video']}.mp4", folders)
        if one["video"] not in shots:
            shots[one["video"]] = _shots(file, problems)
        found = shots[one["video"]]
        number = max(one["shot"] - 1, 0)  # from 1; 0 where no cut was found
        if number < len(found):
            records += _frames(one, file, found[number], parts[one["video"], one["shot"]])
        elif found:
            problems.append(f"{source}: {one['set']}: left out; the clip has {len(found)} shots by our count.")
    examples, broken = check(records, source=source, folder=folder_of(source))
    return DataSet("imagecode", examples, problems=problems + broken)


def _is_set(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and all(isinstance(one.get(key), str) and one[key] for key in ("set", "video", "split"))
        and all(isinstance(one.get(key), int) and 0 <= one[key] < 1000 for key in ("shot", "start"))
        and isinstance(one.get("descriptions"), dict)
    )


def _shots(file: str, problems: list[str]) -> list[tuple[float, float]]:
    from tellapart.data.media.clips import open_clip, shots

    try:
        with open_clip(file) as clip:
            return shots(clip, _SHORTEST)
    except BadPhoto as error:
        problems.append(f"{error}; its sets are left out.")
        return []


def _frames(one: dict[str, Any], file: str, shot: tuple[float, float], parts: int) -> Iterator[dict[str, Any]]:
    length = (shot[1] - shot[0]) / parts
    for frame in range(FRAMES):
        time = shot[0] + length * (one["start"] + (frame + 0.5) / FRAMES)
        text = one["descriptions"].get(str(frame))
        yield {
            "id": f"{one['set']}-{frame}",
            "file": Segment(file, time, time).name,
            "split": one["split"],
            "captions": [] if text is None else [text],
            "set": one["set"],
        }
