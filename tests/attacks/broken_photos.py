"""Photos that are broken in every way we could think of.  Each helper writes one and returns its path.

`BROKEN` must be refused with a sentence each, whatever takes photos.
"""

from __future__ import annotations

import os
import struct
import zlib
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from attacks.photos import BLACK, WHITE, Maker, encoded, noise, of_bytes

# Broken: no file, or not a file


def missing(folder: Path) -> Path:
    return folder / "nowhere.jpg"


def a_folder(folder: Path) -> Path:
    path = folder / "folder.jpg"
    path.mkdir()
    return path


def a_pipe(folder: Path) -> Path:
    """Opening it for reading waits until somebody writes, which here is forever."""
    path = folder / "pipe.jpg"
    os.mkfifo(path)
    return path


def a_device(folder: Path) -> Path:
    path = folder / "endless.jpg"
    path.symlink_to("/dev/zero")
    return path


def a_link_to_nowhere(folder: Path) -> Path:
    path = folder / "link.jpg"
    path.symlink_to(folder / "gone.jpg")
    return path


def a_link_to_itself(folder: Path) -> Path:
    path = folder / "loop.jpg"
    path.symlink_to(path)
    return path


def nul_in_the_name(folder: Path) -> Path:
    return folder / "dog\0.jpg"


def name_too_long(folder: Path) -> Path:
    return folder / f"{'x' * 300}.jpg"


def empty(folder: Path) -> Path:
    return of_bytes(folder, "empty.jpg", b"")


# Broken: not a photo, whatever the name says


def text_named_png(folder: Path) -> Path:
    return of_bytes(folder, "notes.png", b"Remember to buy milk.\n")


def svg_named_jpg(folder: Path) -> Path:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle cx="4" cy="4" r="4"/></svg>\n'
    return of_bytes(folder, "circle.jpg", svg)


def eps_named_png(folder: Path) -> Path:
    """A program, which Pillow would hand to ghostscript to run."""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n0 0 9 9 rectfill\nshowpage\n%%EOF\n"
    return of_bytes(folder, "drawing.png", eps)


def heic_named_jpg(folder: Path) -> Path:
    """What an iPhone writes when nobody asks it for JPEG; only the beginning, which is what gives it away."""
    head = struct.pack(">I4s4sI4s4s", 24, b"ftyp", b"heic", 0, b"mif1", b"heic")
    return of_bytes(folder, "iphone.jpg", head + bytes(99))


def garbage_that_begins_like_a_jpeg(folder: Path) -> Path:
    return of_bytes(folder, "garbage.jpg", b"\xff\xd8\xff\xe0" + np.random.default_rng(1).bytes(5000))


# Broken: damaged photos


def cut_short(folder: Path, name: str, format: str, **settings: Any) -> Path:
    whole = encoded(noise(), format, **settings)
    return of_bytes(folder, name, whole[: len(whole) // 2])


def png_with_a_flipped_byte(folder: Path) -> Path:
    whole = bytearray(encoded(noise(), "PNG"))
    whole[len(whole) // 2] ^= 0xFF
    return of_bytes(folder, "flipped.png", bytes(whole))


def _png(width: int, height: int, bits: int, chunks: list[tuple[bytes, bytes]]) -> bytes:
    """A greyscale PNG written chunk by chunk, because Pillow would refuse to write what an attacker writes."""
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    whole = [b"\x89PNG\r\n\x1a\n"]
    for kind, data in [(b"IHDR", header), *chunks, (b"IEND", b"")]:
        whole.append(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))
    return b"".join(whole)


def bomb(folder: Path) -> Path:
    """110 kB that unpack, without a fault, to a black square of 30,000 pixels a side."""
    return of_bytes(folder, "bomb.png", _black_square(30_000))


@cache
def _black_square(side: int) -> bytes:
    packer = zlib.compressobj(9)
    row = bytes(1 + (side + 7) // 8)
    pixels = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    return _png(side, side, 1, [(b"IDAT", pixels)])


def bomb_in_a_gif(folder: Path) -> Path:
    """Forty bytes that claim 65,535 pixels a side."""
    screen = struct.pack("<6sHHBBB", b"GIF89a", 65535, 65535, 0x80, 0, 0) + bytes(BLACK) + bytes(WHITE)
    frame = struct.pack("<BHHHHB", 0x2C, 0, 0, 65535, 65535, 0) + b"\x02\x02\x44\x01\x00\x3b"
    return of_bytes(folder, "bomb.gif", screen + frame)


def bomb_in_the_text(folder: Path) -> Path:
    """A PNG of one pixel with a comment that unpacks to 20 MB."""
    packer = zlib.compressobj(9)
    comment = b"".join(packer.compress(bytes(1 << 20)) for _ in range(20)) + packer.flush()
    pixel = zlib.compress(b"\0\0")
    return of_bytes(folder, "text.png", _png(1, 1, 8, [(b"zTXt", b"Comment\0\0" + comment), (b"IDAT", pixel)]))


BROKEN: dict[str, Maker] = {
    "missing": missing,
    "a folder": a_folder,
    "a pipe": a_pipe,
    "a device": a_device,
    "a link to nowhere": a_link_to_nowhere,
    "a link to itself": a_link_to_itself,
    "a NUL in the name": nul_in_the_name,
    "a name too long": name_too_long,
    "empty": empty,
    "text named png": text_named_png,
    "SVG named jpg": svg_named_jpg,
    "EPS named png": eps_named_png,
    "HEIC named jpg": heic_named_jpg,
    "garbage that begins like a JPEG": garbage_that_begins_like_a_jpeg,
    "JPEG cut short": partial(cut_short, name="cut.jpg", format="JPEG"),
    "progressive JPEG cut short": partial(cut_short, name="cut_progressive.jpg", format="JPEG", progressive=True),
    "PNG cut short": partial(cut_short, name="cut.png", format="PNG"),
    "WebP cut short": partial(cut_short, name="cut.webp", format="WEBP"),
    "GIF cut short": partial(cut_short, name="cut.gif", format="GIF"),
    "BMP cut short": partial(cut_short, name="cut.bmp", format="BMP"),
    "TIFF cut short": partial(cut_short, name="cut.tif", format="TIFF"),
    "PNG with a flipped byte": png_with_a_flipped_byte,
    "decompression bomb": bomb,
    "decompression bomb in a GIF": bomb_in_a_gif,
    "decompression bomb in the text of a PNG": bomb_in_the_text,
}
