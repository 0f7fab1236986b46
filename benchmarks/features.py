"""Feature extraction from files, through the cache, against the bare forward pass on photos decoded in memory.

    python benchmarks/features.py [FOLDER OF PHOTOS]       (default: the album)

The photos are measured as they are, and again as 12-megapixel JPEGs, where decoding at reduced size matters.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from timing import side_by_side, table

from tellapart.album import HERE
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.encoders.encoder import Encoder
from tellapart.features.sources import Encoded
from tellapart.recipe import EncoderConfig

COUNT, BATCH = 96, 16


def measure(name: str, files: list[Path], encoder: Encoder) -> dict[str, str]:
    pixels = np.stack([photos.read(file, encoder.config.image_size).pixels for file in files])

    def bare() -> None:
        for start in range(0, len(pixels), BATCH):
            encoder(pixels[start : start + BATCH])

    def through_the_cache() -> None:
        with tempfile.TemporaryDirectory() as folder:
            result = Encoded(encoder).fill(Path(folder, "store"), [Example(i, file) for i, file in enumerate(files)])
            assert result.computed == len(files)

    took = side_by_side({"bare": bare, "files": through_the_cache}, repeats=3)
    return {
        "photos": name,
        "forward pass only, photos/s": f"{len(files) / took['bare']:.1f}",
        "from files into the cache, photos/s": f"{len(files) / took['files']:.1f}",
        "ratio": f"{took['bare'] / took['files']:.2f}",
    }


def enlarged(files: list[Path], folder: Path) -> list[Path]:
    """The same photos as a 12-megapixel camera would have stored them."""
    large = []
    for i, file in enumerate(files):
        with Image.open(file) as image:
            image.convert("RGB").resize((4000, 3000), Image.Resampling.BICUBIC).save(folder / f"{i}.jpg", quality=90)
        large.append(folder / f"{i}.jpg")
    return large


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "photos"
    found = sorted(file for file in folder.iterdir() if file.suffix.lower() in photos.PHOTO_SUFFIXES)
    files = [found[i % len(found)] for i in range(COUNT)]
    encoder = Encoder(EncoderConfig())
    with tempfile.TemporaryDirectory() as scratch:
        rows = [measure("as they are", files, encoder)]
        rows.append(measure("12-megapixel JPEG", enlarged(files[: COUNT // 2], Path(scratch)), encoder))
    table("Feature extraction, EfficientNet-Lite2 at 256 x 256", rows)
