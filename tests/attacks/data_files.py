"""Data files that are wrong in every way we could think of, by name: what is in them, and what must be said of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

GOOD = {"id": 17, "file": "photos/dog.jpg", "split": "train", "captions": ["a dog in the snow"]}
_WHOLE = json.dumps({"dataset": "toy", "images": [GOOD]}).encode()
_PACKED = gzip.compress(json.dumps({"images": [GOOD] * 100}).encode())
_A_FOLDER, _MISSING = object(), object()

WRONG: dict[str, tuple[Any, str]] = {
    "missing": (_MISSING, "there is no such file."),
    "a folder": (_A_FOLDER, "this is a folder, not a file."),
    "empty": (b"", "the file is empty."),
    "not JSON": (b"id,file,caption\n17,dog.jpg,a dog\n", "not JSON (line 1, column 1"),
    "cut short": (_WHOLE[:-5], "cut short"),
    "cut inside a caption": (_WHOLE[: _WHOLE.index(b"snow")], "cut short"),
    # The é of café is one byte, which would begin a longer character in UTF-8.
    "Latin-1": (b'{"images": [], "note": "caf\xe9"}', "0xe9 at byte 28"),
    "UTF-16": (_WHOLE.decode().encode("utf-16"), "0xff at byte 1"),
    "a list": ([GOOD], "the file must hold a JSON object, not a list."),
    "neither images nor videos": ({"photos": [GOOD]}, 'a list "images" or a list "videos"; this one has neither'),
    "images and videos": ({"images": [GOOD], "videos": [GOOD]}, "both"),
    "images as an object": ({"images": {"17": GOOD}}, '"images" must be a list, not an object.'),
    "a number as its name": ({"dataset": 8, "images": [GOOD]}, '"dataset" must be a string'),
    "nested too deeply": (b'{"images": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "a number of 5,000 digits": (b'{"images": [{"id": ' + b"9" * 5000 + b', "file": "a.jpg"}]}', "too many digits"),
    "gzip cut short": (_PACKED[: len(_PACKED) // 2], "gzip"),
    "gzip damaged": (_PACKED[:20] + bytes([_PACKED[20] ^ 0xFF]) + _PACKED[21:], "gzip"),
    "COCO's annotations": ({"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": []}, "tellapart prepare coco"),
}


def make(name: str, folder: Path) -> Path:
    content, _ = WRONG[name]
    path = folder / ("captions.json.gz" if name.startswith("gzip") else "captions.json")
    if content is _A_FOLDER:
        path.mkdir()
    elif content is not _MISSING:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def of_images(folder: Path, *images: Any) -> Path:
    path = folder / "captions.json"
    path.write_text(json.dumps({"dataset": "toy", "images": list(images)}))
    return path
