"""Photos that take much memory, however their pixels are kept, and those that have fewer pixels than they say."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attacks.photos import exif

SIDE = 2800  # eight megapixels
PALETTE, GREY, COLOUR = 3, 0, 2  # colour types of a PNG


def png(
    width: int,
    height: int,
    rows: Iterable[bytes],
    *,
    colour: int = GREY,
    bits: int = 8,
    interlaced: bool = False,
    more: Iterable[tuple[bytes, bytes]] = (),
) -> bytes:
    """Written chunk by chunk, because Pillow would refuse to write what an attacker writes.

    rows  bytes of the rows, filter and all, in pieces
    """
    packer = zlib.compressobj(9)
    pixels = b"".join([packer.compress(row) for row in rows]) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced)
    whole = [b"\x89PNG\r\n\x1a\n"]
    for kind, data in [(b"IHDR", header), *more, (b"IDAT", pixels), (b"IEND", b"")]:
        whole.append(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))
    return b"".join(whole)


def thin() -> bytes:
    """Fewer than a hundred bytes that claim one pixel by 178,956,970, which is just within the limit."""
    return png(1, 178_956_970, [b"\0\0"], colour=COLOUR)


def thin_and_whole(height: int = 178_956_970) -> bytes:
    """The same with all its pixels, which are grey."""
    pieces, rest = divmod(2 * height, 1 << 20)
    return png(1, height, [b"\0\x7f" * (1 << 19)] * pieces + [b"\0\x7f" * (rest // 2)])


def palette_bomb(side: int = 13_377) -> bytes:
    """A few kB that unpack to a square of a half-transparent colour: 3 GB, if all of it is converted at once."""
    more = [(b"PLTE", bytes(range(6))), (b"tRNS", b"\x80\x80")]
    return png(side, side, [bytes(1 + (side + 7) // 8)] * side, colour=PALETTE, bits=1, more=more)


def too_few_rows(share: float = 0.5, *, width: int = 40, height: int = 30) -> bytes:
    """White rows that end before the picture does, though nothing in the file is cut or wrong."""
    return png(width, height, [b"\0" + b"\xff" * width] * round(share * height))


def interlaced(share: float, *, side: int = 16) -> bytes:
    """White; of a square of 16 pixels the seven passes have 2x2, 2x2, 4x2, 4x4, 8x4, 8x8 and 16x8 pixels."""
    passes = [(2, 2), (2, 2), (4, 2), (4, 4), (8, 4), (8, 8), (16, 8)]
    rows = b"".join(b"\0" + b"\xff" * wide for wide, high in passes for _ in range(high))
    return png(side, side, [rows[: round(share * len(rows))]], interlaced=True)


def flood(folder: Path, height: int = 2000) -> Path:
    """A fax of noise: libtiff has something to say of nearly every row, and goes on."""
    path = folder / "flood.tif"
    Image.new("1", (160, height)).save(path, compression="group3")
    data = bytearray(path.read_bytes())
    with Image.open(path) as image:
        (start, *_), (size, *_) = image.tag_v2[273], image.tag_v2[279]
    data[start : start + size] = np.random.default_rng(0).bytes(size)
    path.write_bytes(bytes(data))
    return path


def _save(name: str, mode: str, **settings: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        Image.new(mode, (SIDE, SIDE), 1 if mode in "1LPIF" or mode == "I;16" else None).save(path, **settings)
        return path

    return make


def _written(name: str, make: Callable[[], bytes]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(make())
        return path

    return write


LARGE: dict[str, Callable[[Path], Path]] = {
    "palette with transparency": _written("palette.png", lambda: palette_bomb(SIDE)),
    "one pixel wide": _written("thin.png", lambda: thin_and_whole(SIDE**2)),
    "one pixel high": lambda folder: _line(folder),
    "grey with opacity": _save("opacity.png", "LA"),
    "colour with opacity": _save("rgba.png", "RGBA"),
    "sixteen bits": _save("deep.png", "I;16"),
    "fractions": _save("fractions.tif", "F"),
    "whole numbers": _save("numbers.tif", "I"),
    "inks": _save("inks.tif", "CMYK"),
    "inks in a JPEG": _save("inks.jpg", "CMYK"),
    "packed TIFF": _save("packed.tif", "RGB", compression="tiff_lzw"),
    "turned TIFF": _save("turned.tif", "RGB", tiffinfo={0x0112: 6}),
    "turned packed TIFF": _save("turned_packed.tif", "RGBA", tiffinfo={0x0112: 6}, compression="tiff_deflate"),
    "JPEG in a TIFF": _save("jpeg.tif", "RGB", compression="jpeg"),
    "GIF": _save("large.gif", "P"),
    "GIF with transparency": _save("hole.gif", "P", transparency=1),
    "BMP": _save("large.bmp", "RGB"),
    "JPEG": _save("large.jpg", "RGB"),
    "turned PNG": _save("turned.png", "RGB", exif=exif(6)),
    "progressive JPEG": _save("progressive.jpg", "RGB", progressive=True, subsampling=0),
    "WebP": _save("large.webp", "RGB", method=0),
    "WebP with opacity": _save("opacity.webp", "RGBA", method=0),
    "lossless WebP": _save("lossless.webp", "RGB", method=0, lossless=True),
    "AVIF": _save("large.avif", "RGB", speed=10),
    "AVIF with opacity": _save("opacity.avif", "RGBA", speed=10, subsampling="4:4:4"),
}


def _line(folder: Path) -> Path:
    path = folder / "line.png"
    Image.new("P", (SIDE**2, 1), 1).save(path, transparency=1)
    return path
