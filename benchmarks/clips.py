"""Clips: features of a folder against bare PyAV and the bare forward pass, memory by length, and the first caption.

    python benchmarks/clips.py [FOLDER OF CLIPS]       (default: ten clips of album photos, made here)

Bare: of each clip the same eight frames, by a seek to the key frame before and decoding from there, in one thread,
scaled by PyAV itself; then the encoder on all of them.  It takes turns with the extraction into the cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timing import side_by_side, table

from tellapart.album import HERE
from tellapart.data.examples import Example
from tellapart.data.media.clips import named_as_clip, open_clip
from tellapart.encoders.encoder import FrameEncoder
from tellapart.encoders.loading import load
from tellapart.features.sources import Encoded
from tellapart.recipe import EncoderConfig

FRAMES, SIZE, BATCH, MOST = 8, 256, 16, 24
_MEMORY = """
import re, sys
from pathlib import Path
from tellapart.encoders.encoder import read_squares
from tellapart.data.media.photos import SQUEEZE
read_squares(sys.argv[1], 8, (0,), 256, SQUEEZE)
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def bare_frames(file: Path, times: list[float]) -> NDArray[np.uint8]:
    """(N, S, S, 3)"""
    found = []
    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count, stream.thread_type = 1, "NONE"
        for wanted in times:
            container.seek(int(wanted / stream.time_base), stream=stream)
            frame = next(one for one in container.decode(stream) if one.time is None or one.time >= wanted - 1e-6)
            found.append(frame.reformat(SIZE, SIZE, "rgb24").to_ndarray())
    return np.stack(found)


def frame_times(file: Path) -> list[float]:
    """Of the frames that the extraction takes, from the start of the stream."""
    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        start = float((stream.start_time or 0) * stream.time_base)
    with open_clip(file) as clip:
        return [start + float(clip.times[number]) for number in clip.evenly(FRAMES)]


def throughput(files: list[Path]) -> None:
    encoder = load(EncoderConfig(frames=FRAMES), torch.device("cpu"))
    assert isinstance(encoder, FrameEncoder)
    times = [frame_times(file) for file in files]

    def bare() -> None:
        frames = np.concatenate([bare_frames(file, own) for file, own in zip(files, times, strict=True)])
        for start in range(0, len(frames), BATCH):
            encoder.of_photos(frames[start : start + BATCH])

    def through_the_cache() -> None:
        with tempfile.TemporaryDirectory() as folder:
            result = Encoded(encoder).fill(Path(folder, "store"), [Example(i, file) for i, file in enumerate(files)])
            assert result.computed == len(files)

    took = side_by_side({"bare": bare, "files": through_the_cache}, repeats=3)
    row = {
        "clips": str(len(files)),
        "bare seek, decode and forward pass, clips/s": f"{len(files) / took['bare']:.2f}",
        "from files into the cache, clips/s": f"{len(files) / took['files']:.2f}",
        "ratio": f"{took['bare'] / took['files']:.2f}",
    }
    table(f"Features of clips, {FRAMES} frames, EfficientNet-Lite2 at {SIZE} x {SIZE}", [row])


def video(file: Path, seconds: float, size: tuple[int, int] = (320, 240)) -> Path:
    """Album photos, a second each, in H.264."""
    photos = sorted((HERE / "photos").iterdir())
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"preset": "ultrafast"})
        stream.width, stream.height = size
        for second in range(round(seconds)):
            with Image.open(photos[second % len(photos)]) as photo:
                pixels = np.asarray(photo.convert("RGB").resize(size))
            for number in range(25 * second, 25 * (second + 1)):
                frame = av.VideoFrame.from_ndarray(np.roll(pixels, number % 25, axis=1), "rgb24")
                frame.pts, frame.time_base = number, Fraction(1, 25)
                container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file


def memory(scratch: Path) -> None:
    rows = []
    for minutes in (1, 10):
        file = video(scratch / f"{minutes}.mp4", 60 * minutes)
        peak = subprocess.run([sys.executable, "-c", _MEMORY, file], capture_output=True, text=True, check=True).stdout
        rows.append({"minutes": str(minutes), "most memory of the process, MB": peak.strip()})
    table("Eight frames of a video", rows)


def first_caption(file: Path) -> None:
    began, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-m", "tellapart", "caption", file], capture_output=True, check=True)
    took, after = time.perf_counter() - began, os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])  # of child processes: what a busy machine does not change
    table("The first caption of a clip, cold", [{"seconds": f"{took:.1f}", "seconds of CPU": f"{cpu:.1f}"}])


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        if len(sys.argv) > 1:
            files = sorted(file for file in Path(sys.argv[1]).iterdir() if named_as_clip(file))[:MOST]
        else:
            files = [video(scratch / f"{number}.mp4", 10) for number in range(10)]
        throughput(files)
        memory(scratch)
        first_caption(files[0])
