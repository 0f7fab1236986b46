"""From a file that a user hands over to pixels: one function, so that every command treats a photo alike.

Any file may be hostile or broken.  What a file is decides how it is opened (`formats`), and everything that can go
wrong comes out as `BadPhoto` with a reason that a person understands.

What a photo may cost is bounded for any size and colours: files of MAX_BYTES and MEMORY for decoding them are
all that the threads of a process hold together.  A photo that would need more is refused before it is decoded.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import logging
import math
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile

from tellapart.data.examples import file_of, segment_of
from tellapart.data.media import formats
from tellapart.data.media.formats import FORMATS as FORMATS
from tellapart.data.media.formats import PHOTO_SUFFIXES as PHOTO_SUFFIXES
from tellapart.errors import BadPhoto

MAX_PIXELS = 178_956_970  # where Pillow itself warns of a decompression bomb; larger than any camera's photo
MAX_BYTES = 1 << 29  # of a file, and of all files that are read at once
MEMORY = 1 << 30  # bytes for decoding a photo, and for all that are decoded at once
KEPT_PIXELS = 1 << 26  # a photo with more is averaged down to so many before anything else is done with it
_LARGE = 1 << 24  # bytes; what a photo took that needed more is returned to the system at once
_LONGEST = 1 << 15  # pixels of a side; a longer one is averaged down before the photo is resized
_LARGEST = 2048  # pixels a side that an encoder may ask for
Source = str | os.PathLike[str] | Image.Image


class Memory:
    """A number of bytes that all who hold some of it together never exceed.

    A thread that holds some must not ask for more, or two could wait for each other.
    """

    def __init__(self, total: int):
        self.total = total
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        if size > self.total:
            raise ValueError(f"{size} bytes of {self.total} can never be had")
        with self._changed:
            self._changed.wait_for(lambda: self._used + size <= self.total)
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()


_files = Memory(MAX_BYTES)
_decoding = Memory(MEMORY)

# What Pillow prints of its own accord, with a line of its source: large photos, for which we have a limit of our own,
# and broken EXIF data, which does no harm.  What matters is raised.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").addHandler(logging.NullHandler())

_TURNS = {  # EXIF orientation: what brings the photo upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Ready(Protocol):
    """A photo as a network takes it, in any form."""

    @property
    def sha256(self) -> str:
        """Of the file's bytes."""


@dataclass(frozen=True)
class Photo:
    pixels: NDArray[np.uint8]  # (size, size, 3), or in a network's own shape
    sha256: str  # of the file's bytes


@dataclass(frozen=True)
class Fit:
    """The way in which a photo becomes a square; each encoder has its own."""

    crop: bool = False  # to its middle, which loses the ends of the long side; or else the whole of it is squeezed
    resample: Image.Resampling = Image.Resampling.BICUBIC
    exact: bool = False  # from all pixels of a JPEG, not from a fraction that is quicker to decode
    view: int = 0  # which of its views (`view_of`) is squeezed; 0: the whole photo


SQUEEZE = Fit()
LEAST_SIDE = 0.7  # of each side that a view shows: with less, much of what the references name is not in it


class View(NamedTuple):
    """A part of a photo, as shares of its sides."""

    left: float
    top: float
    right: float
    bottom: float
    mirrored: bool


def view_of(sha256: str, number: int) -> View:
    """A part of the photo with these bytes, half of the time mirrored: always the same one.

    Views reduce overfitting (`data.views`): a captioner that sees the same photos again and again knows them by heart.
    """
    draw = np.random.default_rng([int(sha256, 16), number])
    width, height = draw.uniform(LEAST_SIDE, 1, 2)
    left, top = draw.uniform(0, 1 - width), draw.uniform(0, 1 - height)
    return View(left, top, left + width, top + height, bool(draw.random() < 0.5))


def name_of(source: Source) -> object:
    """A photo in messages."""
    return (getattr(source, "filename", "") or "image") if isinstance(source, Image.Image) else source


def read(source: Source, size: int, fit: Fit = SQUEEZE) -> Photo:
    """A photo upright, in RGB, as a square of `size` pixels a side: by default, nothing is cropped.

    source  a file, or a picture that the caller has opened, which is read as its file unless it has been changed
    """
    with _opened(source, 0 if fit.exact else size) as (image, sha256), closing(image):  # while its memory is ours
        return fitted(image, sha256, size, fit)


def upright(source: Source) -> tuple[Image.Image, str]:
    """A photo in its own size, and the hash that `read` has of it."""
    with _opened(source) as opened:
        return opened


def read_rgb(source: Source, most: int) -> NDArray[np.uint8]:
    """A photo in its own proportions, averaged down to at most `most` pixels.  (H, W, 3)"""
    with _opened(source) as (image, _):
        return np.asarray(image.reduce(shrinking(image.size, most)))


