"""Captions of a video's segments as subtitles, SubRip (.srt) or WebVTT (.vtt), shown long enough to be read."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capscore import files

SUFFIXES = (".srt", ".vtt")
_GAP = 0.001  # seconds; times are written in milliseconds


@dataclass(frozen=True)
class Reading:
    """What subtitlers expect a reader to manage."""

    speed: float = 17.0  # characters a second
    line: int = 32  # characters


@dataclass(frozen=True)
class Cue:
    start: float  # seconds
    end: float
    text: str


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
