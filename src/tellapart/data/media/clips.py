"""From a clip to some of its frames: by their times, without decoding or holding the rest of it.

The times of all frames are read from the packets first, which needs no decoding.  So the length and the frame rate are
those of the frames that are in the file, not of its header, and a frame has a number that does not depend on the
frame rate.  To get at a frame, the decoder begins at the key frame before it; it goes on forward as long as the next
frame that is wanted belongs to the same key frame.

A photo is a clip of one frame.  What a clip may cost is bounded as for photos: MAX_PIXELS of a frame, and the memory of
its decoder is a part of `photos.MEMORY`.
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tellapart.data.examples import Segment, file_of, segment_of
from tellapart.data.media import photos
from tellapart.errors import BadPhoto

if TYPE_CHECKING:
    import av

INSTALL = "pip install 'tellapart[video]'"
_NAMES = "mp4 m4v mov qt 3gp 3g2 mkv webm avi mpg mpeg m2v vob ts mts m2ts flv wmv asf ogv"
CLIP_SUFFIXES = frozenset(map(".{}".format, _NAMES.split(" ")))
MAX_PIXELS = 1 << 25  # of a frame: 8K
MAX_FRAMES = 5_000_000  # 23 hours at 60 frames a second
KEPT_PIXELS = 1 << 21  # a larger frame is averaged down: encoders see far less
_DECODER_BYTES = 32  # of a pixel: up to 17 frames are kept as references, in 4:2:0
# Formats that name other files or addresses (playlists, concatenations, scripts) are not among them.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg"

_CUT_SHORT = "is cut short: its last frames are not in the file"
_ROUNDING = 1e-6  # seconds: the time of a frame, as a fraction, is not below itself

RGB = NDArray[np.uint8]  # (H, W, 3)
Index = tuple[NDArray[np.int64], int, NDArray[np.int64], list[int]]
Stamp = tuple[int, ...]  # of a file: its bytes, and what changes with it
Source = photos.Source

_INDICES: dict[Stamp, Index] = {}  # of clips whose segments are read one after the other
_KEPT_INDICES = 4


class Clip:
    """Frames with times.  `open_clip` makes one.

    times     (F,) seconds from the first frame, ascending
    duration  seconds from the first frame to the end of the last one
    size      width and height of an upright frame
    """

    def __init__(self, times: NDArray[np.float64], duration: float, size: tuple[int, int]):
        self.times, self.duration, self.size = times, duration, size

    def __len__(self) -> int:
        """Frames"""
        return len(self.times)

    def index_at(self, time: float) -> int:
        """The frame that is shown at a time; before the clip its first one, after it its last."""
        return max(int(np.searchsorted(self.times, time + _ROUNDING, side="right")) - 1, 0)

    def frames(self, indices: Sequence[int]) -> list[RGB]:
        """Frames by their numbers from 0, in any order, upright, in RGB; numbers outside of the clip mean its ends."""
        clipped = [min(max(index, 0), len(self) - 1) for index in indices]
        frames = dict(self.each(sorted(set(clipped))))
        return [frames[index] for index in clipped]

    def each(self, indices: Iterable[int]) -> Iterator[tuple[int, RGB]]:
        """Frames one by one, so that only one is held; quickest in ascending order."""
        return ((index, self._frame(index)) for index in indices)

    def small(self, side: int) -> Iterator[tuple[float, RGB]]:
        """All frames as squares of so many pixels a side, with their times; one is held at a time."""
        return ((float(self.times[index]), self._frame(index, side)) for index in range(len(self)))

    def evenly(self, count: int) -> list[int]:
        """The frames in the middle of each of `count` equal parts of the clip's time."""
        return [self.index_at(self.duration * (part + 0.5) / count) for part in range(count)]

    def _frame(self, index: int, side: int = 0) -> RGB:
        """side  as a square of so many pixels a side"""
        raise NotImplementedError


class _Photo(Clip):
    def __init__(self, pixels: RGB):
        super().__init__(np.zeros(1), 0.0, (pixels.shape[1], pixels.shape[0]))
        self._pixels = pixels

    def _frame(self, index: int, side: int = 0) -> RGB:
        return np.asarray(Image.fromarray(self._pixels).resize((side, side))) if side else self._pixels


class _Segment(Clip):
    """The frames of a clip from one time to another: at least one."""

    def __init__(self, whole: Clip, segment: Segment):
        start, end = min(segment.start, float(whole.times[-1])), min(segment.end, whole.duration)
        self._whole, self._first = whole, whole.index_at(start)
        last = max(int(np.searchsorted(whole.times, end - _ROUNDING)) - 1, self._first)
        times = np.maximum(whole.times[self._first : last + 1] - start, 0.0)
        super().__init__(times, max(end - start, 0.0), whole.size)

    def _frame(self, index: int, side: int = 0) -> RGB:
        return self._whole._frame(self._first + index, side)