@contextmanager
def _opened(source: Source, at_least: int = 0) -> Iterator[tuple[Image.Image, str]]:
    """A photo upright and in RGB, and its hash; the memory for it is set aside as long as it is used."""
    with ExitStack() as held:
        name = name_of(source)
        if not isinstance(source, Image.Image):
            handle, length = held.enter_context(open_file(source))
            held.enter_context(_files.reserved(length))
            data = _read(handle, length, source)
        else:
            behind = _file_behind(source)
            if behind is None:
                held.enter_context(_refusing(name))
                photo = _to_photo(source.copy())  # the caller's stays as it is
                yield photo, hashlib.sha256(photo.tobytes()).hexdigest()
                return
            data = behind
        sha256 = hashlib.sha256(data).hexdigest()
        yield held.enter_context(_decoded(data, name, at_least)), sha256


def fitted(image: Image.Image, sha256: str, size: int, fit: Fit = SQUEEZE) -> Photo:
    """A picture in RGB, upright, as the square that `read` makes of a photo; sha256: of the file that it is from."""
    box: tuple[float, float, float, float] = (0, 0, image.width, image.height)
    if fit.view:
        view = view_of(sha256, fit.view)
        box = (view.left * image.width, view.top * image.height, view.right * image.width, view.bottom * image.height)
    elif fit.crop:
        # The short side to `size`, then the middle cut out, as CLIP's authors do; but in one step, because a photo of
        # one pixel by a million would not fit into memory in between.
        (left, right), (top, bottom) = (_middle(side, size * side // min(image.size), size) for side in image.size)
        box = (left, top, right, bottom)
    pixels = _resized(image, size, fit.resample, box)
    return Photo(pixels[:, ::-1].copy() if fit.view and view.mirrored else pixels, sha256)


def _resized(
    image: Image.Image, size: int, resample: Image.Resampling, box: tuple[float, float, float, float]
) -> NDArray[np.uint8]:
    """Part of a photo as a square.  (size, size, 3)"""
    if max(image.size) > _LONGEST:  # what Pillow computes beforehand takes 32 bytes for each pixel of a side
        across, down = (math.ceil(side / _LONGEST) for side in image.size)
        image = image.reduce((across, down))
        box = (box[0] / across, box[1] / down, min(box[2] / across, image.width), min(box[3] / down, image.height))
    return np.array(image.resize((size, size), resample, box=box))


def _middle(side: int, resized: int, size: int) -> tuple[float, float]:
    """The part of a side that is the middle `size` pixels once it is `resized` pixels long."""
    first = (resized - size) // 2
    return first * side / resized, min((first + size) * side / resized, side)


def sha256(file: str | os.PathLike[str]) -> str:
    """The hash that an item is known by: of its bytes, not its name; of a segment of a clip also by its times."""
    if (segment := segment_of(file)) is not None:
        with open_file(segment.file, most=None) as (handle, _):
            status = os.fstat(handle.fileno())
        whole = _digest(segment.file, (status.st_size, status.st_mtime_ns, status.st_ino))
        return hashlib.sha256(f"{whole} {segment.start} {segment.end}".encode()).hexdigest()
    with open_file(file, most=None) as (handle, _):
        return hashlib.file_digest(handle, "sha256").hexdigest()


@lru_cache(maxsize=4)
def _digest(file: str, stamp: tuple[int, ...]) -> str:
    """Of a file that many items are segments of.  stamp: changes with it"""
    return sha256(file)


def decoding_memory(size: int) -> AbstractContextManager[None]:
    """Set aside so many bytes of those that decoders may use together, as long as they are used."""
    return _decoding.reserved(size)


def read_bytes(file: str | os.PathLike[str]) -> bytes:
    with open_file(file) as (handle, length):
        return _read(handle, length, file)


@contextmanager
def open_file(
    file: str | os.PathLike[str], *, most: int | None = MAX_BYTES, kind: str = "photo"
) -> Iterator[tuple[io.BufferedReader, int]]:
    """A regular file of a size that can be read, and that size.

    most  bytes of a file that is read as a whole; None: of any size
    """
    try:
        path = file_of(file)
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise BadPhoto(file, f"is a folder, not a {kind}")
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device could take forever
            raise BadPhoto(file, "is not a regular file")
        if status.st_size == 0:
            raise BadPhoto(file, "the file is empty")
        if most is not None and status.st_size > most:
            raise BadPhoto(file, f"the file has {status.st_size >> 20} MB; {most >> 20} is the most we read")
        with path.open("rb") as handle:
            yield handle, status.st_size
    except FileNotFoundError:
        why = "is a link to a file that does not exist" if file_of(file).is_symlink() else "there is no such file"
        raise BadPhoto(file, why) from None
    except ValueError as error:  # a NUL byte in the name
        raise BadPhoto(file, f"is no file name ({error})") from None
    except OSError as error:
        raise BadPhoto(file, f"cannot be read ({error.strerror})") from None


def _read(handle: io.BufferedReader, length: int, file: object) -> bytes:
    """As many bytes as the file had when it was opened."""
    try:
        return handle.read(length)
    except MemoryError:
        raise BadPhoto(file, "does not fit into memory") from None


def decode(data: bytes, file: object, *, at_least: int = 0) -> Image.Image:
    """The photo upright and in RGB.  A JPEG much larger than `at_least` is decoded at a fraction of its size."""
    with _decoded(data, file, at_least) as photo:
        return photo


@contextmanager
def _decoded(data: bytes, file: object, at_least: int) -> Iterator[Image.Image]:
    """The same, with the memory for it set aside as long as it is used."""
    with _refusing(file), ExitStack() as held:
        size = formats.size_of_webp(data)  # whose decoder takes its memory as soon as the file is opened
        if size is not None:
            needed = _affordable(size, "RGBA", "WEBP", file)
            held.enter_context(_decoding.reserved(needed))
        image, orientation = formats.open_image(data, file)
        coefficients = formats.coefficients(image)  # before it is made smaller: they are of the whole picture
        if image.format in ("JPEG", "MPO") and at_least:
            image.draft(image.mode, (at_least, at_least))  # never below what is asked for
        if size is None:
            needed = _affordable(image.size, image.mode, str(image.format), file, coefficients)
            held.enter_context(_decoding.reserved(needed))
        formats.load(image, data)
        yield _to_photo(image, orientation)
        del image  # and what its decoder keeps
        if needed > _LARGE:  # glibc would keep up to 64 MB for each thread that has used it
            with suppress(AttributeError, OSError):  # other C libraries have no such call
                ctypes.CDLL(None).malloc_trim(0)


_DECODING = {"JPEG": 4, "MPO": 4, "PNG": 4, "WEBP": 20, "AVIF": 20, "HEIF": 20}  # bytes of a pixel, at most


def _affordable(size: tuple[int, int], mode: str, format: str, file: object, more: int = 0) -> int:
    """The most bytes that are held at once: by the decoder, on the way to RGB, when the photo is turned, or resized."""
    if math.prod(size) > MAX_PIXELS:
        raise Image.DecompressionBombError
    factor = shrinking(size, KEPT_PIXELS)
    width, height = shrunk(size, factor)
    photo = max(_bytes_held(sides, _RGB_BYTES) for sides in ((width, height), (height, width)))
    decoded = _bytes_held(size, _DECODING.get(format, 3 * _BYTES.get(mode, 4)))
    converted = _bytes_held(size, _BYTES.get(mode, 4)) + (0 if (mode, factor) == ("RGB", 1) else photo)
    resized = photo + _RGB_BYTES * _LARGEST * min(max(width, height), _LONGEST)  # between its two passes
    needed = max(decoded, converted, 2 * photo, resized) + more
    if needed > MEMORY:
        raise BadPhoto(file, f"would take {needed >> 20} MB of memory to decode; {MEMORY >> 20} is the most")
    return needed


def _to_photo(image: Image.Image, orientation: int | None = None) -> Image.Image:
    """A picture whose pixels have been decoded, in RGB and upright.  Its own are gone then.

    orientation  EXIF, where the picture itself does not say it

    Not turned by `ImageOps.exif_transpose`: it rewrites the EXIF data, and does not rotate the photo when some other
    entry cannot be written.  The picture has been loaded, for Pillow itself turns a TIFF while it loads.
    """
    turn = None
    with suppress(Exception):  # broken EXIF data says nothing about the pixels
        turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, orientation))
    photo = _to_rgb(image, KEPT_PIXELS)
    if photo is not image:
        image.close()
    photo = photo if turn is None else photo.transpose(turn)
    photo.info = {}  # nothing after this sees the EXIF data, so the photo is never turned twice
    return photo


