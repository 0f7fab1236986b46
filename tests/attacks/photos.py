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


# Odd: how colours are kept


def greyscale(folder: Path) -> Path:
    return of(folder, "grey.png", quadrants(GREYS))


def greyscale_jpeg(folder: Path) -> Path:
    return of(folder, "grey.jpg", quadrants(GREYS), quality=95)


def one_bit(folder: Path) -> Path:
    """Black, white; white, black."""
    return of(folder, "bits.png", quadrants((False, True, True, False), bool))


def palette(folder: Path) -> Path:
    return of(folder, "palette.png", _with_palette())


def palette_with_transparency(folder: Path) -> Path:
    """The second colour cannot be seen at all."""
    return of(folder, "palette_transparent.png", _with_palette(), transparency=1)


def palette_with_half_transparency(folder: Path) -> Path:
    """An opacity for each colour: red none, green half, the others full."""
    return of(folder, "palette_half.png", _with_palette(), transparency=bytes([0, 128, 255, 255]))


def _with_palette() -> Image.Image:
    image = Image.fromarray(quadrants(range(4)))
    image.putpalette([level for colour in QUADRANTS for level in colour])  # what was grey is now a number of a colour
    return image


def grey_with_opacity(folder: Path) -> Path:
    """Black four times: not at all, half, fully, fully."""
    return of(folder, "grey_opacity.png", quadrants([(0, 0), (0, 128), (0, 255), (0, 255)]))


def colour_with_opacity(folder: Path) -> Path:
    """The four colours: not at all, half, fully, fully."""
    return of(folder, "opacity.png", quadrants([(*RED, 0), (*GREEN, 128), (*BLUE, 255), (*YELLOW, 255)]))


def colour_that_stands_for_transparent(folder: Path) -> Path:
    """No opacity for each pixel: the file names green as the colour that is not to be seen."""
    return of(folder, "colour_key.png", quadrants(), transparency=GREEN)


def grey_that_stands_for_transparent(folder: Path) -> Path:
    return of(folder, "grey_key.png", quadrants(GREYS), transparency=GREYS[1])


def cmyk(folder: Path) -> Path:
    """Printers' inks: red is magenta and yellow, green is cyan and yellow, blue is cyan and magenta."""
    inks = [(0, 255, 255, 0), (255, 0, 255, 0), (255, 255, 0, 0), (0, 0, 255, 0)]
    return of(folder, "inks.jpg", Image.fromarray(quadrants(inks), "CMYK"), quality=95)


def deep_grey(folder: Path) -> Path:
    """Sixteen bits a pixel, from 0 to 65535."""
    return of(folder, "deep.png", quadrants([257 * grey for grey in GREYS], np.uint16))


def deep_mid_grey(folder: Path) -> Path:
    """One shade, halfway: nothing in the photo says what black and white are."""
    return of(folder, "mid.png", quadrants([0x8080] * 4, np.uint16))


def deep_grey_tiff(folder: Path) -> Path:
    return of(folder, "deep.tif", quadrants([257 * grey for grey in GREYS], np.uint16))


def whole_numbers(folder: Path) -> Path:
    """Thirty-two bits a pixel; black is -1,000,000 and white 2,000,000."""
    return of(folder, "integers.tif", quadrants([-1_000_000, 0, 1_000_000, 2_000_000], np.int32))


def fractions(folder: Path) -> Path:
    return of(folder, "fractions.tif", quadrants([0, 1 / 3, 2 / 3, 1], np.float32))


def fractions_up_to_255(folder: Path) -> Path:
    """As a program leaves an eight-bit photo that it computed with: the darkest not black, the lightest not white."""
    return of(folder, "floats.tif", quadrants([20, 85, 170, 200], np.float32))


def fractions_with_holes(folder: Path) -> Path:
    """Pixels that no number was measured for, and one that went through the roof."""
    pixels = quadrants([0, 1 / 3, 2 / 3, 1], np.float32)
    pixels[0, :3] = np.nan, np.inf, -np.inf
    return of(folder, "holes.tif", pixels)


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


def one_pixel(folder: Path) -> Path:
    return of(folder, "pixel.png", np.array([[RED]], np.uint8))


def one_row(folder: Path) -> Path:
    """3,000 pixels: the left half red, the right half green."""
    return of(folder, "row.png", quadrants(height=2, width=3000)[:1])


def one_column(folder: Path) -> Path:
    """3,000 pixels: the upper half red, the lower half blue."""
    return of(folder, "column.png", quadrants(height=3000, width=2)[:, :1])


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
ORIENTATIONS = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


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
    said = {"tiffinfo": {0x0112: orientation}} if suffix == ".tif" else {"exif": exif(orientation)}
    pixels = _stored(quadrants(), orientation)
    return of(folder, f"turned_{orientation}{suffix}", pixels, **said, **settings)


