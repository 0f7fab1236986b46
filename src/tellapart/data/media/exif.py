"""When and where a photo was taken, by its EXIF data; the picture is not decoded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from PIL import ExifTags, Image

from tellapart.data.media import clips, photos
from tellapart.data.media.identity import exif_in
from tellapart.errors import BadPhoto


@dataclass(frozen=True)
class Taken:
    time: datetime | None = None
    latitude: float | None = None  # degrees, north and east positive
    longitude: float | None = None


def taken(file: str | os.PathLike[str]) -> Taken:
    """What is not there, or damaged, is None."""
    try:
        if clips.named_as_clip(file):
            return Taken()
        exif = Image.Exif()
        exif.load(exif_in(photos.read_bytes(file)))
        return Taken(_time(exif.get_ifd(ExifTags.IFD.Exif)), *_position(exif.get_ifd(ExifTags.IFD.GPSInfo)))
    except BadPhoto:
        return Taken()
    except Exception:  # broken EXIF data can raise nearly anything
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
    known = abs(latitude) <= 90 and abs(longitude) <= 180
    return (latitude, longitude) if known else (None, None)


def _degrees(parts: Any, negative: bool) -> float:
    """Degrees, minutes and seconds."""
    degrees, minutes, seconds = map(float, parts)
    return (-1 if negative else 1) * (degrees + minutes / 60 + seconds / 3600)
