"""Segments that no caption tells apart are widened in time."""

import numpy as np
import pytest

from support.clips import write_clip
from tellapart.data.captions import Caption
from tellapart.data.examples import segment_of
from tellapart.data.items import Input
from tellapart.desk.segments import cues, segmented, widened
from tellapart.desk.sources import CaptionSource
from tellapart.desk.subtitles import Cue


class Segments:
    """A collection by its files alone."""

    def __init__(self, files):
        self.files, self.photos = files, self

    def only(self, places):
        return Segments([self.files[place] for place in places])


FILES = [f"a.mp4#t={2 * n},{2 * n + 2}" for n in range(6)]


def source(collection, asked, enough):
    """Tells a segment apart once it is `enough` seconds long."""

    def caption(files):
        for file in files:
            asked.append((file, collection.files))
            long = segment_of(file).end - segment_of(file).start
            yield Caption(file, f"{long:g} seconds", gap=long - enough + 0.1, look_alikes=("x",), sha256=file)

    return CaptionSource(caption, "settings")


@pytest.mark.parametrize(("enough", "text"), [(2, "2 seconds"), (4, "4 seconds"), (6, "6 seconds"), (99, "8 seconds")])
def test_a_segment_is_widened_until_it_is_told_apart_or_has_much_context(enough, text):
    asked = []
    wide = widened(
        source(Segments(FILES), asked, enough), lambda others: source(others, asked, enough), Segments(FILES)
    )
    (found,) = wide.caption(["a.mp4#t=4,6"])
    assert (found.file, found.text, found.sha256) == ("a.mp4#t=4,6", text, "a.mp4#t=4,6")
    for file, others in asked[1:]:  # none of the others is a part of what is described
        times = segment_of(file)
        assert others
        assert all(segment_of(other).end <= times.start or segment_of(other).start >= times.end for other in others)


def test_a_video_ends_where_it_begins_to_be_widened_beyond(tmp_path):
    asked = []
    wide = widened(source(Segments(FILES), asked, 3.5), lambda others: source(others, asked, 3.5), Segments(FILES))
    next(wide.caption(["a.mp4#t=0,2"]))
    assert [segment_of(file).start for file, _ in asked] == [0, 0, 0]


def test_photos_and_what_cannot_be_opened_stay_as_they_are(tmp_path):
    (tmp_path / "bad.mp4").write_bytes(b"nothing")
    clip = str(write_clip(tmp_path / "a.mp4", 50))
    inputs = [Input(clip, 5), Input(str(tmp_path / "bad.mp4")), Input("a.jpg"), Input(f"{clip}#t=1,2")]
    assert segmented(inputs, 1.5) == [
        Input(f"{clip}#t=0,1.5", 5),
        Input(f"{clip}#t=1.5,2", 5),
        *inputs[1:],
    ]


def test_a_clip_as_a_whole_is_shown_from_its_beginning_to_its_end(tmp_path):
    clip = str(write_clip(tmp_path / "a.mp4", 50))
    assert list(cues([Caption(clip, "a"), Caption(f"{clip}#t=0.5,1", "b")])) == [
        Cue(0.0, pytest.approx(np.float64(2.0)), "a"),
        Cue(0.5, 1.0, "b"),
    ]
