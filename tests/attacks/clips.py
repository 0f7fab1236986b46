"""Clips that are broken or hostile, made by code: each function writes one into a folder."""

import struct

import numpy as np

from support.clips import counted, write_clip


def _patched(file, atom, offset, value):
    """A number of an MP4's atom overwritten; offset from the end of its name."""
    data = bytearray(file.read_bytes())
    place = data.index(atom) + 4 + offset
    data[place : place + len(value)] = value
    file.write_bytes(data)
    return file


def empty(folder):
    (folder / "empty.mp4").write_bytes(b"")
    return folder / "empty.mp4"


def text(folder):
    (folder / "text.mp4").write_text("no clip at all\n" * 100)
    return folder / "text.mp4"


def header_only(folder):
    """An MP4 whose table of frames was never written, as after a crash of the camera."""
    file = write_clip(folder / "header.mp4", 30)
    file.write_bytes(file.read_bytes()[:400])
    return file


def truncated(folder):
    """Its header comes first and is whole; half of the frames are gone."""
    file = write_clip(folder / "truncated.mp4", 60, options={"movflags": "faststart"})
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    return file


def _cut(folder, name, **how):
    """The first two thirds of a whole clip of a format without a list of frames at its beginning."""
    file = write_clip(folder / name, 60, **how)
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    return file


def truncated_mkv(folder):
    return _cut(folder, "truncated.mkv")


def truncated_webm(folder):
    return _cut(folder, "truncated.webm", codec="libvpx-vp9")


def truncated_avi(folder):
    return _cut(folder, "truncated.avi", codec="mpeg4", b_frames=0)


def audio_only(folder):
    return write_clip(folder / "audio.mp4", [], sound=np.sin(np.arange(16000) / 20))


def zero_frames(folder):
    """A Matroska file with a video track and no frame in it."""
    file = write_clip(folder / "zero.mkv", 3, codec="mpeg4", b_frames=0)
    data = file.read_bytes()
    file.write_bytes(data[: data.index(b"\x1f\x43\xb6\x75")])  # up to the first cluster
    return file


def garbage_frames(folder):
    """A whole header; all frames are overwritten."""
    file = write_clip(folder / "garbage.mp4", 20, options={"movflags": "faststart"})
    data = bytearray(file.read_bytes())
    start = data.index(b"mdat") + 4
    data[start:] = bytes([255]) * (len(data) - start)
    file.write_bytes(data)
    return file


def unknown_codec(folder):
    """Its frames are of a kind that nobody knows."""
    file = write_clip(folder / "unknown.mp4", 5)
    file.write_bytes(file.read_bytes().replace(b"avc1", b"zzzz").replace(b"avcC", b"zzzz"))
    return file


def huge(folder):
    """Says that its frames have 10,000 pixels a side."""
    file = write_clip(folder / "huge.mkv", [np.zeros((256, 256, 3), np.uint8)] * 3, codec="ffv1")
    data = file.read_bytes()
    for side in (b"\xb0\x82", b"\xba\x82"):  # PixelWidth and PixelHeight, of two bytes each
        data = data.replace(side + b"\x01\x00", side + b"\x27\x10", 1)
    file.write_bytes(data)
    return file


def playlist(folder):
    """An HLS playlist under a clip's name: FFmpeg would open the file that it names."""
    write_clip(folder / "secret.ts", 10)
    playlist = folder / "playlist.mp4"
    playlist.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.ts\n#EXT-X-ENDLIST\n")
    return playlist


def concatenation(folder):
    """A script for FFmpeg's concatenation under a clip's name."""
    write_clip(folder / "secret.ts", 10)
    script = folder / "concat.mp4"
    script.write_text("ffconcat version 1.0\nfile secret.ts\n")
    return script


REFUSED = (
    *(empty, text, header_only, truncated, truncated_mkv, truncated_webm, truncated_avi, audio_only, zero_frames),
    *(garbage_frames, unknown_codec, huge, playlist, concatenation),
)


def long_by_its_header(folder):
    """30 frames in 1.2 seconds; the header says a day."""
    file = write_clip(folder / "long.mp4", 30)
    _patched(file, b"mvhd", 16, struct.pack(">I", 86_400_000))
    return _patched(file, b"tkhd", 20, struct.pack(">I", 86_400_000))


def fast_by_its_header(folder):
    """30 frames in 1.2 seconds; the header says 1,000 frames a second."""
    file = write_clip(folder / "fast.mkv", 30)
    data = file.read_bytes()
    place = data.index(b"\x23\xe3\x83")  # DefaultDuration, in nanoseconds
    size = data[place + 3] & 0x7F
    file.write_bytes(data[: place + 4] + (1_000_000).to_bytes(size, "big") + data[place + 4 + size :])
    return file


def one_frame(folder):
    return write_clip(folder / "one.mp4", 1)


def one_pixel(folder):
    return write_clip(folder / "pixel.mkv", [counted(0)[:1, :1]] * 5, codec="ffv1")


TAKEN = {long_by_its_header: (30, 1.2), fast_by_its_header: (30, 1.2), one_frame: (1, 0.04), one_pixel: (5, 0.2)}
