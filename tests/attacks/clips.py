"""Clips that are broken or hostile, made by code: their names, what writes each into a folder, and what is expected."""

import struct
from functools import partial

import numpy as np

from support.clips import counted, write_clip

CUT_SHORT = "is cut short: its last frames are not in the file"
HEADER_FIRST = {"movflags": "faststart"}


def _changed(folder, name, change, *, frames=60, **settings):
    """A whole clip, of which the bytes are then changed."""
    file = write_clip(folder / name, frames, **settings)
    file.write_bytes(change(file.read_bytes()))
    return file


def _plain(folder, name, text, beside=""):
    """A text under a clip's name, perhaps beside the clip that it speaks of."""
    if beside:
        write_clip(folder / beside, 10)
    (folder / name).write_text(text)
    return folder / name


def _two_thirds(data):
    return data[: len(data) * 2 // 3]


def _patched(data, place, value):
    return data[:place] + value + data[place + len(value) :]


def _garbage(data):
    """A whole header; all frames are overwritten."""
    start = data.index(b"mdat") + 4
    return _patched(data, start, bytes([255]) * (len(data) - start))


def _huge(data):
    """Says that its frames have 10,000 pixels a side: PixelWidth and PixelHeight, of two bytes each."""
    for side in (b"\xb0\x82", b"\xba\x82"):
        data = data.replace(side + b"\x01\x00", side + b"\x27\x10", 1)
    return data


def _long(data):
    """30 frames in 1.2 seconds; the header of the MP4 says a day."""
    for atom, offset in ((b"mvhd", 16), (b"tkhd", 20)):
        data = _patched(data, data.index(atom) + 4 + offset, struct.pack(">I", 86_400_000))
    return data


def _fast(data):
    """30 frames in 1.2 seconds; the header says 1,000 frames a second, by DefaultDuration, in nanoseconds."""
    place = data.index(b"\x23\xe3\x83") + 4
    return _patched(data, place, (1_000_000).to_bytes(data[place - 1] & 0x7F, "big"))


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.ts\n#EXT-X-ENDLIST\n"
REFUSED = {  # and the reason, where one is promised
    "empty": (partial(_plain, name="empty.mp4", text=""), "the file is empty"),
    "text": (partial(_plain, name="text.mp4", text="no clip at all\n" * 100), None),
    # its table of frames was never written, as after a crash of the camera
    "header only": (partial(_changed, name="header.mp4", frames=30, change=lambda data: data[:400]), None),
    "truncated": (partial(_changed, name="truncated.mp4", change=_two_thirds, options=HEADER_FIRST), CUT_SHORT),
    # formats without a list of frames at the beginning
    "truncated Matroska": (partial(_changed, name="truncated.mkv", change=_two_thirds), CUT_SHORT),
    "truncated WebM": (partial(_changed, name="truncated.webm", change=_two_thirds, codec="libvpx-vp9"), CUT_SHORT),
    "truncated AVI": (
        partial(_changed, name="truncated.avi", change=_two_thirds, codec="mpeg4", b_frames=0),
        CUT_SHORT,
    ),
    "audio only": (
        lambda folder: write_clip(folder / "audio.mp4", [], sound=np.sin(np.arange(16000) / 20)),
        "has sound but no video",
    ),
    "zero frames": (  # up to the first cluster
        partial(_changed, name="zero.mkv", frames=3, codec="mpeg4", b_frames=0,
                change=lambda data: data[: data.index(b"\x1f\x43\xb6\x75")]),
        "has no frames",
    ),
    "garbage frames": (
        partial(_changed, name="garbage.mp4", frames=20, change=_garbage, options=HEADER_FIRST),
        None,
    ),
    "unknown codec": (
        partial(_changed, name="unknown.mp4", frames=5,
                change=lambda data: data.replace(b"avc1", b"zzzz").replace(b"avcC", b"zzzz")),
        None,
    ),
    "huge": (
        partial(_changed, name="huge.mkv", frames=[np.zeros((256, 256, 3), np.uint8)] * 3, codec="ffv1", change=_huge),
        "has frames of no size, or of more than 33 megapixels",
    ),
    # FFmpeg would open the file that it names
    "HLS playlist": (partial(_plain, name="playlist.mp4", text=PLAYLIST, beside="secret.ts"), None),
    "concatenation": (
        partial(_plain, name="concat.mp4", text="ffconcat version 1.0\nfile secret.ts\n", beside="secret.ts"),
        None,
    ),
}  # fmt: skip

TAKEN = {  # and how many frames it has, in how many seconds
    "long by its header": (partial(_changed, name="long.mp4", frames=30, change=_long), 30, 1.2),
    "fast by its header": (partial(_changed, name="fast.mkv", frames=30, change=_fast), 30, 1.2),
    "one frame": (lambda folder: write_clip(folder / "one.mp4", 1), 1, 0.04),
    "one pixel": (lambda folder: write_clip(folder / "pixel.mkv", [counted(0)[:1, :1]] * 5, codec="ffv1"), 5, 0.2),
}