class _Video(Clip):
    def __init__(
        self,
        file: str | os.PathLike[str],
        container: av.container.InputContainer,
        stream: av.VideoStream,
        stamp: Stamp,
    ):
        from av.video.reformatter import VideoReformatter

        self._file, self._container, self._stream = file, container, stream
        self._scaler = VideoReformatter()
        index = _INDICES.get(stamp) or self._index(stamp[0])
        if segment_of(file) is not None:  # others may follow
            if len(_INDICES) >= _KEPT_INDICES:
                _INDICES.clear()
            _INDICES[stamp] = index
        self._pts, end, self._keys, self._starts = index
        seconds = float(stream.time_base or 0)
        times = (self._pts - self._pts[0]) * seconds
        self._decoded = self._from(None)
        self._jumps = True  # until the file turns out not to let us
        first = self._next()
        if first is None:
            raise BadPhoto(file, "has no frame that can be decoded")
        self._place, self._current = first
        sides = self._current.width, self._current.height
        size = sides if self._current.rotation % 180 == 0 else sides[::-1]
        super().__init__(times, max((end - int(self._pts[0])) * seconds, 0.0), size)

    def _index(self, length: int) -> Index:
        """Times of the frames, the end of the last, times of the key frames, and where to seek to for each of those.

        length  bytes of the file
        """
        entries = self._stream.index_entries
        if len(entries) and entries[-1].pos + entries[-1].size > length:
            raise BadPhoto(self._file, _CUT_SHORT)
        times, keys, end = array("q"), dict[int, int](), 0
        for packet in packets(self._container, self._stream):
            time = packet.dts if packet.pts is None else packet.pts
            if time is None or not packet.size or packet.is_discard:
                continue
            times.append(time)
            end = max(end, time + (packet.duration or 0))
            if packet.is_keyframe:
                keys[time] = time if packet.dts is None else packet.dts  # a seek goes by the latter where there is one
            if len(times) > MAX_FRAMES:
                raise BadPhoto(self._file, f"has more than {MAX_FRAMES // 10**6} million frames")
        if not times:
            raise BadPhoto(self._file, "has no frames")
        if _declared_length(self._file) > length:
            raise BadPhoto(self._file, _CUT_SHORT)
        pts = np.unique(np.frombuffer(times, np.int64))
        if end <= pts[-1] and len(pts) > 1:  # no duration is given for frames: the last one is as long as the mean
            end = int(pts[-1] + (pts[-1] - pts[0]) // (len(pts) - 1))
        keys.setdefault(int(pts[0]), min(keys.values(), default=int(pts[0])))
        return pts, end, np.array(sorted(keys), np.int64), [keys[time] for time in sorted(keys)]

    def _frame(self, index: int, side: int = 0) -> RGB:
        wanted = int(self._pts[index])
        key = int(np.searchsorted(self._keys, wanted, side="right")) - 1
        if self._place > wanted or (self._jumps and self._keys[key] > self._place):
            self._seek(key, wanted)
        while self._place < wanted:
            following = self._next()
            if following is None:  # damaged: the last frame that can be decoded stands for it
                break
            self._place, self._current = following
        return self._upright(self._current, side)

    def _seek(self, key: int, wanted: int) -> None:
        """To the key frame, or else to any frame before the one that is wanted."""
        # Some containers seek by when a frame is shown, some by when it is decoded, some not at all.
        for start in (int(self._keys[key]), self._starts[key], None):
            self._jumps = start is not None
            self._decoded = self._from(start)
            frame = self._next()
            if frame is not None and frame[0] <= wanted:
                break
        if frame is None:
            raise BadPhoto(self._file, "is damaged (a frame cannot be decoded)")
        self._place, self._current = frame

    def _from(self, start: int | None) -> Iterator[av.VideoFrame]:
        """The frames from a time on; None: all of them."""
        import av

        try:
            if start is None:
                self._container.seek(0, any_frame=True)
            else:
                self._container.seek(start, stream=self._stream)
        except av.FFmpegError:
            return
        for packet in packets(self._container, self._stream):
            try:
                yield from packet.decode()
            except av.FFmpegError:  # one damaged frame; those after it may be whole
                continue

    def _upright(self, frame: av.VideoFrame, side: int) -> RGB:
        size = frame.width, frame.height
        if size[0] * size[1] > MAX_PIXELS:
            raise BadPhoto(self._file, "has frames that are larger than its header says")
        width, height = (side, side) if side else photos.shrunk(size, photos.shrinking(size, KEPT_PIXELS))
        # One scaler for all frames, in this thread: PyAV's default starts threads for each frame, which may deadlock.
        pixels = self._scaler.reformat(frame, width, height, "rgb24", threads=1).to_ndarray()
        return np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90)))

    def _next(self) -> tuple[int, av.VideoFrame] | None:
        """The next frame, with its time."""
        return next(((frame.pts, frame) for frame in self._decoded if frame.pts is not None), None)


