"""RAW photos as cameras write them, made by hand: directories of a TIFF, and JPEGs that they point to.

The picture is the four quadrants of `attacks.photos`; thumbnails are black, so that whoever takes one gives it away.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from PIL import Image

from attacks.photos import _stored, encoded, quadrants

SHORT, LONG = 3, 4
Entry = tuple[int, int, list[int] | bytes]  # tag, type, values; bytes: where they will lie, in place of a value
JPEG, JPEG_SIZE, STRIP, STRIP_SIZE = 0x0201, 0x0202, 0x0111, 0x0117
WIDTH, COMPRESSION, PHOTOMETRIC, ORIENTATION, DIRECTORIES = 0x0100, 0x0103, 0x0106, 0x0112, 0x014A
SENSOR = 32803  # a photometric interpretation


def picture(orientation: int = 1, **settings: object) -> bytes:
    return encoded(Image.fromarray(_stored(quadrants(), orientation)), "JPEG", quality=95, **settings)


def thumbnail() -> bytes:
    return encoded(Image.new("RGB", (30, 20)), "JPEG")


def sensor() -> bytes:
    """The beginning of a lossless JPEG of 24 megapixels, such as holds what the sensor saw."""
    return b"\xff\xd8\xff\xc3" + struct.pack(">HBHHB", 8 + 3, 14, 4000, 6000, 1) + b"\x01\x11\x00" + bytes(500)


def tiff(
    chain: Sequence[list[Entry]], below: Sequence[list[Entry]] = (), *, order: str = "<", after_header: bytes = b""
) -> bytes:
    """Directories one after the other, the first of which names those below, and then the bytes they point to."""
    first, *others = chain
    if below:
        first = [*first, (DIRECTORIES, LONG, [0] * len(below))]
    directories = [sorted(one, key=lambda entry: entry[0]) for one in (first, *others, *below)]
    start = 8 + len(after_header)
    places = [start]
    for one in directories:
        places.append(places[-1] + 2 + 12 * len(one) + 4)
    rest, where = [], places[-1]

    def later(data: bytes) -> int:
        nonlocal where
        rest.append(data)
        where += len(data)
        return where - len(data)

    written = []
    for number, one in enumerate(directories):
        written.append(struct.pack(f"{order}H", len(one)))
        for tag, kind, values in one:
            if tag == DIRECTORIES:
                values = places[len(chain) : -1]
            numbers = [later(values)] if isinstance(values, bytes) else list(values)
            packed = struct.pack(f"{order}{len(numbers)}{'H' if kind == SHORT else 'I'}", *numbers)
            field = packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack(f"{order}I", later(packed))
            written.append(struct.pack(f"{order}HHI", tag, kind, len(numbers)) + field)
        follows = places[number + 1] if number + 1 < len(chain) else 0
        written.append(struct.pack(f"{order}I", follows))
    magic = b"II*\0" if order == "<" else b"MM\0*"
    return magic + struct.pack(f"{order}I", start) + after_header + b"".join([*written, *rest])


def _strip(data: bytes, compression: int) -> list[Entry]:
    return [(COMPRESSION, SHORT, [compression]), (STRIP, LONG, data), (STRIP_SIZE, LONG, [len(data)])]


def _sensor(compression: int) -> list[Entry]:
    return [*_strip(sensor(), compression), (PHOTOMETRIC, SHORT, [SENSOR])]


def _jpeg(data: bytes) -> list[Entry]:
    return [(JPEG, LONG, data), (JPEG_SIZE, LONG, [len(data)])]


def cr2(orientation: int = 1) -> bytes:
    """Canon: the picture, a thumbnail, and the sensor's data, in one chain."""
    turned: list[Entry] = [(ORIENTATION, SHORT, [orientation])]
    raw = _strip(sensor(), 6)
    chain = [_strip(picture(orientation), 6) + turned, _jpeg(thumbnail()), raw]
    return tiff(chain, after_header=b"CR\2\0" + bytes(4))


def dng(orientation: int = 1) -> bytes:
    """Adobe: a thumbnail on top; below, the sensor's data and the picture."""
    black = bytes(30 * 20 * 3)
    small: list[Entry] = [(WIDTH, SHORT, [30]), (0x0101, SHORT, [20]), (0x0102, SHORT, [8]), (PHOTOMETRIC, SHORT, [2])]
    small += [*_strip(black, 1), (0x0115, SHORT, [3]), (0xC612, 1 + SHORT, [0x01040000])]
    small += [(ORIENTATION, SHORT, [orientation])]
    below = [_sensor(7), _strip(picture(orientation), 7)]
    return tiff([small], below)


def nef(orientation: int = 1) -> bytes:
    """Nikon: the other byte order; below, the picture, the sensor's data and another thumbnail."""
    below = [_jpeg(picture(orientation)), _sensor(34713), _jpeg(thumbnail())]
    return tiff([[(ORIENTATION, SHORT, [orientation])]], below, order=">")


def arw(orientation: int = 1) -> bytes:
    """Sony: the picture on top, a thumbnail behind it, the sensor's data below."""
    turned: list[Entry] = [(ORIENTATION, SHORT, [orientation])]
    below = [_sensor(32767)]
    return tiff([_jpeg(picture(orientation)) + turned, _jpeg(thumbnail())], below)


RAW: dict[str, Callable[[int], bytes]] = {"cr2": cr2, "dng": dng, "nef": nef, "arw": arw}


def in_a_circle() -> bytes:
    """A directory that names itself as the next one and as the one below."""
    data = bytearray(tiff([[(ORIENTATION, SHORT, [1])]], [[(PHOTOMETRIC, SHORT, [SENSOR])]]))
    (first,) = struct.unpack_from("<I", data, 4)
    struct.pack_into("<I", data, first + 2 + 12 * 2, first)
    struct.pack_into("<I", data, first + 2 + 12 + 8, first)
    return bytes(data)


LYING: dict[str, bytes] = {
    "nothing behind the header": b"II*\0" + bytes(64),
    "directories in a circle": in_a_circle(),
    "a directory behind the end": b"II*\0" + struct.pack("<I", 1 << 31) + b"CR" + bytes(64),
    "65,535 entries": b"MM\0*" + struct.pack(">I", 10) + b"CR" + b"\xff\xff" + bytes(64),
    "a JPEG behind the end": tiff([[(JPEG, LONG, [1 << 31]), (JPEG_SIZE, LONG, [99])]], after_header=b"CR"),
    "a JPEG that is none": tiff([_jpeg(b"not a JPEG")], after_header=b"CR"),
    "only what the sensor saw": tiff([_strip(sensor(), 6)], after_header=b"CR"),
    "four thousand million values": tiff([[(JPEG, LONG, [1])]], after_header=b"CR").replace(
        struct.pack("<HHI", JPEG, LONG, 1), struct.pack("<HHI", JPEG, LONG, 0xFFFFFFFF)
    ),
}
