"""What a photo is known by, and when and where it was taken; nothing of it is decoded if that can be helped.

Its identity is its picture, not the metadata that programs write into its file.

Of a JPEG, PNG or WebP the compressed picture is hashed, which needs no decoding; with it goes the orientation, the one
entry of the metadata that changes what one sees.  Of a GIF, BMP or TIFF the pixels are hashed, of any other file all
its bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from PIL import ExifTags, Image

from tellapart.data.media import clips, photos
from tellapart.errors import BadPhoto

_PNG = b"\x89PNG\r\n\x1a\n"
_DECODED = (b"GIF8", b"BM", b"II*\0", b"MM\0*")


@dataclass(frozen=True)
class Identity:
    picture: str  # SHA-256 of what is to be seen
    file: str  # SHA-256 of the whole file


def identify(file: str | os.PathLike[str]) -> Identity:
    """BadPhoto where the file cannot be read; whether it can be decoded is not asked."""
    if clips.is_clip(file):  # which may be too long to be read at once
        sha256 = photos.sha256(file)
        return Identity(sha256, sha256)
    data = photos.read_bytes(file)
    return Identity(picture_sha256(data), hashlib.sha256(data).hexdigest())


def picture_sha256(data: bytes) -> str:
    try:
        parts = list(_parts(data))
    except (ValueError, IndexError, BadPhoto):  # broken, or none of these: then its bytes are all that we know of it
        parts = [("", data)]
    digest = hashlib.sha256()
    for kind, part in parts:
        digest.update(f"{kind} {len(part)} ".encode())
        digest.update(part)
    return digest.hexdigest()


def exif_in(data: bytes) -> bytes:
    """The EXIF data of a JPEG, PNG or WebP, or a whole TIFF, which is built alike; nothing where there are none."""
    if data.startswith(_DECODED[2:]):
        return data
    try:
        return next((part for kind, part in _coded(data) if kind == "exif"), b"")
    except (ValueError, IndexError):
        return b""


def _coded(data: bytes) -> Iterable[tuple[str, bytes]]:
    """The parts of a file whose picture need not be decoded; none of other files."""
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    if data.startswith(_PNG):
        return _png(data)
    return _webp(data) if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ()


def _parts(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The picture, without what else is in the file."""
    parts, orientation = _coded(data), 1
    if data.startswith(_DECODED):
        image = photos.decode(data, "photo")
        parts = [(f"{image.width} x {image.height} pixels", image.tobytes())]
    if parts == ():
        raise ValueError
    for kind, part in parts:
        if kind == "exif":
            orientation = _orientation(part)
        else:
            yield kind, part
    yield "orientation", bytes([orientation])


def _jpeg(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Up to the end of the (first) picture: all segments but the applications' own and comments."""
    place = 2
    while place < len(data):
        if data[place] != 0xFF:
            raise ValueError
        marker = data[place + 1]
        if marker == 0xD9:  # the end
            return
        if marker == 0xFF or marker == 0x01 or 0xD0 <= marker <= 0xD8:  # filling, and markers that stand alone
            place += 1 if marker == 0xFF else 2
            continue
        size = int.from_bytes(data[place + 2 : place + 4], "big")
        if size < 2:
            raise ValueError
        segment, place = data[place + 4 : place + 2 + size], place + 2 + size
        if marker == 0xE1 and segment.startswith(b"Exif\0\0"):
            yield "exif", segment[6:]
        if (not 0xE0 <= marker <= 0xEF and marker != 0xFE) or marker == 0xEE:  # Adobe's says how colours are written
            yield f"{marker:02x}", segment
        if marker == 0xDA:  # the compressed picture, or one scan of it
            end = _MARKER.search(data, place)
            scan, place = place, end.start() if end else len(data)
            yield "scan", data[scan:place]


_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # one that ends compressed data


def _png(data: bytes) -> Iterator[tuple[str, bytes]]:
    pixels = []
    for kind, chunk in _chunks(data, len(_PNG), png=True):
        if kind in (b"IHDR", b"PLTE", b"tRNS"):
            yield kind.decode(), chunk
        elif kind == b"IDAT":
            pixels.append(chunk)  # programs cut the picture into chunks as they like
        elif kind == b"eXIf":
            yield "exif", chunk
    yield "IDAT", b"".join(pixels)


def _webp(data: bytes) -> Iterator[tuple[str, bytes]]:
    for kind, chunk in _chunks(data, 12, png=False):
        if kind in (b"VP8 ", b"VP8L", b"ALPH", b"ANMF"):
            yield kind.decode(), chunk
        elif kind == b"EXIF":
            yield "exif", chunk.removeprefix(b"Exif\0\0")


def _chunks(data: bytes, place: int, *, png: bool) -> Iterator[tuple[bytes, bytes]]:
    """PNG: size, kind, contents, check sum.  WebP: kind, size, contents to an even length."""
    while place + 8 <= len(data):
        first, second, place = data[place : place + 4], data[place + 4 : place + 8], place + 8
        kind, size = (second, int.from_bytes(first, "big")) if png else (first, int.from_bytes(second, "little"))
        yield kind, data[place : place + size]
        place += size + (4 if png else size % 2)


def _orientation(exif: bytes) -> int:
    try:
        read = Image.Exif()
        read.load(exif)
        value = read.get(ExifTags.Base.Orientation, 1)
        return value if isinstance(value, int) and 1 <= value <= 8 else 1
    except Exception:  # broken EXIF data says nothing about the picture
        return 1


# When and where a photo was taken, by its EXIF data


@dataclass(frozen=True)
class Taken:
    time: datetime | None = None
    latitude: float | None = None  # degrees, north and east positive
    longitude: float | None = None


def taken(file: str | os.PathLike[str]) -> Taken:
    """Time and place; what is not there, or damaged, is None."""
    try:
        if clips.named_as_clip(file):
            return Taken()
        exif = Image.Exif()
        exif.load(exif_in(photos.read_bytes(file)))
        return Taken(_time(exif.get_ifd(ExifTags.IFD.Exif)), *_position(exif.get_ifd(ExifTags.IFD.GPSInfo)))
    except Exception:  # BadPhoto, and nearly anything where EXIF data are broken
        return Taken()


def _time(entries: dict[int, Any]) -> datetime | None:
    for tag in (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTimeDigitized):
        text = str(entries.get(tag, "")).strip("\0 ")[:19]
        try:
            return datetime.strptime(text, "%Y:%m:%d %H:%M:%S")  # a camera's clock knows no zone
        except ValueError:
            continue
    return None


def _position(entries: dict[int, Any]) -> tuple[float | None, float | None]:
    try:
        latitude = _degrees(entries[ExifTags.GPS.GPSLatitude], entries[ExifTags.GPS.GPSLatitudeRef] in ("S", b"S"))
        longitude = _degrees(entries[ExifTags.GPS.GPSLongitude], entries[ExifTags.GPS.GPSLongitudeRef] in ("W", b"W"))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None, None
    valid = abs(latitude) <= 90 and abs(longitude) <= 180
    return (latitude, longitude) if valid else (None, None)


def _degrees(parts: Any, negative: bool) -> float:
    """Degrees, minutes and seconds."""
    degrees, minutes, seconds = map(float, parts)
    return (-1 if negative else 1) * (degrees + minutes / 60 + seconds / 3600)