@contextmanager
def open_clip(source: Source, *, threads: int = 1) -> Iterator[Clip]:
    """A clip, a segment of one, or a photo as a clip of one frame.  BadPhoto says what is wrong with it.

    threads  of the decoder; clips that are read side by side are quicker with one each

    >>> with open_clip("holiday/beach.mp4") as clip:
    ...     first, middle = clip.frames([0, clip.index_at(clip.duration / 2)])
    """
    if isinstance(source, Image.Image) or not is_clip(source):
        yield _Photo(photos.read_rgb(source, KEPT_PIXELS))
        return
    with opened(source) as (container, stamp):
        stream = _video_stream(container, source)
        pixels = stream.width * stream.height
        if not 0 < pixels <= MAX_PIXELS:  # FFmpeg itself forgets a size beyond `max_pixels`
            raise BadPhoto(source, f"has frames of no size, or of more than {MAX_PIXELS // 10**6} megapixels")
        stream.codec_context.thread_count = threads
        stream.thread_type = "AUTO" if threads > 1 else "NONE"
        with photos.decoding_memory(pixels * _DECODER_BYTES):
            clip, segment = _Video(source, container, stream, stamp), segment_of(source)
            yield clip if segment is None else _Segment(clip, segment)


def read(source: Source, size: int, fit: photos.Fit = photos.SQUEEZE) -> photos.Photo:
    """As `photos.read`; of a clip the middle frame."""
    if isinstance(source, Image.Image) or not is_clip(source):
        return photos.read(source, size, fit)
    return photos.fitted(picture(source), sha256(source), size, fit)


def sha256(source: Source) -> str:
    """As `photos.sha256`, also of a picture that the caller has opened."""
    return photos.read(source, 1).sha256 if isinstance(source, Image.Image) else photos.sha256(source)


def upright(source: Source) -> tuple[Image.Image, str]:
    """As `photos.upright`; of a clip the middle frame."""
    if isinstance(source, Image.Image) or not is_clip(source):
        return photos.upright(source)
    return picture(source), sha256(source)


def picture(file: str | os.PathLike[str], *, at_least: int = 0) -> Image.Image:
    """A photo, or the middle frame of a clip, upright and in RGB; `at_least` as for `photos.decode`."""
    if not is_clip(file):
        return photos.decode(photos.read_bytes(file), file, at_least=at_least)
    with open_clip(file) as clip:
        return Image.fromarray(clip.frames(clip.evenly(1))[0])


