"""Texts inside a photo's own file: what stands there already, and the XMP packet with a caption.

`read` finds XMP, also extended, IPTC captions and EXIF descriptions of JPEG, PNG, WebP, TIFF, RAW photos built like
TIFF, HEIC and AVIF.  Nothing is decoded.

`merge` puts a caption into the packet by splicing bytes: the picture and all other metadata stay.  Refused, in a
sentence: kinds of files other than JPEG, PNG and WebP, RAW photos, files signed by C2PA (a change would break the
signature), and JPEGs that hold several pictures, whose table of places would no longer be true.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import NamedTuple

from tellapart.data.media import formats
from tellapart.data.media.identity import exif_in, picture_sha256
from tellapart.desk import xmp
from tellapart.desk.xmp import MOST_BYTES, BadPacket, Edit, Merged, MergeOptions
from tellapart.errors import BadPhoto

# JPEG, PNG and WebP files as parts, each with its place.  A damaged file is a ValueError or IndexError.

PNG = b"\x89PNG\r\n\x1a\n"
_XMP_IN_JPEG = b"http://ns.adobe.com/xap/1.0/\0"
_EXTENDED_XMP = b"http://ns.adobe.com/xmp/extension/\0"
_PHOTOSHOP = b"Photoshop 3.0\0"
_XMP_IN_PNG = b"XML:com.adobe.xmp"  # the keyword of a text
_PROFILE_IN_PNG = b"Raw profile type "


class Part(NamedTuple):
    """A segment or chunk of a file."""

    kind: bytes
    start: int
    body: int
    end: int  # of the body
    after: int  # with check sum or filling


def _parts_of_jpeg(data: bytes) -> Iterator[Part]:
    """Segments before the picture, by their markers."""
    place = 2
    while True:
        if data[place] != 0xFF:
            raise ValueError
        marker = data[place + 1]
        if marker == 0xFF:  # filling
            place += 1
            continue
        if marker in (0xDA, 0xD9):
            return
        size = int.from_bytes(data[place + 2 : place + 4], "big")
        end = place + 2 + size
        if size < 2 or end > len(data):
            raise ValueError
        yield Part(bytes([marker]), place, place + 4, end, end)
        place = end


def _parts_of_png(data: bytes) -> Iterator[Part]:
    """Chunks up to IEND, with a check sum after each."""
    place, kind = len(PNG), b""
    while place < len(data) and kind != b"IEND":
        end = place + 8 + int.from_bytes(data[place : place + 4], "big")
        if end + 4 > len(data):
            raise ValueError
        kind = data[place + 4 : place + 8]
        yield Part(kind, place, place + 8, end, end + 4)
        place = end + 4


def _parts_of_webp(data: bytes) -> Iterator[Part]:
    """Chunks of the RIFF file, each filled to an even length."""
    whole = 8 + int.from_bytes(data[4:8], "little")
    if whole > len(data):
        raise ValueError
    place = 12
    while place + 8 <= whole:
        end = place + 8 + int.from_bytes(data[place + 4 : place + 8], "little")
        if end > whole:
            raise ValueError
        after = min(end + (end - place) % 2, whole)
        yield Part(data[place : place + 4], place, place + 8, end, after)
        place = after


class _TextChunk(NamedTuple):
    """A text chunk of a PNG."""

    part: Part
    keyword: bytes
    between: bytes  # of an iTXt chunk: language and translated keyword, each ended by a zero
    content: bytes

    @property
    def profile(self) -> bytes:
        """Metadata as ImageMagick writes them: name, length and hexadecimal digits; nothing if it is none."""
        if not self.keyword.startswith(_PROFILE_IN_PNG):
            return b""
        return bytes.fromhex(b"".join(self.content.split()[2:]).decode("ascii"))

    @property
    def is_foreign_xmp(self) -> bool:
        """XMP as ImageMagick writes it."""
        return b"<rdf:RDF" in self.profile or self.keyword.endswith(b" xmp")


def _texts_of_png(data: bytes, parts: Iterable[Part], *keywords: bytes) -> Iterator[_TextChunk]:
    """XMP, profiles, and texts whose keywords begin so, unpacked; what they may unpack to is bounded together."""
    room = MOST_BYTES
    for part in parts:
        if part.kind not in (b"tEXt", b"zTXt", b"iTXt"):
            continue
        if not data.startswith((_XMP_IN_PNG + b"\0", _PROFILE_IN_PNG, *keywords), part.body):
            continue
        keyword, _, content = data[part.body : part.end].partition(b"\0")
        between, is_packed = b"", part.kind == b"zTXt"
        if part.kind == b"iTXt":
            is_packed, (language, translated, content) = content[0] != 0, content[2:].split(b"\0", 2)
            between = language + b"\0" + translated + b"\0"
        elif is_packed:
            content = content[1:]
        if is_packed:
            try:
                content = zlib.decompressobj().decompress(content, room + 1)
            except zlib.error:
                raise ValueError from None
        room -= len(content)
        if room < 0:
            raise BadPacket(f"the XMP has more than {MOST_BYTES >> 20} MB, the most that is read")
        yield _TextChunk(part, keyword, between, content)


# What stands there

_XMP_TAG, _IPTC_TAG, _RESOURCES_TAG = 700, 33723, 34377  # of TIFF
_DESCRIPTION_MAKE_MODEL = (270, 271, 272)
_SIZES = {1: 1, 2: 1, 4: 4, 7: 1, 129: 1}  # bytes of a byte, character, number, byte of any kind, UTF-8

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
class FileTexts:
    """Texts in a photo's file.  Of a damaged file, what comes before the damage."""

    packet: bytes | None = None  # the XMP that programs write into
    packets: list[bytes] = field(default_factory=list)  # other XMP
    texts: list[tuple[str, str]] = field(default_factory=list)  # where, and what

    def add_packet(self, packet: bytes) -> None:
        if self.packet is None:
            self.packet = packet
        else:
            self.packets.append(packet)

    def add_text(self, where: str, text: str) -> None:
        if plain := _plain(text):
            self.texts.append((where, plain))


