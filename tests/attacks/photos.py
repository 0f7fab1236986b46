"""Photos that are odd, broken or large in every way we could think of.  Each helper writes one and returns its path.

`ODD` and `LARGE` must be read like any other photo; `BROKEN` must be refused with a sentence each, whatever takes
photos.  Most of the odd ones show the same picture: four quadrants, each of its own colour, so that a turned,
mirrored or miscoloured photo gives itself away.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tellapart.data.media import photos

RED, GREEN, BLUE, YELLOW = (220, 30, 30), (20, 160, 40), (30, 40, 200), (230, 220, 20)
QUADRANTS = (RED, GREEN, BLUE, YELLOW)  # top left, top right, bottom left, bottom right
GREYS = (0, 85, 170, 255)  # the same, for photos without colour
BLACK, WHITE = (0, 0, 0), (255, 255, 255)

Maker = Callable[[Path], Path]


def quadrants(values: Any = QUADRANTS, dtype: Any = np.uint8, *, height: int = 64, width: int = 96) -> NDArray[Any]:
    """(height, width) or (height, width, channels): one value in each quadrant.  Wider than high."""
    values = np.asarray(values, dtype)
    rows = np.arange(height) * 2 // height
    columns = np.arange(width) * 2 // width
    return values[2 * rows[:, None] + columns]


def noise(height: int = 64, width: int = 96, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def encoded(image: Image.Image, format: str, **settings: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **settings)
    return file.getvalue()


def of_bytes(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def of(folder: Path, name: str, pixels: Any, **settings: Any) -> Path:
    """Pixels, or a Pillow image, saved in the format that the name says."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    path = folder / name
    image.save(path, **settings)
    return path


def good(folder: Path, name: str = "good.jpg") -> Path:
    """A photo with nothing wrong, to lie among the others."""
    return of(folder, name, quadrants(), quality=95)


# Odd: several values of a pixel, or few


def _with_palette() -> Image.Image:
    image = Image.fromarray(quadrants(range(4)))
    image.putpalette([level for colour in QUADRANTS for level in colour])  # what was grey is now a number of a colour
    return image


def _with_holes() -> NDArray[np.float32]:
    """Pixels that no number was measured for, and one that went through the roof."""
    pixels = quadrants([0, 1 / 3, 2 / 3, 1], np.float32)
    pixels[0, :3] = np.nan, np.inf, -np.inf
    return pixels


DEEP = [257 * grey for grey in GREYS]  # sixteen bits a pixel, from 0 to 65535
INKS = [(0, 255, 255, 0), (255, 0, 255, 0), (255, 255, 0, 0), (0, 0, 255, 0)]  # printers' four colours
SEEN_THROUGH = [(*RED, 0), (*GREEN, 128), (*BLUE, 255), (*YELLOW, 255)]  # not at all, half, fully, fully


# Odd: several pictures in one file.  The first counts.


def animation(folder: Path, name: str, **settings: Any) -> Path:
    others = [Image.new("RGB", (96, 64), "black")] * 2
    return of(folder, name, quadrants(), save_all=True, append_images=others, duration=100, **settings)


def multi_picture(folder: Path) -> Path:
    """MPO, which many phones write and call .jpg: a photo with a second view behind it."""
    others = [Image.new("RGB", (96, 64), "black")]
    data = encoded(Image.fromarray(quadrants()), "MPO", save_all=True, append_images=others, quality=95)
    return of_bytes(folder, "phone.jpg", data)


# Odd: shapes


def twelve_megapixels(folder: Path) -> Path:
    """As a camera makes them: large shapes, fine detail, a little noise."""
    y, x = np.arange(3000, dtype=np.float32)[:, None], np.arange(4000, dtype=np.float32)
    noise = np.random.default_rng(2).normal(0, 4, (300, 400)).astype(np.float32)
    detail = 40 * np.sin(x / 7) * np.sin(y / 5) + np.tile(noise, (10, 10))
    planes = [x * 255 / 4000, y * 255 / 3000, 128 + 100 * np.sin(x / 400) * np.cos(y / 200)]
    pixels = np.stack([plane + detail for plane in planes], axis=2).clip(0, 255).astype(np.uint8)
    return of(folder, "camera.jpg", pixels, quality=90)