@contextmanager
def _refusing(file: object) -> Iterator[None]:
    """Every error of decoders, as BadPhoto."""
    try:
        yield
    except BadPhoto:
        raise
    except Image.DecompressionBombError:
        raise BadPhoto(file, f"has more than {MAX_PIXELS // 10**6} megapixels; such a file may be an attack") from None
    except MemoryError:
        raise BadPhoto(file, "does not fit into memory") from None
    except Exception as error:  # decoders raise nearly anything on a broken file
        raise BadPhoto(file, f"is damaged ({str(error) or type(error).__name__})") from None


def _file_behind(image: Image.Image) -> bytes | None:
    """The file that a picture was opened from, if that is known and the picture still shows what is in it."""
    if not isinstance(image, ImageFile.ImageFile):  # made from another picture
        return None
    try:
        data = _bytes_behind(image)
        with formats.open_image(data, "")[0] as again:
            state = (again.size, again.mode, again.format, again.tell())
            if state != (image.size, image.mode, image.format, image.tell()):
                return None
            if image.tile:  # its pixels have not been decoded, so they cannot have been changed
                return data
            same = again.tobytes() == image.tobytes() and again.getpalette() == image.getpalette()
            return data if same else None
    except Exception:  # any fault of the file: the picture is what was handed over
        return None