def read(data: bytes, file: str) -> FileTexts:
    result = FileTexts()
    with suppress(ValueError, IndexError, struct.error):
        if data.startswith(b"\xff\xd8\xff"):
            _read_jpeg(data, result)
        elif data.startswith(PNG):
            _read_png(data, result)
        elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            for part in _parts_of_webp(data):
                if part.kind == b"XMP ":
                    result.add_packet(data[part.body : part.end])
        elif data[:4] not in (b"II*\0", b"MM\0*"):
            with suppress(Exception), formats.open_image(data, file)[0] as image:  # decoders raise nearly anything
                if isinstance(packet := image.info.get("xmp"), bytes):
                    result.add_packet(packet)
                _read_exif(image.info.get("exif", b""), result)
    _read_exif(exif_in(data), result)
    return result


def _read_jpeg(data: bytes, result: FileTexts) -> None:
    extended, resources = dict[bytes, dict[int, bytes]](), list[bytes]()
    try:
        for part in _parts_of_jpeg(data):
            body = data[part.body : part.end]
            if part.kind == b"\xe1" and body.startswith(_XMP_IN_JPEG):
                result.add_packet(body.removeprefix(_XMP_IN_JPEG))
            elif part.kind == b"\xe1" and body.startswith(_EXTENDED_XMP):
                rest = body.removeprefix(_EXTENDED_XMP)  # digest, size of the whole, place in it, and a piece
                extended.setdefault(rest[:32], {})[int.from_bytes(rest[36:40], "big")] = rest[40:]
            elif part.kind == b"\xed" and body.startswith(_PHOTOSHOP):
                resources.append(body.removeprefix(_PHOTOSHOP))
    finally:
        result.packets += [b"".join(pieces[place] for place in sorted(pieces)) for pieces in extended.values()]
        _read_resources(b"".join(resources), result)


def _read_png(data: bytes, result: FileTexts) -> None:
    for text in _texts_of_png(data, _parts_of_png(data), b"Description\0"):
        if text.keyword == _XMP_IN_PNG:
            result.add_packet(text.content)
        elif text.keyword == b"Description":
            result.add_text("the PNG description", _decoded(text.content))
        elif text.is_foreign_xmp:
            result.packets.append(text.profile.removeprefix(_XMP_IN_JPEG))
        elif text.profile.startswith(b"Exif\0\0"):
            _read_exif(text.profile, result)
        else:
            _read_resources(text.profile.removeprefix(_PHOTOSHOP), result)


