"""A long video as segments, each an item of its own: one caption for each, told apart from the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from tellapart.captioning.rerank import Collection
from tellapart.data.captions import Caption
from tellapart.data.examples import Segment, segment_of
from tellapart.data.items import Input
from tellapart.data.media import clips
from tellapart.desk.sources import CaptionSource
from tellapart.desk.subtitles import Cue
from tellapart.errors import BadPhoto

_WIDER = 3  # times that a segment is widened: by half of its length on either side, then by the whole, ...


def segmented(inputs: Sequence[Input], by: str | float) -> list[Input]:
    """Clips as their segments; photos, parts of clips and what cannot be opened as they are.

    by  `shots`, or the seconds of a segment
    """
    found: dict[str, Input] = {}
    for one in inputs:
        for name in _names(one.file, by):
            found.setdefault(name, replace(one, file=name))
    return list(found.values())


def _names(file: str, by: str | float) -> list[str]:
    if segment_of(file) is not None or not clips.is_clip(file):
        return [file]
    try:
        with clips.open_clip(file) as clip:
            times = clips.shots(clip) if isinstance(by, str) else clips.pieces(clip, by)
    except BadPhoto:  # it is named when it is captioned
        return [file]
    return [Segment(file, start, end).name for start, end in times]


Among = Callable[[Collection], CaptionSource]


def widened(source: CaptionSource, told_apart: Among, collection: Collection) -> CaptionSource:
    """Where no caption tells a segment apart from the others, it is described by more of its context in time (CDP).

    told_apart  the same source, among other items
    """

    def caption(files: Sequence[str]) -> Iterator[Caption]:
        for chosen in source.caption(files):
            yield _with_context(chosen, told_apart, collection)

    return replace(source, caption=caption, settings=f"{source.settings} widened {_WIDER}")


def cues(captions: Iterable[Caption]) -> Iterator[Cue]:
    """What subtitles show; a clip that is no segment is shown as a whole."""
    for one in captions:
        if (segment := segment_of(one.file)) is not None:
            yield Cue(segment.start, segment.end, one.text)
        else:
            with clips.open_clip(one.file) as clip:
                yield Cue(0.0, clip.duration, one.text)


def _with_context(chosen: Caption, told_apart: Among, collection: Collection) -> Caption:
    segment = segment_of(chosen.file)
    for times in range(1, _WIDER + 1):
        if segment is None or chosen.error or not chosen.look_alikes or chosen.gap > 0:
            break
        wide = _wider(segment, times / 2)
        others = [place for place, file in enumerate(collection.photos.files) if not _overlaps(wide, segment_of(file))]
        if not others:
            break
        (again,) = told_apart(collection.only(others)).caption([wide.name])
        if again.error:
            break
        if again.gap > chosen.gap:
            chosen = replace(again, file=chosen.file, sha256=chosen.sha256)
    return chosen


def _wider(segment: Segment, share: float) -> Segment:
    more = share * (segment.end - segment.start)
    return Segment(segment.file, max(segment.start - more, 0.0), segment.end + more)


def _overlaps(wide: Segment, other: Segment | None) -> bool:
    return other is not None and other.file == wide.file and other.start < wide.end and wide.start < other.end
