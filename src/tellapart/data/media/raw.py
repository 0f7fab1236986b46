"""The JPEG inside a RAW photo: most cameras store a finished picture beside the sensor's data.

Of the kinds of RAW that are built like a TIFF (DNG, CR2, NEF, ARW and others).  A TIFF is a chain of directories, each
of which may name further ones; an entry is (tag, type, count, value or where the values are).  Every number in the file
may lie: nothing outside the file is touched, no directory is read twice, and only so many are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_SIZES = {1: 1, 3: 2, 4: 4, 13: 4}  # of a value, by type: bytes and whole numbers, which are all that matter here
_CODES = {1: "B", 3: "H", 4: "I", 13: "I"}
_MOST_DIRECTORIES = 64
_MOST_VALUES = 64

# Tags
_COMPRESSION, _PHOTOMETRIC, _STRIPS, _ORIENTATION, _STRIP_SIZES = 0x0103, 0x0106, 0x0111, 0x0112, 0x0117
_DIRECTORIES, _JPEG, _JPEG_SIZE, _DNG_VERSION = 0x014A, 0x0201, 0x0202, 0xC612
_SENSOR = {32803, 34892}  # photometric interpretations: a colour for each pixel of the sensor; the same, made linear
_PACKED_AS_JPEG = {6, 7, 99}

# Markers of a JPEG that begin a frame which a common decoder can read; not those of lossless JPEG, as sensors' data is
_FRAMES = {0xC0, 0xC1, 0xC2}
_NO_FRAMES = {0xC4, 0xC8, 0xCC}  # tables, in the same range

Directory = dict[int, list[int]]


@dataclass(frozen=True)
class Preview:
    jpeg: bytes
    orientation: int  # EXIF, of the whole RAW photo


def is_raw(data: bytes) -> bool:
    """Whether the file says itself that it is one: as a TIFF, only its thumbnail could be read."""
    if data[:4] not in _ORDERS:
        return False
    if data[8:10] == b"CR":  # Canon
        return True
    return any(_DNG_VERSION in found or _SENSOR & set(found.get(_PHOTOMETRIC, ())) for found in _directories(data))


def preview(data: bytes) -> Preview | None:
    """The largest JPEG in a RAW photo; None where there is none."""
    best, most, orientation = (0, 0), 0, 1
    for number, found in enumerate(_directories(data)):
        if number == 0:
            orientation = next(iter(found.get(_ORIENTATION, ())), 1)
        for place, size in _places(found):
            end = min(place + size, len(data))
            if (pixels := _pixels(data, place, end)) > most:
                best, most = (place, end), pixels
    return Preview(data[slice(*best)], orientation) if most else None


def _places(found: Directory) -> Iterator[tuple[int, int]]:
    """Where a directory's JPEG may lie, and how long it is."""
    if _JPEG in found and _JPEG_SIZE in found:
        yield found[_JPEG][0], found[_JPEG_SIZE][0]
    if _PACKED_AS_JPEG & set(found.get(_COMPRESSION, ())):
        strips, sizes = found.get(_STRIPS, []), found.get(_STRIP_SIZES, [])
        if len(strips) == len(sizes) == 1:
            yield strips[0], sizes[0]


def _directories(data: bytes) -> Iterator[Directory]:
    order = _ORDERS.get(data[:4])
    if order is None or len(data) < 8:
        return
    waiting, seen = [_number(data, 4, order)], set[int]()
    while waiting and len(seen) < _MOST_DIRECTORIES:
        place = waiting.pop(0)
        if place in seen or not 8 <= place <= len(data) - 2:
            continue
        seen.add(place)
        (count,) = struct.unpack_from(f"{order}H", data, place)
        end = place + 2 + 12 * count
        if end > len(data):
            continue
        found: Directory = {}
        for entry in range(place + 2, end, 12):
            tag, values = _entry(data, entry, order)
            if values:
                found.setdefault(tag, values)
        yield found
        waiting += found.get(_DIRECTORIES, [])
        if end + 4 <= len(data):
            waiting.append(_number(data, end, order))


def _entry(data: bytes, place: int, order: str) -> tuple[int, list[int]]:
    """The tag, and its values if they are whole numbers that lie in the file and are not too many."""
    tag, kind, count = struct.unpack_from(f"{order}HHI", data, place)
    if kind not in _SIZES or not 0 < count <= _MOST_VALUES:
        return tag, []
    size = _SIZES[kind] * count
    start = place + 8 if size <= 4 else _number(data, place + 8, order)
    if start + size > len(data):
        return tag, []
    return tag, list(struct.unpack_from(f"{order}{count}{_CODES[kind]}", data, start))


def _number(data: bytes, place: int, order: str) -> int:
    return int(struct.unpack_from(f"{order}I", data, place)[0])


def _pixels(data: bytes, place: int, end: int) -> int:
    """How many pixels a JPEG says it has that lies there; 0 where there is none that can be decoded."""
    if data[place : min(place + 3, end)] != b"\xff\xd8\xff":
        return 0
    place += 2
    while place + 9 <= end and data[place] == 0xFF:
        marker, size = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, place + 5)
            return int(width) * int(height)
        if marker == 0xFF:  # padding
            place += 1
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
            return 0
        else:
            place += 2 + max(size, 2)
    return 0