def _read_resources(data: bytes, result: FileTexts) -> None:
    """Resources of Photoshop: IPTC data are one of them; or IPTC data without the others."""
    if data.startswith(b"\x1c"):
        _read_iptc(data, result)
        return
    place = 0
    while data[place : place + 4] == b"8BIM" and place + 6 < len(data):
        number = int.from_bytes(data[place + 4 : place + 6], "big")
        place += 6 + (data[place + 6] + 2) // 2 * 2  # its name, to an even length
        size = int.from_bytes(data[place : place + 4], "big")
        if number == 0x0404:
            _read_iptc(data[place + 4 : place + 4 + size], result)
        place += 4 + (size + 1) // 2 * 2


def _read_iptc(data: bytes, result: FileTexts) -> None:
    place = 0
    while data[place : place + 1] == b"\x1c" and place + 5 <= len(data):
        size = int.from_bytes(data[place + 3 : place + 5], "big")
        if data[place + 1 : place + 3] == b"\x02\x78":
            result.add_text("the IPTC caption", _decoded(data[place + 5 : place + 5 + size]))
        place += 5 + size  # a size of more than 32,767 means something else, and ends it


def _read_exif(data: bytes, result: FileTexts) -> None:
    """Also of a TIFF, which is built alike."""
    entries: dict[int, bytes] = {}
    with suppress(struct.error):  # what is cut off says nothing, to us as to other programs
        entries.update(_entries(data.removeprefix(b"Exif\0\0")))
    result.packets += [entries[_XMP_TAG]] if _XMP_TAG in entries else []
    _read_iptc(entries.get(_IPTC_TAG, b""), result)
    _read_resources(entries.get(_RESOURCES_TAG, b""), result)
    text, *camera = (_plain(_decoded(entries.get(tag, b""))) for tag in _DESCRIPTION_MAKE_MODEL)
    # or it is what the camera writes of its own accord: its name, a file's name, or one of the well-known
    names = [name.casefold() for name in (*camera, " ".join(camera))]
    if _DEFAULTS.fullmatch(text) is None and text.casefold() not in names:
        result.add_text("the EXIF description", text)


