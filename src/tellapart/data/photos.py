"""From a file that a user hands over to pixels: one function, so that every command treats a photo alike.

Any file may be hostile or broken.  Only the formats named here are tried, whatever the file's name says, and everything
that can go wrong comes out as `BadPhoto` with a reason that a person understands.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from tellapart.data.views import view_of
from tellapart.errors import BadPhoto

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # "JPEG" covers MPO, which many phones write under .jpg
PHOTO_SUFFIXES = frozenset({".jpg", ".jpeg", ".mpo", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
MAX_PIXELS = 178_956_970  # where Pillow itself speaks of a decompression bomb; larger than any camera's photo
MAX_BYTES = 1 << 29

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


@dataclass(frozen=True)
class Photo:
    pixels: NDArray[np.uint8]  # (size, size, 3)
    sha256: str  # of the file's bytes


@dataclass(frozen=True)
class Fit:
    """How a photo becomes a square; each encoder has its own way."""

    crop: bool = False  # to its middle, which loses the ends of the long side; or else the whole of it is squeezed
    resample: Image.Resampling = Image.Resampling.BICUBIC
    exact: bool = False  # from all pixels of a JPEG, not from a fraction that is quicker to decode
    view: int = 0  # which of its views (`views`) is squeezed; 0: the whole photo


SQUEEZE = Fit()


def read(file: str | os.PathLike[str], size: int, fit: Fit = SQUEEZE) -> Photo:
    """The photo upright, in RGB, as a square of `size` pixels a side: if not told otherwise, nothing is cropped."""
    data = read_bytes(file)
    image, sha256 = decode(data, file, at_least=0 if fit.exact else size), hashlib.sha256(data).hexdigest()
    return Photo(_square(image, size, fit, sha256), sha256)


def from_image(image: Image.Image, size: int, fit: Fit = SQUEEZE) -> Photo:
    """The same for a picture that the caller has opened."""
    image = _to_rgb(_upright(image))
    sha256 = hashlib.sha256(image.tobytes()).hexdigest()
    return Photo(_square(image, size, fit, sha256), sha256)


def _square(image: Image.Image, size: int, fit: Fit, sha256: str) -> NDArray[np.uint8]:
    if fit.view:
        view = view_of(sha256, fit.view)
        box = (view.left * image.width, view.top * image.height, view.right * image.width, view.bottom * image.height)
        pixels = np.array(image.resize((size, size), fit.resample, box=box))
        return pixels[:, ::-1].copy() if view.mirrored else pixels
    if not fit.crop:
        return np.array(image.resize((size, size), fit.resample))
    # The short side to `size`, then the middle cut out, as CLIP's authors do; but in one step, because a photo of one
    # pixel by a million would not fit into memory in between.
    (left, right), (top, bottom) = (_middle(side, size * side // min(image.size), size) for side in image.size)
    return np.array(image.resize((size, size), fit.resample, box=(left, top, right, bottom)))


def _middle(side: int, resized: int, size: int) -> tuple[float, float]:
    """Which part of a side is the middle `size` pixels after it has become `resized` pixels long."""
    first = (resized - size) // 2
    return first * side / resized, min((first + size) * side / resized, side)


def sha256(file: str | os.PathLike[str]) -> str:
    """What a photo is known by: its bytes, not its name."""
    return hashlib.sha256(read_bytes(file)).hexdigest()


def read_bytes(file: str | os.PathLike[str]) -> bytes:
    try:
        status = Path(file).stat()
        if stat.S_ISDIR(status.st_mode):
            raise BadPhoto(file, "is a folder, not a photo")
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device could take forever
            raise BadPhoto(file, "is not a regular file")
        if status.st_size == 0:
            raise BadPhoto(file, "the file is empty")
        if status.st_size > MAX_BYTES:
            raise BadPhoto(file, f"the file has {status.st_size >> 20} MB; {MAX_BYTES >> 20} is the most we read")
        return Path(file).read_bytes()
    except FileNotFoundError:
        raise BadPhoto(file, "there is no such file") from None
    except ValueError as error:  # a NUL byte in the name
        raise BadPhoto(file, f"is no file name ({error})") from None
    except OSError as error:
        raise BadPhoto(file, f"cannot be read ({error.strerror})") from None


def decode(data: bytes, file: object, *, at_least: int = 0) -> Image.Image:
    """The photo upright and in RGB.  A JPEG much larger than `at_least` is decoded at a fraction of its size."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            if at_least and image.format in ("JPEG", "MPO"):
                image.draft(image.mode, (at_least, at_least))  # never below what is asked for
            image.load()  # of an animation, the first frame
            photo = _to_rgb(_upright(image))
            photo.info = {}  # nothing after this sees the EXIF data, so the photo is never turned twice
            return photo
    except UnidentifiedImageError:
        raise BadPhoto(file, f"is not a photo that we can open ({', '.join(FORMATS)})") from None
    except Image.DecompressionBombError:
        raise BadPhoto(file, f"has more than {MAX_PIXELS // 10**6} megapixels; such a file may be an attack") from None
    except MemoryError:
        raise BadPhoto(file, "does not fit into memory") from None
    except Exception as error:  # decoders raise nearly anything on a broken file
        raise BadPhoto(file, f"is damaged ({str(error) or type(error).__name__})") from None


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF orientation says.

    Not by `ImageOps.exif_transpose`: it writes the EXIF data anew, and leaves the photo lying when some other entry
    cannot be written.
    """
    image.load()  # first, because Pillow itself turns a TIFF while it loads
    try:
        turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # broken EXIF data says nothing about the pixels
        return image
    return image if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _to_eight_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, "white")  # what a viewer shows behind transparent parts
        return Image.alpha_composite(paper, image).convert("RGB")
    return image.convert("RGB")


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Deep greyscale.  Pillow's own conversion clips at 255 and would make such a photo white."""
    values = np.asarray(image).astype(np.float32)
    if image.mode.startswith("I;16"):
        values /= 257  # 65535 -> 255
    else:
        finite = values[np.isfinite(values)].clip(-1e38, 1e38)  # so that the range is finite too
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        values = np.nan_to_num(values, nan=low).clip(low, high)
        if not (low >= 0 and 1 < high <= 255):  # no range is written in the file: use the photo's own
            values = (values - low) * (255 / max(high - low, 1e-12))
    return Image.fromarray(values.round().clip(0, 255).astype(np.uint8)).convert("RGB")
