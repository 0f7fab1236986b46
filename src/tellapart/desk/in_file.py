"""The XMP packet inside a photo's file, put there by splicing bytes: the picture and all other metadata stay.

Refused, in a sentence: kinds of files other than JPEG, PNG and WebP, RAW photos, files signed by C2PA (a change would
break the signature), and JPEGs that hold several pictures, whose table of places would no longer be true.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

from tellapart.data.media import formats
from tellapart.data.media.identity import picture_sha256
from tellapart.desk import containers, edits, xmp
from tellapart.desk.containers import PNG, PROFILE_IN_PNG, XMP_IN_JPEG, XMP_IN_PNG, Part
from tellapart.desk.edits import Edit
from tellapart.errors import BadPhoto

_LONGEST_SEGMENT = 65533  # bytes of a JPEG segment after its length
_PADDING = re.compile(rb"\s+(?=<\?xpacket end=)")
_SIGNED = "is signed (C2PA), and a change would break the signature; use --xmp"


def merge(data: bytes, file: str, text: xmp.Text, how: xmp.How) -> xmp.Merged:
    """The whole file with the caption in its packet.  Raises BadPhoto, or BadPacket for what its XMP is."""
    try:
        merged = _format(data, file)(data, file, text, how)
    except (IndexError, ValueError):
        raise BadPhoto(file, "the file is damaged, so nothing is written into it") from None
    if picture_sha256(merged.data) != picture_sha256(data):  # must not be; a photo has no copy
        raise BadPhoto(file, "the caption cannot be put into the file without a change to its picture")
    return merged


def _format(data: bytes, file: str) -> Callable[[bytes, str, xmp.Text, xmp.How], xmp.Merged]:
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg
    if data.startswith(PNG):
        return _png
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp
    if data[:4] in (b"II*\0", b"MM\0*") and (
        formats.is_raw(data) or PurePath(file).suffix.lower() not in (".tif", ".tiff")
    ):
        raise BadPhoto(file, "is a RAW photo, which is never written into; use --xmp")
    raise BadPhoto(file, "only JPEG, PNG and WebP files can be written into; use --xmp")


def _spliced(data: bytes, changes: list[Edit], merged: xmp.Merged) -> xmp.Merged:
    if not merged.edits:
        return xmp.Merged(data, [], merged.kept)
    return replace(merged, data=edits.apply(data, changes), edits=changes)


def _only(parts: list[Part], file: str) -> Part | None:
    if len(parts) > 1:
        raise BadPhoto(file, "has two XMP packets; nothing is written into it")
    return parts[0] if parts else None


def _jpeg(data: bytes, file: str, text: xmp.Text, how: xmp.How) -> xmp.Merged:
    parts = list(containers.of_jpeg(data))
    first = 2  # after what must come first: JFIF, EXIF
    for part in parts:
        body = data[part.body : part.end]
        if part.kind == b"\xeb" and b"c2pa" in body:
            raise BadPhoto(file, _SIGNED)
        if part.kind == b"\xe2" and body.startswith(b"MPF\0"):
            raise BadPhoto(file, "holds several pictures (MPF), so nothing is written into it; use --xmp")
        if part.start == first and (part.kind == b"\xe0" or body.startswith(b"Exif\0")):
            first = part.end
    own = _only([p for p in parts if p.kind == b"\xe1" and data.startswith(XMP_IN_JPEG, p.body)], file)
    merged = xmp.merge(data[own.body + len(XMP_IN_JPEG) : own.end] if own else xmp.EMPTY, text, how)
    packet = merged.data
    if len(packet) + len(XMP_IN_JPEG) > _LONGEST_SEGMENT:
        packet = _PADDING.sub(b"\n", packet)  # room that programs leave for one another
    body = XMP_IN_JPEG + packet
    if len(body) > _LONGEST_SEGMENT:
        raise BadPhoto(file, "its XMP and the caption do not fit into a JPEG together; use --xmp")
    segment = b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body
    start, end = (own.start, own.end) if own else (first, first)
    return _spliced(data, [Edit(start, end, segment)], merged)


# PNG: chunks with a check sum


def _png(data: bytes, file: str, text: xmp.Text, how: xmp.How) -> xmp.Merged:
    parts = list(containers.of_png(data))
    if any(part.kind == b"caBX" for part in parts):
        raise BadPhoto(file, _SIGNED)
    texts = list(containers.texts_of_png(data, parts, (XMP_IN_PNG + b"\0", PROFILE_IN_PNG)))
    if any(b"<rdf:RDF" in one.profile or one.keyword.endswith(b" xmp") for one in texts):
        raise BadPhoto(file, "has XMP as ImageMagick writes it, which is not changed; use --xmp")
    own = _only([one.part for one in texts if one.keyword == XMP_IN_PNG and one.part.kind == b"iTXt"], file)
    packet = next((one for one in texts if one.part == own), None)
    merged = xmp.merge(packet.content if packet else xmp.EMPTY, text, replace(how, summed=True))
    body = b"iTXt" + XMP_IN_PNG + b"\0\0\0" + (packet.between if packet else b"\0\0") + merged.data
    chunk = (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    pixels = [part.start for part in parts if part.kind == b"IDAT"][0]  # noqa: RUF015 - an IndexError: it is damaged
    start, end = (own.start, own.after) if own else (pixels, pixels)
    return _spliced(data, [Edit(start, end, chunk)], merged)


# WebP: chunks of a RIFF file


def _webp(data: bytes, file: str, text: xmp.Text, how: xmp.How) -> xmp.Merged:
    parts, whole = list(containers.of_webp(data)), 8 + int.from_bytes(data[4:8], "little")
    place = parts[-1].after
    kinds = {part.kind: part for part in parts}
    if b"C2PA" in kinds:
        raise BadPhoto(file, _SIGNED)
    own = _only([part for part in parts if part.kind == b"XMP "], file)
    merged = xmp.merge(data[own.body : own.end] if own else xmp.EMPTY, text, how)
    chunk = _chunk(b"XMP ", merged.data)
    changes = [Edit(own.start, own.after, chunk) if own else Edit(place, place, chunk)]
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