def _entries(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Entries of the first directory of a TIFF, those of bytes or numbers, as they stand."""
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


def _plain(text: str) -> str:
    return text.strip("\0 \t\r\n")


def _decoded(text: bytes) -> str:
    with suppress(UnicodeDecodeError):
        return text.decode("utf-8")
    return text.decode("latin-1")


# A caption into the packet

_LONGEST_SEGMENT = 65533  # bytes of a JPEG segment after its length
_PADDING = re.compile(rb"\s+(?=<\?xpacket end=)")
_SIGNED = "is signed (C2PA), and a change would break the signature; use --xmp"


def merge(data: bytes, file: str, text: xmp.Text, options: MergeOptions) -> Merged:
    """The whole file with the caption in its packet.  Raises BadPhoto, or BadPacket for what its XMP is."""
    try:
        if data.startswith(b"\xff\xd8\xff"):
            merged = _merge_jpeg(data, file, text, options)
        elif data.startswith(PNG):
            merged = _merge_png(data, file, text, replace(options, summed=True))
        elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            merged = _merge_webp(data, file, text, options)
        elif data[:4] in (b"II*\0", b"MM\0*") and (
            formats.is_raw(data) or PurePath(file).suffix.lower() not in (".tif", ".tiff")
        ):
            raise BadPhoto(file, "is a RAW photo, which is never written into; use --xmp")
        else:
            raise BadPhoto(file, "only JPEG, PNG and WebP files can be written into; use --xmp")
    except (IndexError, ValueError):
        raise BadPhoto(file, "the file is damaged, so nothing is written into it") from None
    if picture_sha256(merged.data) != picture_sha256(data):  # must not be; a photo has no copy
        raise BadPhoto(file, "the caption cannot be put into the file without a change to its picture")
    return merged


def _spliced(data: bytes, changes: list[Edit], merged: Merged) -> Merged:
    if not merged.edits:
        return Merged(data, [], merged.kept)
    return replace(merged, data=xmp.apply(data, changes), edits=changes)


def _only(parts: list[Part], file: str) -> Part | None:
    if len(parts) > 1:
        raise BadPhoto(file, "has two XMP packets; nothing is written into it")
    return parts[0] if parts else None


def _merge_jpeg(data: bytes, file: str, text: xmp.Text, options: MergeOptions) -> Merged:
    parts = list(_parts_of_jpeg(data))
    first = 2  # after what must come first: JFIF, EXIF
    for part in parts:
        body = data[part.body : part.end]
        if part.kind == b"\xeb" and b"c2pa" in body:
            raise BadPhoto(file, _SIGNED)
        if part.kind == b"\xe2" and body.startswith(b"MPF\0"):
            raise BadPhoto(file, "holds several pictures (MPF), so nothing is written into it; use --xmp")
        if part.start == first and (part.kind == b"\xe0" or body.startswith(b"Exif\0")):
            first = part.end
    existing = _only([p for p in parts if p.kind == b"\xe1" and data.startswith(_XMP_IN_JPEG, p.body)], file)
    merged = xmp.merge(data[existing.body + len(_XMP_IN_JPEG) : existing.end] if existing else xmp.EMPTY, text, options)
    packet = merged.data
    if len(packet) + len(_XMP_IN_JPEG) > _LONGEST_SEGMENT:
        packet = _PADDING.sub(b"\n", packet)  # room that programs leave for one another
    body = _XMP_IN_JPEG + packet
    if len(body) > _LONGEST_SEGMENT:
        raise BadPhoto(file, "its XMP and the caption do not fit into a JPEG together; use --xmp")
    segment = b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body
    start, end = (existing.start, existing.end) if existing else (first, first)
    return _spliced(data, [Edit(start, end, segment)], merged)


def _merge_png(data: bytes, file: str, text: xmp.Text, options: MergeOptions) -> Merged:
    parts = list(_parts_of_png(data))
    if any(part.kind == b"caBX" for part in parts):
        raise BadPhoto(file, _SIGNED)
    texts = list(_texts_of_png(data, parts))
    if any(text.is_foreign_xmp for text in texts):
        raise BadPhoto(file, "has XMP as ImageMagick writes it, which is not changed; use --xmp")
    existing = _only([text.part for text in texts if text.keyword == _XMP_IN_PNG and text.part.kind == b"iTXt"], file)
    packet = next((text for text in texts if text.part == existing), None)
    merged = xmp.merge(packet.content if packet else xmp.EMPTY, text, options)
    body = b"iTXt" + _XMP_IN_PNG + b"\0\0\0" + (packet.between if packet else b"\0\0") + merged.data
    chunk = (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    pixels = [part.start for part in parts if part.kind == b"IDAT"][0]  # noqa: RUF015 - an IndexError: it is damaged
    start, end = (existing.start, existing.after) if existing else (pixels, pixels)
    return _spliced(data, [Edit(start, end, chunk)], merged)


def _merge_webp(data: bytes, file: str, text: xmp.Text, options: MergeOptions) -> Merged:
    parts, whole = list(_parts_of_webp(data)), 8 + int.from_bytes(data[4:8], "little")
    place = parts[-1].after
    kinds = {part.kind: part for part in parts}
    if b"C2PA" in kinds:
        raise BadPhoto(file, _SIGNED)
    existing = _only([part for part in parts if part.kind == b"XMP "], file)
    merged = xmp.merge(data[existing.body : existing.end] if existing else xmp.EMPTY, text, options)
    chunk = _chunk(b"XMP ", merged.data)
    changes = [Edit(existing.start, existing.after, chunk) if existing else Edit(place, place, chunk)]
    if b"VP8X" in kinds:
        flags = kinds[b"VP8X"].body
        changes.append(Edit(flags, flags + 1, bytes([data[flags] | 0x04])))
    else:
        changes.append(Edit(12, 12, _chunk(b"VP8X", _extended(data, kinds))))
    grown = sum(len(edit.data) - (edit.end - edit.start) for edit in changes)
    changes.append(Edit(4, 8, (whole - 8 + grown).to_bytes(4, "little")))
    return _spliced(data, sorted(changes), merged)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return kind + len(body).to_bytes(4, "little") + body + b"\0" * (len(body) % 2)


def _extended(data: bytes, kinds: dict[bytes, Part]) -> bytes:
    """The chunk that says what else there is, of a file that has only a picture: flags, width - 1, height - 1."""
    if b"VP8L" in kinds:
        bits = int.from_bytes(data[kinds[b"VP8L"].body + 1 : kinds[b"VP8L"].body + 5], "little")
        width, height, alpha = bits & 0x3FFF, bits >> 14 & 0x3FFF, bits >> 28 & 1
    elif b"VP8 " in kinds:
        start = kinds[b"VP8 "].body + 6  # after the frame's tag and start code
        width, height = (int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (start, start + 2))
        width, height, alpha = width - 1, height - 1, 0
    else:
        raise ValueError
    return bytes([0x04 | alpha << 4, 0, 0, 0]) + width.to_bytes(3, "little") + height.to_bytes(3, "little")
