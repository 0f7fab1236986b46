"""Which files are pictures, and how each kind is opened: by the content of the file, not by its name."""

from __future__ import annotations

import ctypes
import io
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError, _imaging

from capscore.paths import package as package_folder
from tellapart.data.media import png, raw
from tellapart.data.media.rgb import bytes_per_pixel
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
_DECODING = {"JPEG": 4, "MPO": 4, "PNG": 4, "WEBP": 20, "AVIF": 20, "HEIF": 20}  # bytes of a pixel, at most


class Opened(NamedTuple):
    image: Image.Image  # its header has been read and its pixels have not
    orientation: int | None = None  # EXIF, where the picture itself does not say it


def open_image(data: bytes, file: object) -> Opened:
    """A picture in a file's bytes.  Raises BadPhoto for what is none, and nearly anything for what is damaged."""
    suffix = Path(str(file)).suffix.lower()
    if raw.is_raw(data) or (suffix in RAW_SUFFIXES and data[:4] in (b"II*\0", b"MM\0*")):
        found = raw.preview(data)
        if found is None:
            raise BadPhoto(file, "is a RAW photo without a JPEG inside, which is what we read of one")
        return Opened(Image.open(io.BytesIO(found.jpeg), formats=("JPEG",)), found.orientation)
    if data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS and b"avif" not in data[8:64]:
        return Opened(_open_heif(data, file))
    if png.cannot_be_whole(data):
        raise ValueError("it has too few pixels")
    try:
        return Opened(Image.open(io.BytesIO(data), formats=FORMATS))
    except UnidentifiedImageError:
        raise BadPhoto(file, _why_not(suffix)) from None


def _why_not(suffix: str) -> str:
    if suffix in RAW_SUFFIXES:
        return f"is a RAW photo that we cannot open ({suffix[1:].upper()}; DNG, CR2, NEF and ARW can be opened)"
    return f"is not a photo that we can open ({', '.join(FORMATS)})"


def _open_heif(data: bytes, file: object) -> Image.Image:
    if package_folder("pi_heif") is None:
        raise BadPhoto(file, f"is a HEIC photo; `{INSTALL_HEIC}` brings what opens it")
    from pi_heif import HeifImageFile

    image: Image.Image = HeifImageFile(io.BytesIO(data))  # not registered with Pillow, which others use too
    return image


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


def decoder_bytes(mode: str, format: str) -> int:
    """What is held of a pixel while a picture is decoded."""
    return _DECODING.get(format, 3 * bytes_per_pixel(mode))


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
        if image.format == "PNG" and _may_be_short(image, data) and not png.is_whole(data):
            raise ValueError("it has too few pixels")
        return
    _handle_libtiff_messages()
    _COMPLAINTS.latest = ""
    image.load()
    if _COMPLAINTS.latest:  # libtiff continues after most faults
        raise ValueError(_COMPLAINTS.latest)


def _may_be_short(image: Image.Image, data: bytes) -> bool:
    """Whether the last row is as Pillow leaves rows that are not in the file."""
    last = image.crop((0, image.height - 1, image.width, image.height))
    return png.is_interlaced(data) or last.getbbox(alpha_only=False) is None


class _Complaints(threading.local):
    """What libtiff has to say of the photo that this thread decodes."""

    latest = ""


_COMPLAINTS = _Complaints()


def _on_message(module: bytes | None, text: bytes | None, _values: int | None) -> None:
    _COMPLAINTS.latest = f"libtiff: {(module or text or b'error').decode('ascii', 'replace')}"


_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)(_on_message)


def _handle_libtiff_messages() -> None:
    """Have libtiff tell us what is wrong, in place of printing it: it can be a million lines for one photo."""
    with suppress(AttributeError, OSError):  # a Pillow whose libtiff cannot be reached prints what it likes
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(_HANDLER)