def _bytes_behind(image: ImageFile.ImageFile) -> bytes:
    if image.fp is None or image.fp.closed:
        return read_bytes(os.fsdecode(image.filename))
    place = image.fp.tell()
    try:
        image.fp.seek(0)
        return image.fp.read()
    finally:
        image.fp.seek(place)


# Memory, and any mode of a picture to RGB block by block: what that takes does not grow with the picture

_RGB_BYTES = 4  # of a pixel, as Pillow keeps it
_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}  # of a pixel; else 4
_BLOCK = 1 << 20  # pixels that are converted together

Range = tuple[float, float]
Box = tuple[int, int, int, int]


def _bytes_held(size: tuple[int, int], per_pixel: int) -> int:
    """By a picture in memory: its pixels, and where each row begins, which counts when rows are short."""
    return size[1] * (size[0] * per_pixel + 8)


def shrinking(size: tuple[int, int], most: int) -> int:
    """By which whole number both sides are divided so that about `most` pixels are left; 1 for most photos."""
    factor = math.isqrt(max(size[0] * size[1] - 1, 0) // most) + 1
    while math.prod(shrunk(size, factor)) > most:  # a side of a few pixels hardly gets shorter
        factor += 1
    return factor


def shrunk(size: tuple[int, int], factor: int) -> tuple[int, int]:
    return math.ceil(size[0] / factor), math.ceil(size[1] / factor)


def _to_rgb(image: Image.Image, most: int) -> Image.Image:
    """The picture in RGB, on white where it is transparent; one with more than `most` pixels is averaged down."""
    factor = shrinking(image.size, most)
    if image.mode == "RGB" and "transparency" not in image.info:
        return image if factor == 1 else image.reduce(factor)
    values = _range(image) if image.mode in ("I", "F") else (0.0, 255.0)
    if image.width * image.height <= _BLOCK and factor == 1:
        return _block_to_rgb(image, values)
    photo = Image.new("RGB", shrunk(image.size, factor))
    for box in _blocks(image.size, factor):
        block = _block_to_rgb(image.crop(box), values)
        photo.paste(block if factor == 1 else block.reduce(factor), (box[0] // factor, box[1] // factor))
    return photo


def _blocks(size: tuple[int, int], factor: int) -> Iterator[Box]:
    """Of about _BLOCK pixels each; all but the last of a row and of a column have sides that `factor` divides."""
    width, height = size
    wide = max(min(width, 4096) // factor, 1) * factor
    high = max(_BLOCK // wide // factor, 1) * factor
    for top in range(0, height, high):
        for left in range(0, width, wide):
            yield left, top, min(left + wide, width), min(top + high, height)


def _block_to_rgb(image: Image.Image, values: Range) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _to_eight_bits(image, values)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, "white")  # what a viewer shows behind transparent parts
        return Image.alpha_composite(paper, image).convert("RGB")
    return image.convert("RGB")


def _to_eight_bits(image: Image.Image, values: Range) -> Image.Image:
    """Deep greyscale.  Pillow's own conversion clips at 255 and would make such a photo white."""
    pixels = np.asarray(image).astype(np.float32)
    if image.mode.startswith("I;16"):
        pixels /= 257  # 65535 -> 255
    else:
        low, high = values
        pixels = np.nan_to_num(pixels, nan=low).clip(low, high)
        if not (low >= 0 and 1 < high <= 255):  # no range is written in the file: use the photo's own
            pixels = (pixels - low) * (255 / max(high - low, 1e-12))
    return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8)).convert("RGB")


def _range(image: Image.Image) -> Range:
    """The least and the largest number among the pixels, but for those that are no numbers."""
    low, high = math.inf, -math.inf
    for box in _blocks(image.size, 1):
        pixels: NDArray[np.float32] = np.asarray(image.crop(box)).astype(np.float32)
        finite = pixels[np.isfinite(pixels)].clip(-1e38, 1e38)  # so that the range is finite too
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return (low, high) if low <= high else (0.0, 0.0)
