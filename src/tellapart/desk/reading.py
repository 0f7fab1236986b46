"""What stands in a photo's own file already: XMP, also extended, IPTC captions, and EXIF descriptions.

Of JPEG, PNG, WebP, TIFF, RAW photos built like TIFF, HEIC and AVIF.  Nothing is decoded.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from tellapart.data.media import formats
from tellapart.data.media.identity import exif_in
from tellapart.desk import containers
from tellapart.desk.containers import PNG, PROFILE_IN_PNG, XMP_IN_JPEG, XMP_IN_PNG

_EXTENDED = b"http://ns.adobe.com/xmp/extension/\0"
_RESOURCES = b"Photoshop 3.0\0"
_XMP_TAG, _IPTC_TAG, _RESOURCES_TAG = 700, 33723, 34377  # of TIFF
_DESCRIPTION_MAKE_MODEL = (270, 271, 272)
_SIZES = {1: 1, 2: 1, 4: 4, 7: 1, 129: 1}  # bytes of a byte, character, number, byte of any kind, UTF-8
_IPTC, _EXIF, _PNG = "the IPTC caption", "the EXIF description", "the PNG description"

# What cameras and programs put into the EXIF description of every photo.
_DEFAULTS = re.compile(
    r"""[\s._-]* | ((konica\s+)?minolta|olympus|samsung|kodak|polaroid|vivitar|aiptek)?\s*digital\s*(still\s*)?camera
    | (sony|minolta)\s+dsc | samsung(\s+camera\s+pictures)? | <.*\bsamsung\b.*> | exif[ _]jpeg[ _]picture | default
    | dcim[\\/]\S* | (_?dsc[fn]?|img|dji|gopr|pxl|mvi|vid)[ _-]?\d[\w-]*(\.\w{2,4})? | image | untitled | screenshot
    | binary\ comment | charset=ascii | created\ by\ imlib | created\ with\ (the\ )?gimp | lead\ technologies.*
    | (o?znor|rhdr|hdr(pl)?|dav|cof|qrf|edf|mde|frem|rpt|rbt|ptr|btr|mon|nor)(wo|_soft|_vivi)?
    | (frontb|fbt|btf)(hdr|mdn)?
    | fshbty | burst | sdr_hdrb | iclarified | my\ beautiful\ picture | dvc\ [\d.]+.*""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


@dataclass
class Standing:
    packet: bytes | None = None  # the XMP that programs write into
    packets: list[bytes] = field(default_factory=list)  # other XMP
    texts: list[tuple[str, str]] = field(default_factory=list)  # where, and what


def read(data: bytes, file: str) -> Standing:
    """Of a damaged file, what comes before the damage."""
    standing = Standing()
    with suppress(ValueError, IndexError, struct.error):
        if data.startswith(b"\xff\xd8\xff"):
            _jpeg(data, standing)
        elif data.startswith(PNG):
            _png(data, standing)
        elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            for part in containers.of_webp(data):
                if part.kind == b"XMP ":
                    _add(standing, data[part.body : part.end])
        elif data[:4] not in (b"II*\0", b"MM\0*"):
            _by_pillow(data, file, standing)
    _exif(exif_in(data), standing)
    standing.texts = [(where, _plain(text)) for where, text in standing.texts if _plain(text)]
    return standing


def _add(standing: Standing, packet: bytes) -> None:
    if standing.packet is None:
        standing.packet = packet
    else:
        standing.packets.append(packet)


def _jpeg(data: bytes, standing: Standing) -> None:
    extended, resources = dict[bytes, dict[int, bytes]](), list[bytes]()
    try:
        for part in containers.of_jpeg(data):
            body = data[part.body : part.end]
            if part.kind == b"\xe1" and body.startswith(XMP_IN_JPEG):
                _add(standing, body.removeprefix(XMP_IN_JPEG))
            elif part.kind == b"\xe1" and body.startswith(_EXTENDED):
                rest = body.removeprefix(_EXTENDED)  # digest, size of the whole, place in it, and a piece
                extended.setdefault(rest[:32], {})[int.from_bytes(rest[36:40], "big")] = rest[40:]
            elif part.kind == b"\xed" and body.startswith(_RESOURCES):
                resources.append(body.removeprefix(_RESOURCES))
    finally:
        standing.packets += [b"".join(pieces[place] for place in sorted(pieces)) for pieces in extended.values()]
        _resources(b"".join(resources), standing)


