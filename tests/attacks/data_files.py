"""Data files that are wrong in every way we could think of.  Each helper writes one into a folder and returns its path.

`WRONG_AS_A_WHOLE` is for tests of commands that take a data file: all of them must answer exit 2 and one sentence.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

GOOD = {"id": 17, "file": "photos/dog.jpg", "split": "train", "captions": ["a dog in the snow"]}


def of(folder: Path, content: Any, name: str = "captions.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def of_images(folder: Path, *images: Any) -> Path:
    return of(folder, {"dataset": "toy", "images": list(images)})


def of_bytes(folder: Path, data: bytes, name: str = "captions.json") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def without(key: str) -> dict[str, Any]:
    return {k: v for k, v in GOOD.items() if k != key}


def missing(folder: Path) -> Path:
    return folder / "nowhere.json"


def a_folder(folder: Path) -> Path:
    path = folder / "folder.json"
    path.mkdir()
    return path


def empty(folder: Path) -> Path:
    return of_bytes(folder, b"")


def not_json(folder: Path) -> Path:
    return of_bytes(folder, b"id,file,caption\n17,dog.jpg,a dog\n")


def cut_short(folder: Path) -> Path:
    return of_bytes(folder, json.dumps({"dataset": "toy", "images": [GOOD]}).encode()[:-5])


def cut_inside_a_caption(folder: Path) -> Path:
    whole = json.dumps({"dataset": "toy", "images": [GOOD]}).encode()
    return of_bytes(folder, whole[: whole.index(b"snow")])


def latin_1(folder: Path) -> Path:
    """The é of café is one byte, which would begin a longer character in UTF-8."""
    return of_bytes(folder, b'{"images": [], "note": "caf\xe9"}')


def utf_16(folder: Path) -> Path:
    return of_bytes(folder, json.dumps({"images": [GOOD]}).encode("utf-16"))


def a_list(folder: Path) -> Path:
    return of(folder, [GOOD])


def neither_images_nor_videos(folder: Path) -> Path:
    return of(folder, {"dataset": "toy", "photos": [GOOD]})


def images_and_videos(folder: Path) -> Path:
    return of(folder, {"images": [GOOD], "videos": [GOOD]})


def images_as_an_object(folder: Path) -> Path:
    return of(folder, {"images": {"17": GOOD}})


def name_as_a_number(folder: Path) -> Path:
    return of(folder, {"dataset": 8, "images": [GOOD]})


def nested_too_deeply(folder: Path) -> Path:
    return of_bytes(folder, b'{"images": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def a_number_of_5000_digits(folder: Path) -> Path:
    return of_bytes(folder, b'{"images": [{"id": ' + b"9" * 5000 + b', "file": "dog.jpg"}]}')


def gzip_cut_short(folder: Path) -> Path:
    whole = gzip.compress(json.dumps({"images": [GOOD] * 100}).encode())
    return of_bytes(folder, whole[: len(whole) // 2], "captions.json.gz")


def gzip_damaged(folder: Path) -> Path:
    whole = bytearray(gzip.compress(json.dumps({"images": [GOOD] * 100}).encode()))
    whole[20] ^= 0xFF
    return of_bytes(folder, bytes(whole), "captions.json.gz")


def coco_annotations(folder: Path) -> Path:
    return of(folder, {"images": [{"id": 1, "file_name": "dog.jpg"}], "annotations": []})


WRONG_AS_A_WHOLE: tuple[Callable[[Path], Path], ...] = (
    missing,
    a_folder,
    empty,
    not_json,
    cut_short,
    cut_inside_a_caption,
    latin_1,
    utf_16,
    a_list,
    neither_images_nor_videos,
    images_and_videos,
    images_as_an_object,
    name_as_a_number,
    nested_too_deeply,
    a_number_of_5000_digits,
    gzip_cut_short,
    gzip_damaged,
    coco_annotations,
)