# Odd: what EXIF says

# Which side of the picture the first stored row and the first stored column show, as the TIFF specification defines
# it; `_stored` is the picture's pixels in that order.
_SIDES = "top left, top right, bottom right, bottom left, left top, right top, right bottom, left bottom"
ORIENTATIONS = {number: tuple(sides.split()) for number, sides in enumerate(_SIDES.split(", "), start=1)}


def _stored(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    sides = ORIENTATIONS[orientation]
    if "bottom" in sides:
        pixels = pixels[::-1]
    if "right" in sides:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels.swapaxes(0, 1) if sides[0] in ("left", "right") else pixels)


def exif(orientation: int, *, more: bytes = b"") -> bytes:
    """An EXIF block that says how a photo was held; `more` is further entries of twelve bytes each."""
    entries = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0) + more
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries) // 12) + entries + bytes(4)


def turned(folder: Path, orientation: int, suffix: str = ".jpg", **settings: Any) -> Path:
    """The four quadrants as a camera keeps them when it is held that way: upright once EXIF is heeded."""
    held = {"tiffinfo": {0x0112: orientation}} if suffix == ".tif" else {"exif": exif(orientation)}
    pixels = _stored(quadrants(), orientation)
    return of(folder, f"turned_{orientation}{suffix}", pixels, **held, **settings)


def turned_multi_picture(folder: Path) -> Path:
    pixels = Image.fromarray(_stored(quadrants(), 6))
    settings = {"save_all": True, "append_images": [pixels], "exif": exif(6), "quality": 95}
    return of_bytes(folder, "phone_turned.jpg", encoded(pixels, "MPO", **settings))


# A resolution that is text: it can be read but not written, and the orientation before it is sound.
NONSENSE = exif(6, more=struct.pack("<HHI4s", 0x011A, 2, 4, b"abc\0"))
EXIF_OF_NOISE = b"Exif\0\0" + np.random.default_rng(3).bytes(200)


# Odd: names


def name_that_is_not_utf_8(folder: Path) -> Path:
    return good(Path(os.fsdecode(os.fsencode(folder))), os.fsdecode(b"caf\xe9.jpg"))


def _of(name: str, make: Callable[[], Any], **settings: Any) -> Maker:
    return lambda folder: of(folder, name, make(), **settings)


