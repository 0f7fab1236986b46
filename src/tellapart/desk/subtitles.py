"""Long videos: segments, each an item with a caption of its own, and their captions as subtitles (.srt, .vtt)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from capscore import files
from tellapart.captioning.pipeline import CaptionSource, Proposer, RerankConfig, tell_apart
from tellapart.captioning.rerank import Collection
from tellapart.data.captions import Caption
from tellapart.data.examples import Segment, segment_of
from tellapart.data.items import Input
from tellapart.data.media import clips
from tellapart.errors import BadPhoto

SUFFIXES = (".srt", ".vtt")
_WIDER = 3  # times that a segment is widened: by half of its length on either side, then by the whole, ...
_GAP = 0.001  # seconds; times are written in milliseconds


def segmented(inputs: Sequence[Input], by: str | float) -> list[Input]:
    """Clips as their segments; photos, parts of clips and what cannot be opened as they are.

    by  `shots`, or the seconds of a segment
    """
    segments: dict[str, Input] = {}
    for item in inputs:
        for name in _names(item.file, by):
            segments.setdefault(name, replace(item, file=name))
    return list(segments.values())


def _names(file: str, by: str | float) -> list[str]:
    if segment_of(file) is not None or not clips.is_clip(file):
        return [file]
    try:
        with clips.open_clip(file) as clip:
            times = clips.shots(clip) if isinstance(by, str) else clips.pieces(clip, by)
    except BadPhoto:  # it is named when it is captioned
        return [file]
    return [Segment(file, start, end).name for start, end in times]


def widened(proposer: Proposer, collection: Collection, config: RerankConfig) -> CaptionSource:
    """Captions of segments; one that no caption tells apart is described by more of its context in time (CDP)."""
    source = tell_apart(proposer, collection, config)

    def caption(photos: Iterable[Any]) -> Iterator[Caption]:
        for chosen in source.caption(photos):
            yield _with_context(chosen, proposer, collection, config)

    return replace(source, caption=caption, identity=f"{source.identity} widened {_WIDER}")


def _with_context(chosen: Caption, proposer: Proposer, collection: Collection, config: RerankConfig) -> Caption:
    segment = segment_of(chosen.file)
    for times in range(1, _WIDER + 1):
        if segment is None or chosen.error or not chosen.look_alikes or chosen.gap > 0:
            break
        more = times / 2 * (segment.end - segment.start)
        wide = Segment(segment.file, max(segment.start - more, 0.0), segment.end + more)
        others = [place for place, file in enumerate(collection.photos.files) if not _overlaps(wide, segment_of(file))]
        if not others:
            break
        (again,) = tell_apart(proposer, collection.only(others), config).caption([wide.name])
        if again.error:
            break
        if again.gap > chosen.gap:
            chosen = replace(again, file=chosen.file, sha256=chosen.sha256)
    return chosen


def _overlaps(wide: Segment, other: Segment | None) -> bool:
    return other is not None and other.file == wide.file and other.start < wide.end and wide.start < other.end


# Subtitles


@dataclass(frozen=True)
class Reading:
    """Limits that subtitlers keep to for readers."""

    speed: float = 17.0  # characters a second
    line: int = 32  # characters


@dataclass(frozen=True)
class Cue:
    start: float  # seconds
    end: float
    text: str


def cues(captions: Iterable[Caption]) -> Iterator[Cue]:
    """Captions with their times; a clip that is no segment is shown as a whole."""
    for caption in captions:
        if (segment := segment_of(caption.file)) is not None:
            yield Cue(segment.start, segment.end, caption.text)
        else:
            with clips.open_clip(caption.file) as clip:
                yield Cue(0.0, clip.duration, caption.text)


def timed(cues: Sequence[Cue], reading: Reading) -> list[Cue]:
    """Cues in time order that can be read while they are shown.

    One that is too long for its segment stays while the next can wait, which still has to be read before its own
    segment ends; what cannot be read even so is cut after a whole word.
    """
    shown: list[Cue] = []
    for number, cue in enumerate(cues):
        start = max(cue.start, shown[-1].end) if shown else cue.start
        needed = len(cue.text) / reading.speed
        latest = cue.end
        if number + 1 < len(cues):  # what the next one can spare
            following = cues[number + 1]
            if following.start - cue.end < _GAP:
                latest = max(cue.end, following.end - len(following.text) / reading.speed)
            else:
                latest = following.start
        end = max(cue.end, min(start + needed + _GAP, latest))
        if text := _readable(cue.text, int((end - start) * reading.speed)):
            shown.append(Cue(start, end, text))
    return shown


def _readable(text: str, most: int) -> str:
    """At most so many characters: whole words, and dots where others are missing."""
    if len(text) <= most:
        return text
    words = text.split()
    while words and len(" ".join(words)) + 1 > most:
        words.pop()
    return " ".join(words) + "…" if words else ""


def subtitles(cues: Sequence[Cue], reading: Reading, *, vtt: bool) -> str:
    """The text of a file."""
    parts = ["WEBVTT\n"] if vtt else []
    for number, cue in enumerate(timed(cues, reading), start=1):
        lines = textwrap.wrap(_plain(cue.text), reading.line)
        times = f"{_clock(cue.start, vtt)} --> {_clock(cue.end, vtt)}"
        parts.append("\n".join([str(number), times, *lines]) + "\n")
    return "\n".join(parts)


def write(cues: Sequence[Cue], path: Path, reading: Reading) -> None:
    files.replace(path, subtitles(cues, reading, vtt=path.suffix == ".vtt").encode(), by_user=True)


def _plain(text: str) -> str:
    """Without what players take for markup, such as {\\an8} and {y:i}, or for the times of a cue."""
    return re.sub(r"[<>&{}\\]+", " ", re.sub(r"\{(?:\\|[A-Za-z]:)[^{}]*\}", " ", text))


def _clock(seconds: float, vtt: bool) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{'.' if vtt else ','}{rest % 1000:03}"
