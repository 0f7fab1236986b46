"""Clips made by code: each frame shows its own number, in bits as white and black squares in the upper half."""

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

BITS = 16
SIDE = 8  # pixels of a square
WIDTH, HEIGHT = BITS * SIDE, 48


def counted(number, width=WIDTH, height=HEIGHT):
    pixels = np.full((height, width, 3), 40, np.uint8)
    for bit in range(BITS):
        pixels[: height // 2, bit * SIDE : (bit + 1) * SIDE] = 255 * (number >> bit & 1)
    return pixels


def number_in(pixels):
    """What is drawn into a frame of `counted`."""
    bits = pixels[pixels.shape[0] // 4, SIDE // 2 :: SIDE].mean(1) > 128
    return sum(int(bit) << place for place, bit in enumerate(bits))


def write_clip(file, frames, times=None, *, codec="libx264", gop=12, b_frames=2, sound=None, format=None, options=None):
    """frames: arrays (H, W, 3), or how many counted ones; times: seconds (default: 25 a second)

    sound  samples in -1..1 at 16 kHz
    """
    frames = [counted(number) for number in range(frames)] if isinstance(frames, int) else list(frames)
    times = [number / 25 for number in range(len(frames))] if times is None else times
    settings = {"g": str(gop), "bf": str(b_frames)} if codec in ("libx264", "mpeg4") else {"g": str(gop)}
    with av.open(str(file), "w", format=format, options=options or {}) as container:
        video = None
        if frames:
            video = container.add_stream(codec, rate=25, options=settings)
            video.height, video.width = frames[0].shape[:2]
            video.pix_fmt = "yuv420p" if codec != "ffv1" else "bgr0"
            video.codec_context.time_base = video.time_base = Fraction(1, 1000)
        audio = None if sound is None else container.add_stream("aac", rate=16000, layout="mono")
        for pixels, time in zip(frames, times, strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24")
            frame.pts, frame.time_base = round(1000 * time), Fraction(1, 1000)
            container.mux(video.encode(frame))
        if video is not None:
            container.mux(video.encode(None))
        if audio is not None:
            for start in range(0, len(sound), 1024):
                piece = np.asarray(sound[start : start + 1024], np.float32)[None]
                frame = av.AudioFrame.from_ndarray(piece, "fltp", "mono")
                frame.sample_rate, frame.pts, frame.time_base = 16000, start, Fraction(1, 16000)
                container.mux(audio.encode(frame))
            container.mux(audio.encode(None))
    return Path(file)


_CLOCKWISE = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}


def rotate(file, degrees):
    """Have an MP4's header ask for a rotation, clockwise, as phones do: the matrix of its track."""
    data = bytearray(Path(file).read_bytes())
    place = data.index(b"tkhd") + 4 + 40  # after version, times, id, duration, layer and volume
    a, b, c, d = (value << 16 for value in _CLOCKWISE[degrees])
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    Path(file).write_bytes(data)
    return file