ODD: dict[str, Maker] = {
    "greyscale": _of("grey.png", lambda: quadrants(GREYS)),
    "greyscale JPEG": _of("grey.jpg", lambda: quadrants(GREYS), quality=95),
    "one bit": _of("bits.png", lambda: quadrants((False, True, True, False), bool)),
    "palette": _of("palette.png", _with_palette),
    "palette with transparency": _of("palette_transparent.png", _with_palette, transparency=1),  # the second colour
    "palette with half transparency": _of(
        "palette_half.png", _with_palette, transparency=bytes([0, 128, 255, 255])
    ),  # an opacity for each colour
    "grey with opacity": _of("grey_opacity.png", lambda: quadrants([(0, 0), (0, 128), (0, 255), (0, 255)])),
    "colour with opacity": _of("opacity.png", lambda: quadrants(SEEN_THROUGH)),
    # No opacity for each pixel: the file names a colour that is not to be seen.
    "colour that stands for transparent": _of("colour_key.png", quadrants, transparency=GREEN),
    "grey that stands for transparent": _of("grey_key.png", lambda: quadrants(GREYS), transparency=GREYS[1]),
    "CMYK": _of("inks.jpg", lambda: Image.fromarray(quadrants(INKS), "CMYK"), quality=95),
    "sixteen-bit PNG": _of("deep.png", lambda: quadrants(DEEP, np.uint16)),
    # One shade, halfway: nothing in the photo says what black and white are.
    "sixteen-bit mid grey": _of("mid.png", lambda: quadrants([0x8080] * 4, np.uint16)),
    "sixteen-bit TIFF": _of("deep.tif", lambda: quadrants(DEEP, np.uint16)),
    # Thirty-two bits a pixel; black is -1,000,000 and white 2,000,000.
    "32-bit whole numbers": _of("integers.tif", lambda: quadrants([-(10**6), 0, 10**6, 2 * 10**6], np.int32)),
    "32-bit fractions": _of("fractions.tif", lambda: quadrants([0, 1 / 3, 2 / 3, 1], np.float32)),
    # As a program leaves an eight-bit photo that it computed with: the darkest not black, the lightest not white.
    "32-bit fractions up to 255": _of("floats.tif", lambda: quadrants([20, 85, 170, 200], np.float32)),
    "32-bit fractions with holes": _of("holes.tif", _with_holes),
    "animated GIF": partial(animation, name="animation.gif"),
    "animated PNG": partial(animation, name="animation.png"),
    "animated WebP": partial(animation, name="animation.webp", lossless=True),
    "several pages of TIFF": partial(animation, name="pages.tif"),
    "MPO": multi_picture,
    "one pixel": _of("pixel.png", lambda: np.array([[RED]], np.uint8)),
    "one row": _of("row.png", lambda: quadrants(height=2, width=3000)[:1]),  # the left half red, the right half green
    "one column": _of("column.png", lambda: quadrants(height=3000, width=2)[:, :1]),  # red above blue
    "twelve megapixels": twelve_megapixels,
    "progressive JPEG": _of("progressive.jpg", quadrants, progressive=True, quality=95),
    "BMP": _of("windows.bmp", quadrants),
    **{
        f"JPEG with orientation {orientation}": partial(turned, orientation=orientation, quality=95)
        for orientation in ORIENTATIONS
    },
    **{
        f"{kind} with orientation {orientation}": partial(turned, orientation=orientation, suffix=suffix, **settings)
        for orientation in (3, 6, 7)
        for kind, suffix, settings in (
            ("PNG", ".png", {}),
            ("WebP", ".webp", {"lossless": True}),
            ("TIFF", ".tif", {}),
            ("packed TIFF", ".tif", {"compression": "tiff_lzw"}),
        )
    },
    "MPO with orientation 6": turned_multi_picture,
    "orientation 6 with nonsense beside": _of(
        "nonsense.jpg", lambda: _stored(quadrants(), 6), exif=NONSENSE, quality=95
    ),
    "broken EXIF": _of("broken_exif.jpg", quadrants, exif=exif(6)[:18], quality=95),  # ends within its first entry
    "EXIF of noise": _of("noisy_exif.jpg", quadrants, exif=EXIF_OF_NOISE, quality=95),
    "an orientation there is not": _of("turned_9.jpg", quadrants, exif=exif(9), quality=95),
    "a name that is not UTF-8": name_that_is_not_utf_8,
    "the name of another format": lambda folder: of_bytes(  # a PNG that somebody called .jpg
        folder, "really_png.jpg", encoded(Image.fromarray(quadrants()), "PNG")
    ),
}


# Photos that take much memory, however their pixels are kept, and those that have fewer pixels than they say

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


def _save(name: str, mode: str, **settings: Any) -> Maker:
    def make(folder: Path) -> Path:
        path = folder / name
        Image.new(mode, (SIDE, SIDE), 1 if mode in "1LPIF" or mode == "I;16" else None).save(path, **settings)
        return path

    return make


def _written(name: str, make: Callable[[], bytes]) -> Maker:
    return lambda folder: of_bytes(folder, name, make())