def turned_multi_picture(folder: Path) -> Path:
    pixels = Image.fromarray(_stored(quadrants(), 6))
    settings = {"save_all": True, "append_images": [pixels], "exif": exif(6), "quality": 95}
    return of_bytes(folder, "phone_turned.jpg", encoded(pixels, "MPO", **settings))


def turned_with_nonsense_beside(folder: Path) -> Path:
    """A resolution that is text: it can be read but not written, and the orientation before it is sound."""
    said = exif(6, more=struct.pack("<HHI4s", 0x011A, 2, 4, b"abc\0"))
    return of(folder, "nonsense.jpg", _stored(quadrants(), 6), exif=said, quality=95)


def broken_exif(folder: Path) -> Path:
    """The block ends in the middle of its first entry."""
    return of(folder, "broken_exif.jpg", quadrants(), exif=exif(6)[:18], quality=95)


def exif_of_noise(folder: Path) -> Path:
    said = b"Exif\0\0" + np.random.default_rng(3).bytes(200)
    return of(folder, "noisy_exif.jpg", quadrants(), exif=said, quality=95)


def an_orientation_there_is_not(folder: Path) -> Path:
    return of(folder, "turned_9.jpg", quadrants(), exif=exif(9), quality=95)


# Odd: names


def name_that_is_not_utf_8(folder: Path) -> Path:
    return good(Path(os.fsdecode(os.fsencode(folder))), os.fsdecode(b"caf\xe9.jpg"))


def name_of_another_format(folder: Path) -> Path:
    """A PNG that somebody called .jpg."""
    return of_bytes(folder, "really_png.jpg", encoded(Image.fromarray(quadrants()), "PNG"))


ODD: dict[str, Maker] = {
    "greyscale": greyscale,
    "greyscale JPEG": greyscale_jpeg,
    "one bit": one_bit,
    "palette": palette,
    "palette with transparency": palette_with_transparency,
    "palette with half transparency": palette_with_half_transparency,
    "grey with opacity": grey_with_opacity,
    "colour with opacity": colour_with_opacity,
    "colour that stands for transparent": colour_that_stands_for_transparent,
    "grey that stands for transparent": grey_that_stands_for_transparent,
    "CMYK": cmyk,
    "sixteen-bit PNG": deep_grey,
    "sixteen-bit mid grey": deep_mid_grey,
    "sixteen-bit TIFF": deep_grey_tiff,
    "32-bit whole numbers": whole_numbers,
    "32-bit fractions": fractions,
    "32-bit fractions up to 255": fractions_up_to_255,
    "32-bit fractions with holes": fractions_with_holes,
    "animated GIF": partial(animation, name="animation.gif"),
    "animated PNG": partial(animation, name="animation.png"),
    "animated WebP": partial(animation, name="animation.webp", lossless=True),
    "several pages of TIFF": partial(animation, name="pages.tif"),
    "MPO": multi_picture,
    "one pixel": one_pixel,
    "one row": one_row,
    "one column": one_column,
    "twelve megapixels": twelve_megapixels,
    "progressive JPEG": lambda folder: of(folder, "progressive.jpg", quadrants(), progressive=True, quality=95),
    "BMP": lambda folder: of(folder, "windows.bmp", quadrants()),
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
    "orientation 6 with nonsense beside": turned_with_nonsense_beside,
    "broken EXIF": broken_exif,
    "EXIF of noise": exif_of_noise,
    "an orientation there is not": an_orientation_there_is_not,
    "a name that is not UTF-8": name_that_is_not_utf_8,
    "the name of another format": name_of_another_format,
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
    return png_chunks(width, height, [*more, (b"IDAT", pixels)], colour, bits, interlaced)


def png_chunks(
    width: int,
    height: int,
    chunks: Iterable[tuple[bytes, bytes]],
    colour: int = GREY,
    bits: int = 8,
    interlaced: bool = False,
) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced)
    whole = [b"\x89PNG\r\n\x1a\n"]
    for kind, data in [(b"IHDR", header), *chunks, (b"IEND", b"")]:
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


def bomb(folder: Path) -> Path:
    """110 kB that unpack, without a fault, to a black square of 30,000 pixels a side."""
    return of_bytes(folder, "bomb.png", _black_square(30_000))


@cache
def _black_square(side: int) -> bytes:
    packer = zlib.compressobj(9)
    row = bytes(1 + (side + 7) // 8)
    pixels = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    return png_chunks(side, side, [(b"IDAT", pixels)], bits=1)


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
    return of_bytes(folder, "text.png", png_chunks(1, 1, [(b"zTXt", b"Comment\0\0" + comment), (b"IDAT", pixel)]))


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
