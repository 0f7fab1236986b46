"""Whether a PNG has all its pixels: Pillow leaves those black that the file does not have, and finds nothing wrong."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_RATIO = 1032  # a packed byte holds at most so many (RFC 1951: 258 bytes in two bits)
_PIECE = 1 << 16  # packed bytes that are taken at once


@dataclass(frozen=True)
class _Header:
    width: int
    height: int
    bits: int  # of a pixel
    interlaced: bool

    @property
    def unpacked(self) -> int:
        """Bytes of all rows, each with the byte before it that says how it is filtered."""
        if not self.interlaced:
            return self._rows(self.width, self.height)
        return sum(
            self._rows((self.width - left + right - 1) // right, (self.height - top + down - 1) // down)
            for left, top, right, down in _ADAM7
        )

    def _rows(self, width: int, height: int) -> int:
        return height * (1 + (width * self.bits + 7) // 8) if width > 0 and height > 0 else 0


def cannot_be_whole(data: bytes) -> bool:
    """Whether the packed rows are too few for the picture however well they are packed; nothing is unpacked."""
    header = _header(data)
    return header is not None and header.unpacked > _RATIO * sum(map(len, _packed(data)))


def is_interlaced(data: bytes) -> bool:
    header = _header(data)
    return header is not None and header.interlaced


def is_whole(data: bytes) -> bool:
    """Whether there are as many bytes as the rows of the picture take.  Costs as much as half of reading it."""
    header = _header(data)
    if header is None:
        return True  # not for us to say
    unpacker, missing = zlib.decompressobj(), header.unpacked
    try:
        for chunk in _packed(data):
            for start in range(0, len(chunk), _PIECE):
                left: bytes | memoryview = chunk[start : start + _PIECE]
                while len(left) and missing > 0:
                    missing -= len(unpacker.decompress(left, _RATIO * _PIECE // 64))
                    left = unpacker.unconsumed_tail
    except zlib.error:
        pass
    return missing <= 0


def _header(data: bytes) -> _Header | None:
    if not data.startswith(_SIGNATURE) or data[12:16] != b"IHDR" or len(data) < 29:
        return None
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    return _Header(width, height, depth * _CHANNELS.get(colour, 1), bool(interlaced))


def _packed(data: bytes) -> Iterator[memoryview]:
    """What the IDAT chunks hold."""
    view, place = memoryview(data), len(_SIGNATURE)
    while place + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"IDAT":
            yield view[place + 8 : place + 8 + size]
        elif kind == b"IEND":
            return
        place += 12 + size
