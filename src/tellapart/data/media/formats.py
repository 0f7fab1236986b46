"""Which files are pictures, and how each kind is opened: by the content of the file, not by its name."""

from __future__ import annotations

import ctypes
import io
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from PIL import Image, UnidentifiedImageError, _imaging

from capscore.system import package as package_folder
from tellapart.errors import BadPhoto

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")  # "JPEG" covers MPO, which many phones write under .jpg
INSTALL_HEIC = "pip install 'tellapart[heic]'"


def _suffixes(names: str) -> frozenset[str]:
    return frozenset(f".{name}" for name in names.split())


_OPENED = _suffixes("jpg jpeg jpe jfif mpo png apng webp gif bmp dib tif tiff avif heic heics heif heifs hif")
RAW_SUFFIXES = _suffixes(
    "dng cr2 nef nrw arw sr2 srf pef srw 3fr fff erf dcr kdc mef mos iiq rwl"  # built like a TIFF
    " cr3 crw raf orf rw2 raw x3f mrw gpr"  # built in some other way
)
_NOT_OPENED = _suffixes("jxl jp2 j2k jpf jpx jxr hdp psd psb xcf tga exr hdr ppm pgm pbm pnm pcx")
PHOTO_SUFFIXES = _OPENED | RAW_SUFFIXES | _NOT_OPENED  # what a folder is searched for: what cannot be opened is named

_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}


def open_image(data: bytes, file: object) -> tuple[Image.Image, int | None]:
    """A picture in a file's bytes, and its EXIF orientation where the picture itself does not say it.

    Its header has been read, its pixels have not.  Raises BadPhoto for what is none, and nearly anything for what is
    damaged.
    """
    suffix = Path(str(file)).suffix.lower()
    if is_raw(data) or (suffix in RAW_SUFFIXES and data[:4] in (b"II*\0", b"MM\0*")):
        jpeg, orientation = _preview(data)
        if not jpeg:
            raise BadPhoto(file, "is a RAW photo without a JPEG inside, which is what we read of one")
        return Image.open(io.BytesIO(jpeg), formats=("JPEG",)), orientation
    if data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS and b"avif" not in data[8:64]:
        if package_folder("pi_heif") is None:
            raise BadPhoto(file, f"is a HEIC photo; `{INSTALL_HEIC}` brings what opens it")
        from pi_heif import HeifImageFile

        return HeifImageFile(io.BytesIO(data)), None  # not registered with Pillow, which others use too
    if (size := _png_rows(data)[0]) and size > _RATIO * sum(map(len, _packed(data))):  # however well they are packed
        raise ValueError("it has too few pixels")
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS), None
    except UnidentifiedImageError:
        why = f"is not a photo that we can open ({', '.join(FORMATS)})"
        if suffix in RAW_SUFFIXES:
            why = f"is a RAW photo that we cannot open ({suffix[1:].upper()}; DNG, CR2, NEF and ARW can be opened)"
        raise BadPhoto(file, why) from None