LARGE: dict[str, Maker] = {
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


# Broken: no file, or not a file


def _link(name: str, target: str) -> Maker:
    def make(folder: Path) -> Path:
        (folder / name).symlink_to(folder / target)
        return folder / name

    return make


def a_folder(folder: Path) -> Path:
    (folder / "folder.jpg").mkdir()
    return folder / "folder.jpg"


def a_pipe(folder: Path) -> Path:
    """Opening it for reading waits until somebody writes, which here is forever."""
    os.mkfifo(folder / "pipe.jpg")
    return folder / "pipe.jpg"


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle cx="4" cy="4" r="4"/></svg>\n'
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n0 0 9 9 rectfill\nshowpage\n%%EOF\n"
# What an iPhone writes when nobody asks it for JPEG; only the beginning, which is what gives it away.
HEIC = struct.pack(">I4s4sI4s4s", 24, b"ftyp", b"heic", 0, b"mif1", b"heic") + bytes(99)


# Broken: damaged photos


def cut_short(folder: Path, name: str, format: str, **settings: Any) -> Path:
    whole = encoded(noise(), format, **settings)
    return of_bytes(folder, name, whole[: len(whole) // 2])


def png_with_a_flipped_byte(folder: Path) -> Path:
    whole = bytearray(encoded(noise(), "PNG"))
    whole[len(whole) // 2] ^= 0xFF
    return of_bytes(folder, "flipped.png", bytes(whole))


@cache
def _black_square(side: int) -> bytes:
    return png(side, side, [bytes(1 + (side + 7) // 8)] * side, bits=1)


def bomb(folder: Path) -> Path:
    """110 kB that unpack, without a fault, to a black square of 30,000 pixels a side."""
    return of_bytes(folder, "bomb.png", _black_square(30_000))


def bomb_in_a_gif(folder: Path) -> Path:
    """Forty bytes that claim 65,535 pixels a side."""
    screen = struct.pack("<6sHHBBB", b"GIF89a", 65535, 65535, 0x80, 0, 0) + bytes(BLACK) + bytes(WHITE)
    frame = struct.pack("<BHHHHB", 0x2C, 0, 0, 65535, 65535, 0) + b"\x02\x02\x44\x01\x00\x3b"
    return of_bytes(folder, "bomb.gif", screen + frame)


def bomb_in_the_text(folder: Path) -> Path:
    """A PNG of one pixel with a comment that unpacks to 20 MB."""
    comment = b"Comment\0\0" + zlib.compress(bytes(20 << 20), 9)
    return of_bytes(folder, "text.png", png(1, 1, [b"\0\0"], more=[(b"zTXt", comment)]))


BROKEN: dict[str, Maker] = {
    "missing": lambda folder: folder / "nowhere.jpg",
    "a folder": a_folder,
    "a pipe": a_pipe,
    "a device": _link("endless.jpg", "/dev/zero"),
    "a link to nowhere": _link("link.jpg", "gone.jpg"),
    "a link to itself": _link("loop.jpg", "loop.jpg"),
    "a NUL in the name": lambda folder: folder / "dog\0.jpg",
    "a name too long": lambda folder: folder / f"{'x' * 300}.jpg",
    "empty": _written("empty.jpg", bytes),
    "text named png": _written("notes.png", lambda: b"Remember to buy milk.\n"),
    "SVG named jpg": _written("circle.jpg", lambda: SVG),
    "EPS named png": _written("drawing.png", lambda: EPS),  # a program, which Pillow would hand to ghostscript to run
    "HEIC named jpg": _written("iphone.jpg", lambda: HEIC),
    "garbage that begins like a JPEG": _written(
        "garbage.jpg", lambda: b"\xff\xd8\xff\xe0" + np.random.default_rng(1).bytes(5000)
    ),
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


def assert_shows(source, colours=QUADRANTS, tolerance=8):
    """The colours in the middle of the quadrants, within what compression changes.

    source  a file, a picture that was opened, or a photo that was read
    """
    photo = source if isinstance(source, photos.Photo) else photos.read(source, 32)
    low, high = len(photo.pixels) // 4, len(photo.pixels) * 3 // 4
    shown = [photo.pixels[row, column] for row in (low, high) for column in (low, high)]
    np.testing.assert_allclose(np.array(shown, int), np.array(colours), atol=tolerance)