@contextmanager
def opened(file: str | os.PathLike[str]) -> Iterator[tuple[av.container.InputContainer, Stamp]]:
    """A container, and the stamp of its file; every error of FFmpeg while it is used becomes BadPhoto."""
    try:
        import av
    except ImportError:
        raise BadPhoto(file, f"is a clip; `{INSTALL}` brings what opens it") from None
    options = {"format_whitelist": _FORMATS, "protocol_whitelist": "none", "max_pixels": str(MAX_PIXELS)}
    with photos.open_file(file, most=None, kind="clip") as (handle, length):
        status = os.fstat(handle.fileno())
        stamp = (length, status.st_mtime_ns, status.st_ino, status.st_dev)
        try:
            with av.open(
                handle, mode="r", options=options, metadata_errors="replace", buffer_size=1 << 18
            ) as container:
                yield container, stamp
        except av.InvalidDataError:
            raise BadPhoto(file, "is damaged, or no clip in a format that we open") from None
        except av.EOFError:
            raise BadPhoto(file, "has no frames") from None
        except (av.FFmpegError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise BadPhoto(file, f"is damaged ({reason})") from None


def is_clip(file: str | os.PathLike[str]) -> bool:
    """True of a clip, by the first bytes of the file; by its name where those say nothing."""
    try:
        with photos.open_file(file, most=None) as (handle, _):
            head = handle.read(400)
    except BadPhoto:
        head = b""
    if head[:4] == b"RIFF" or head[4:8] == b"ftyp":
        is_still = any(brand in head[8:64] for brand in _STILLS)
        return head[8:12] in (b"AVI ", b"AVIX") or (head[4:8] == b"ftyp" and not is_still)
    if head.startswith(_CLIP_HEADS) or head[4:8] in _ATOMS or head[::188][:3] == b"GGG" or head[4::192][:2] == b"GG":
        return True
    return named_as_clip(file) and not head.startswith(_PHOTO_HEADS)


def _declared_length(file: str | os.PathLike[str]) -> int:
    """The bytes that an AVI or Matroska file says it has, 0 if it does not; other formats list their frames, or
    end anywhere.  Damage to what it says of their durations does no harm."""
    with photos.open_file(file, most=None) as (handle, _):
        head = handle.read(1 << 12)
    if head.startswith(b"RIFF"):
        return 8 + int.from_bytes(head[4:8], "little")
    place = 0
    while head.startswith(_EBML) and place < len(head):
        name, after = head[place : place + 4], place + 4
        if name not in (_EBML, _SEGMENT):  # of Matroska's top level; another, such as a Void, has a shorter name
            name, after = head[place : place + 1], place + 1
        width = 9 - head[after].bit_length() if after < len(head) else 9
        if width > 8:
            break
        size = int.from_bytes(head[after : after + width], "big") - (1 << 7 * width)
        if name == _SEGMENT:
            return after + width + size if size < (1 << 7 * width) - 1 else 0  # all ones: a stream of unknown length
        place = after + width + size
    return 0


def named_as_clip(file: str | os.PathLike[str]) -> bool:
    return file_of(file).suffix.lower() in CLIP_SUFFIXES


def unit(files: Iterable[str | os.PathLike[str]]) -> str:
    """Their name where they are counted.

    >>> unit(["a.mp4", "b.mp4#t=0,1"]), unit(["a.mp4", "b.jpg"])
    ('clip', 'photo')
    """
    return "clip" if all(map(named_as_clip, files)) else "photo"


_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_CLIP_HEADS = (_EBML, b"FLV\x01", b"0&\xb2u\x8ef\xcf\x11", b"OggS", b"\0\0\x01\xba", b"\0\0\x01\xb3")
_ATOMS = (b"moov", b"mdat", b"wide", b"pnot")
_PHOTO_HEADS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II", b"MM")
_STILLS = (b"heic", b"heix", b"mif1", b"msf1", b"avif", b"crx ")  # brands of photos that begin as MP4 does


def _video_stream(container: av.container.InputContainer, file: object) -> av.VideoStream:
    from av.stream import Disposition

    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:  # the cover of a song is no video
            if stream.codec_context is None:  # PyAV's types say that it never is
                raise BadPhoto(file, "has video of a kind that cannot be decoded")
            return stream
    raise BadPhoto(file, "has sound but no video" if container.streams.audio else "has no video in it")


def packets(container: av.container.InputContainer, stream: Any) -> Iterator[Any]:
    """Up to the end, or to where the container is broken."""
    import av

    try:
        yield from container.demux(stream)
    except (av.InvalidDataError, av.EOFError):
        return


# Shots: they begin where the colours change from one frame to the next far more than they did just before.

SHORTEST = 2.0  # seconds; a shorter shot is a part of the one before
_CUT = 0.3  # share of the pixels that change their colour
_TIMES = 4.0  # as much as in the frames before: shaking and flicker are no cuts
_BEFORE = 12  # frames
_SIDE = 48  # pixels of a frame that is compared
_COLOURS = 4  # of each channel


def cuts(clip: Clip) -> list[float]:
    """The times at which a shot follows another, ascending; all frames are decoded, one at a time."""
    times: list[float] = []
    previous: RGB | None = None
    changes = deque[float](maxlen=_BEFORE)
    for time, frame in clip.small(_SIDE):
        if previous is not None:
            change = colour_change(previous, frame)
            usual = float(np.mean(changes)) if changes else 0.0
            if change > max(_CUT, _TIMES * usual):
                times.append(time)
                changes.clear()
            else:
                changes.append(change)
        previous = frame
    return times


def shots(clip: Clip, shortest: float = SHORTEST) -> list[tuple[float, float]]:
    """From when to when each shot lasts; none is shorter than `shortest` unless the clip is."""
    starts = [0.0]
    for time in cuts(clip):
        if time - starts[-1] >= shortest and clip.duration - time >= shortest:
            starts.append(time)
    return list(zip(starts, [*starts[1:], clip.duration], strict=True))


def pieces(clip: Clip, seconds: float) -> list[tuple[float, float]]:
    """Equal lengths, and what remains; where no frame is shown for long there is no piece."""
    numbers = dict.fromkeys((clip.times // seconds).astype(np.int64).tolist())
    return [(number * seconds, min((number + 1) * seconds, max(clip.duration, 0.0))) for number in numbers]


def colour_change(first: RGB, second: RGB) -> float:
    """The share of the pixels that have other colours, wherever in the frame."""
    return float(np.abs(_histogram(first) - _histogram(second)).sum()) / 2


def _histogram(frame: RGB) -> NDArray[np.float64]:
    """The share of each of 64 colours.  (64,), sums to 1"""
    red, green, blue = (frame.reshape(-1, 3).astype(np.int64) * _COLOURS // 256).T
    counts = np.bincount((red * _COLOURS + green) * _COLOURS + blue, minlength=_COLOURS**3).astype(np.float64)
    return np.asarray(counts / counts.sum())