def size_of_webp(data: bytes) -> tuple[int, int] | None:
    """Width and height of a WebP, from its header; None for other files."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        sides = int.from_bytes(data[21:25], "little")
        return 1 + (sides & 0x3FFF), 1 + (sides >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF


def coefficients(image: Image.Image) -> int:
    """Bytes that the decoder of a progressive JPEG holds of the whole picture, however small it is to become."""
    layers = getattr(image, "layer", [])  # (name, sampled horizontally, sampled vertically, table)
    if not image.info.get("progressive") or not layers:
        return 0
    full = max(across for _, across, _, _ in layers) * max(down for _, _, down, _ in layers)
    sampled = sum(across * down for _, across, down, _ in layers)
    return int(2 * image.width * image.height * sampled // max(full, 1))


def load(image: Image.Image, data: bytes) -> None:
    """Decode the pixels, of an animation those of the first frame; every fault is raised.

    data  the file that it was opened from
    """
    if image.format != "TIFF":
        image.load()
        last = (0, image.height - 1, image.width, image.height)  # the row that Pillow leaves black where it is lacking
        if image.format == "PNG" and (_png_rows(data)[1] or image.crop(last).getbbox(alpha_only=False) is None):
            _refuse_short(data)
        return
    # libtiff tells us what is wrong, in place of printing it: it can be a million lines for one photo.
    with suppress(AttributeError, OSError):  # a Pillow whose libtiff cannot be reached prints what it likes
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(_HANDLER)
    _COMPLAINTS.latest = ""
    image.load()
    if _COMPLAINTS.latest:  # libtiff continues after most faults
        raise ValueError(_COMPLAINTS.latest)


_COMPLAINTS = threading.local()  # its `latest`: libtiff's message of the photo that this thread decodes


def _on_message(module: bytes | None, text: bytes | None, _values: int | None) -> None:
    _COMPLAINTS.latest = f"libtiff: {(module or text or b'error').decode('ascii', 'replace')}"


_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)(_on_message)


# Whether a PNG has all its pixels: Pillow leaves those black that the file does not have, and finds nothing wrong.

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_RATIO = 1032  # a packed byte holds at most so many (RFC 1951: 258 bytes in two bits)
_PIECE = 1 << 16  # packed bytes that are taken at once


def _png_rows(data: bytes) -> tuple[int, bool]:
    """Bytes of all rows of a PNG, each with the byte before it that says how it is filtered, and whether they are
    interlaced; no bytes of other files."""
    if not data.startswith(_SIGNATURE) or data[12:16] != b"IHDR" or len(data) < 29:
        return 0, False
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    bits = depth * _CHANNELS.get(colour, 1)  # of a pixel
    size = 0
    for left, top, right, down in _ADAM7 if interlaced else ((0, 0, 1, 1),):
        wide, high = -((left - width) // right), -((top - height) // down)
        size += high * (1 + (wide * bits + 7) // 8) if wide > 0 and high > 0 else 0
    return size, bool(interlaced)


def _refuse_short(data: bytes) -> None:
    """Refuses a PNG with fewer bytes than its rows take.  Costs as much as half of reading it."""
    unpacker, missing = zlib.decompressobj(), _png_rows(data)[0]
    try:
        for chunk in _packed(data):
            for start in range(0, len(chunk), _PIECE):
                left: bytes | memoryview = chunk[start : start + _PIECE]
                while len(left) and missing > 0:
                    missing -= len(unpacker.decompress(left, _RATIO * _PIECE // 64))
                    left = unpacker.unconsumed_tail
    except zlib.error:
        pass
    if missing > 0:
        raise ValueError("it has too few pixels")


def _packed(data: bytes) -> Iterator[memoryview]:
    """The contents of the IDAT chunks."""
    view, place = memoryview(data), len(_SIGNATURE)
    while place + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"IDAT":
            yield view[place + 8 : place + 8 + size]
        elif kind == b"IEND":
            return
        place += 12 + size


# The JPEG inside a RAW photo: most cameras store a finished picture beside the sensor's data.
#
# Of the kinds of RAW that are built like a TIFF (DNG, CR2, NEF, ARW and others).  A TIFF is a chain of directories,
# each of which may name further ones; an entry is (tag, type, count, value or where the values are).  Every number in
# the file may lie: nothing outside the file is touched, no directory is read twice, and only so many are read.

_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_SIZES = {1: 1, 3: 2, 4: 4, 13: 4}  # of a value, by type: bytes and whole numbers, which are all that matter here
_CODES = {1: "B", 3: "H", 4: "I", 13: "I"}
_MOST_DIRECTORIES = 64
_MOST_VALUES = 64

# Tags
_COMPRESSION, _PHOTOMETRIC, _STRIPS, _ORIENTATION, _STRIP_SIZES = 0x0103, 0x0106, 0x0111, 0x0112, 0x0117
_DIRECTORIES, _JPEG, _JPEG_SIZE, _DNG_VERSION = 0x014A, 0x0201, 0x0202, 0xC612
_SENSOR = {32803, 34892}  # photometric interpretations: a colour for each pixel of the sensor; the same, made linear
_PACKED_AS_JPEG = {6, 7, 99}

# Markers of a JPEG that begin a frame which a common decoder can read; not those of lossless JPEG, as sensors' data is
_FRAMES = {0xC0, 0xC1, 0xC2}
_NO_FRAMES = {0xC4, 0xC8, 0xCC}  # tables, in the same range

Directory = dict[int, list[int]]


def is_raw(data: bytes) -> bool:
    """True where the file says itself that it is one: as a TIFF, only its thumbnail could be read."""
    if data[:4] not in _ORDERS:
        return False
    if data[8:10] == b"CR":  # Canon
        return True
    directories = _directories(data)
    return any(_DNG_VERSION in tags or _SENSOR & set(tags.get(_PHOTOMETRIC, ())) for tags in directories)


def _preview(data: bytes) -> tuple[bytes, int]:
    """The largest JPEG in a RAW photo, empty where there is none, and the EXIF orientation of the whole."""
    best, most, orientation = (0, 0), 0, 1
    for number, tags in enumerate(_directories(data)):
        if number == 0:
            orientation = next(iter(tags.get(_ORIENTATION, ())), 1)
        for place, size in _places(tags):
            end = min(place + size, len(data))
            if (pixels := _pixels(data, place, end)) > most:
                best, most = (place, end), pixels
    return data[slice(*best)], orientation


def _places(tags: Directory) -> Iterator[tuple[int, int]]:
    """The start and the length of each JPEG that a directory may have."""
    if _JPEG in tags and _JPEG_SIZE in tags:
        yield tags[_JPEG][0], tags[_JPEG_SIZE][0]
    if _PACKED_AS_JPEG & set(tags.get(_COMPRESSION, ())):
        strips, sizes = tags.get(_STRIPS, []), tags.get(_STRIP_SIZES, [])
        if len(strips) == len(sizes) == 1:
            yield strips[0], sizes[0]


def _directories(data: bytes) -> Iterator[Directory]:
    order = _ORDERS.get(data[:4])
    if order is None or len(data) < 8:
        return
    waiting, visited = [_number(data, 4, order)], set[int]()
    while waiting and len(visited) < _MOST_DIRECTORIES:
        place = waiting.pop(0)
        if place in visited or not 8 <= place <= len(data) - 2:
            continue
        visited.add(place)
        (count,) = struct.unpack_from(f"{order}H", data, place)
        end = place + 2 + 12 * count
        if end > len(data):
            continue
        tags: Directory = {}
        for entry in range(place + 2, end, 12):
            tag, values = _entry(data, entry, order)
            if values:
                tags.setdefault(tag, values)
        yield tags
        waiting += tags.get(_DIRECTORIES, [])
        if end + 4 <= len(data):
            waiting.append(_number(data, end, order))


def _entry(data: bytes, place: int, order: str) -> tuple[int, list[int]]:
    """The tag, and its values if they are whole numbers that lie in the file and are not too many."""
    tag, kind, count = struct.unpack_from(f"{order}HHI", data, place)
    if kind not in _SIZES or not 0 < count <= _MOST_VALUES:
        return tag, []
    size = _SIZES[kind] * count
    start = place + 8 if size <= 4 else _number(data, place + 8, order)
    if start + size > len(data):
        return tag, []
    return tag, list(struct.unpack_from(f"{order}{count}{_CODES[kind]}", data, start))


def _number(data: bytes, place: int, order: str) -> int:
    return int(struct.unpack_from(f"{order}I", data, place)[0])


def _pixels(data: bytes, place: int, end: int) -> int:
    """The number of pixels that the JPEG there says it has; 0 where there is none that can be decoded."""
    if data[place : min(place + 3, end)] != b"\xff\xd8\xff":
        return 0
    place += 2
    while place + 9 <= end and data[place] == 0xFF:
        marker, size = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, place + 5)
            return int(width) * int(height)
        if marker == 0xFF:  # padding
            place += 1
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
            return 0
        else:
            place += 2 + max(size, 2)
    return 0
