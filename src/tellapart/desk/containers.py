"""JPEG, PNG and WebP files as parts, each with its place.  A damaged file is a ValueError or IndexError."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tellapart.desk.packet import MOST_BYTES, BadPacket

PNG = b"\x89PNG\r\n\x1a\n"
XMP_IN_JPEG = b"http://ns.adobe.com/xap/1.0/\0"
XMP_IN_PNG = b"XML:com.adobe.xmp"  # the keyword of a text
PROFILE_IN_PNG = b"Raw profile type "


class Part(NamedTuple):
    """A segment or chunk of a file."""

    kind: bytes
    start: int
    body: int
    end: int  # of the body
    after: int  # with check sum or filling


def of_jpeg(data: bytes) -> Iterator[Part]:
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


def of_png(data: bytes) -> Iterator[Part]:
    """Chunks up to IEND, with a check sum after each."""
    place, kind = len(PNG), b""
    while place < len(data) and kind != b"IEND":
        end = place + 8 + int.from_bytes(data[place : place + 4], "big")
        if end + 4 > len(data):
            raise ValueError
        kind = data[place + 4 : place + 8]
        yield Part(kind, place, place + 8, end, end + 4)
        place = end + 4


def of_webp(data: bytes) -> Iterator[Part]:
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


class Text(NamedTuple):
    """What a text chunk of a PNG says."""

    part: Part
    keyword: bytes
    between: bytes  # of an iTXt chunk: language and translated keyword, each ended by a zero
    content: bytes

    @property
    def profile(self) -> bytes:
        """Metadata as ImageMagick writes them: name, length and hexadecimal digits; nothing if it is none."""
        if not self.keyword.startswith(PROFILE_IN_PNG):
            return b""
        return bytes.fromhex(b"".join(self.content.split()[2:]).decode("ascii"))


def texts_of_png(data: bytes, parts: Iterable[Part], keywords: tuple[bytes, ...]) -> Iterator[Text]:
    """Those whose keywords begin so, unpacked; what they may unpack to is bounded together."""
    room = MOST_BYTES
    for part in parts:
        if part.kind not in (b"tEXt", b"zTXt", b"iTXt") or not data.startswith(keywords, part.body):
            continue
        keyword, _, rest = data[part.body : part.end].partition(b"\0")
        between, is_packed = b"", part.kind == b"zTXt"
        if part.kind == b"iTXt":
            is_packed, (language, translated, rest) = rest[0] != 0, rest[2:].split(b"\0", 2)
            between = language + b"\0" + translated + b"\0"
        elif is_packed:
            rest = rest[1:]
        content = _unpacked(rest, room) if is_packed else rest
        room -= len(content)
        if room < 0:
            raise BadPacket(f"the XMP has more than {MOST_BYTES >> 20} MB, the most that is read")
        yield Text(part, keyword, between, content)


def _unpacked(content: bytes, room: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(content, room + 1)
    except zlib.error:
        raise ValueError from None