def _png(data: bytes, standing: Standing) -> None:
    keywords = (XMP_IN_PNG + b"\0", PROFILE_IN_PNG, b"Description\0")
    for text in containers.texts_of_png(data, containers.of_png(data), keywords):
        if text.keyword == XMP_IN_PNG:
            _add(standing, text.content)
        elif text.keyword == b"Description":
            standing.texts.append((_PNG, _decoded(text.content)))
        elif b"<rdf:RDF" in text.profile or text.keyword.endswith(b" xmp"):
            standing.packets.append(text.profile.removeprefix(XMP_IN_JPEG))
        elif text.profile.startswith(b"Exif\0\0"):
            _exif(text.profile, standing)
        else:
            _resources(text.profile.removeprefix(_RESOURCES), standing)


def _by_pillow(data: bytes, file: str, standing: Standing) -> None:
    with suppress(Exception), formats.open_image(data, file)[0] as image:  # decoders raise nearly anything
        if isinstance(packet := image.info.get("xmp"), bytes):
            _add(standing, packet)
        _exif(image.info.get("exif", b""), standing)


def _resources(data: bytes, standing: Standing) -> None:
    """Of Photoshop: IPTC data are one of them; or IPTC data without the others."""
    if data.startswith(b"\x1c"):
        _iptc(data, standing)
        return
    place = 0
    while data[place : place + 4] == b"8BIM":
        number = int.from_bytes(data[place + 4 : place + 6], "big")
        place += 6 + (data[place + 6] + 2) // 2 * 2  # its name, to an even length
        size = int.from_bytes(data[place : place + 4], "big")
        if number == 0x0404:
            _iptc(data[place + 4 : place + 4 + size], standing)
        place += 4 + (size + 1) // 2 * 2


def _iptc(data: bytes, standing: Standing) -> None:
    place = 0
    while data[place : place + 1] == b"\x1c" and place + 5 <= len(data):
        size = int.from_bytes(data[place + 3 : place + 5], "big")
        if data[place + 1 : place + 3] == b"\x02\x78":
            standing.texts.append((_IPTC, _decoded(data[place + 5 : place + 5 + size])))
        place += 5 + size  # a size of more than 32,767 means something else, and ends it


def _exif(data: bytes, standing: Standing) -> None:
    """Also of a TIFF, which is built alike."""
    entries: dict[int, bytes] = {}
    with suppress(struct.error):  # what is cut off says nothing, to us as to other programs
        entries.update(_entries(data.removeprefix(b"Exif\0\0")))
    standing.packets += [entries[_XMP_TAG]] if _XMP_TAG in entries else []
    _iptc(entries.get(_IPTC_TAG, b""), standing)
    _resources(entries.get(_RESOURCES_TAG, b""), standing)
    text, *camera = (_plain(_decoded(entries.get(tag, b""))) for tag in _DESCRIPTION_MAKE_MODEL)
    if not _is_default(text, camera):
        standing.texts.append((_EXIF, text))


def _entries(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Of the first directory of a TIFF, those of bytes or numbers, as they stand."""
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        return
    (place,) = struct.unpack_from(f"{order}L", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, place)
    for number in range(count):
        entry = place + 2 + 12 * number
        tag, kind, length = struct.unpack_from(f"{order}HHL", data, entry)
        size = _SIZES.get(kind, 0) * length
        start = entry + 8 if size <= 4 else struct.unpack_from(f"{order}L", data, entry + 8)[0]
        yield tag, data[start : start + size]


def _is_default(text: str, camera: list[str]) -> bool:
    """What the camera writes of its own accord: its name, a file's name, or one of the well-known."""
    return _DEFAULTS.fullmatch(text) is not None or text.casefold() in [
        name.casefold() for name in (*camera, " ".join(camera))
    ]


def _plain(text: str) -> str:
    return text.strip("\0 \t\r\n")


def _decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("latin-1")
