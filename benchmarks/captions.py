"""Captions of photos from files: ours against the same model run the plain way, and how soon the first one comes.

    python benchmarks/captions.py                          (the album, the default captioner)
    python benchmarks/captions.py plain --photos DIR

plain way   one photo after another: Pillow opens and scales it, torch runs the encoder and the captioner in single
            precision, and a loop written with the captioner protocol looks for the caption (benchmarks/decoding.py)
ours        `captioner.caption(files)`: reads ahead, batches, onnxruntime for the encoder, one search for all photos

Both must find nearly always the same captions, or the timing means nothing.  The first caption is timed as somebody
waits for it at the keyboard: `tellapart caption PHOTO` in a process of its own, loading included, the best of three.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timing import side_by_side, table

from decoding import Ways
from tellapart import album
from tellapart.captioning import captioner as captioning
from tellapart.data.media import photos
from tellapart.encoders import encoder as encoders
from tellapart.encoders import weights_file

COUNT = 96


def by_torch(encoder: encoders.Encoder) -> encoders.FeatureMap:
    tuned, cpu = encoder.tuned, torch.device("cpu")
    name = tuned.base if tuned else encoder.config.name
    entry = encoders.ENCODERS[name]
    weights = tuned.weights if tuned else encoders.read_weights(weights_file(name, entry))
    return encoders._by_torch(entry.variant, {key: tensor.float() for key, tensor in weights.items()}, cpu)


def plain_way(ways: Ways, encoder: encoders.Encoder, look: encoders.FeatureMap, files: list[Path]) -> list[str]:
    return [one_photo(ways, encoder, look, file) for file in files]


def one_photo(ways: Ways, encoder: encoders.Encoder, look: encoders.FeatureMap, file: Path) -> str:
    size = encoder.config.image_size
    with Image.open(file) as image:
        pixels = np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC))
    with torch.inference_mode():
        grid = encoders.pool(look(torch.from_numpy(pixels.copy())[None]), encoder.config).grid
        return ways.words.decode(ways.one(grid))


def ours(captioner: captioning.PhotoCaptioner, files: list[Path]) -> list[str]:
    return [caption.text for caption in captioner.caption(files)]


def first_caption(model: str, photo: Path) -> float:
    def wait() -> float:
        began = time.perf_counter()
        command = [sys.executable, "-m", "tellapart", "caption", str(photo), "--model", model]
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began

    return min(wait() for _ in range(3))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=album.DEFAULT)
    parser.add_argument("--photos", type=Path, default=album.HERE / "photos")
    request = parser.parse_args()
    found = sorted(file for file in request.photos.iterdir() if file.suffix.lower() in photos.PHOTO_SUFFIXES)
    files = [found[i % len(found)] for i in range(COUNT)]
    captioner = captioning.load(request.model, device="cpu")
    parts = {
        "plain way": partial(plain_way, Ways.of(request.model), captioner.encoder, by_torch(captioner.encoder), files),
        "ours": partial(ours, captioner, files),
    }
    same = sum(one == other for one, other in zip(parts["plain way"](), parts["ours"](), strict=True))
    took = side_by_side(parts, repeats=3)
    table(
        f"Captions of {COUNT} photos from files, `{request.model}`, beam 3",
        [
            {"": name, "photos/s": f"{COUNT / seconds:.1f}", "ratio": f"{took['plain way'] / seconds:.2f}"}
            for name, seconds in took.items()
        ],
    )
    first = first_caption(request.model, found[0])
    print(f"\nthe same captions: {same} of {COUNT}; the first caption after {first:.1f} s")
