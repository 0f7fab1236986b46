"""Segments of clips as items of their own."""

import pytest

from support.clips import number_in, write_clip
from tellapart.data.examples import Segment, file_of, segment_of
from tellapart.data.media import clips, photos


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.mp4#t=1.5,20", ("a.mp4", 1.5, 20.0)),
        ("a.mp4#t=3", ("a.mp4", 3.0, float("inf"))),
        ("a#t=1#t=5,2", ("a#t=1", 5.0, 5.0)),
        ("a.mp4", None),
        ("a.mp4#t=x", None),
        ("a.mp4#t=1e9,2", None),
    ],
)
def test_the_name_of_a_segment(name, found):
    assert segment_of(name) == (None if found is None else Segment(*found))
    written = Segment("a.mp4", 0, 12.3456).name
    assert (written, segment_of(written)) == ("a.mp4#t=0,12.346", ("a.mp4", 0, 12.346))


def test_a_segment_has_the_frames_that_are_shown_in_its_time(tmp_path):
    file = write_clip(tmp_path / "a.mp4", 60)  # 25 a second
    with clips.open_clip(Segment(file, 1, 2).name) as clip:
        assert [number_in(frame) for frame in clip.frames(range(len(clip)))] == list(range(25, 50))
        assert clip.duration == pytest.approx(1)
        assert [number_in(frame) for frame in clip.frames([clip.index_at(time) for time in (0, 0.5, 9)])] == [
            25,
            37,
            49,
        ]
        assert [number_in(frame) for frame in clip.frames([-50, 50])] == [25, 49]
    for moment, number in ((1.01, 25), (99, 59)):  # a moment is one frame
        with clips.open_clip(Segment(file, moment, moment).name) as clip:
            assert [number_in(frame) for frame in clip.frames(range(len(clip)))] == [number]


def test_segments_are_told_apart_by_their_times(tmp_path):
    file = write_clip(tmp_path / "a.mp4", 60)
    names = [str(file), Segment(file, 0, 1).name, Segment(file, 1, 2).name]
    assert len({photos.sha256(name) for name in names}) == 3
    before = photos.sha256(names[1])
    write_clip(file, 50)
    assert photos.sha256(names[1]) != before


def test_a_file_that_has_such_a_name_is_itself(tmp_path):
    file = write_clip(tmp_path / "a.mp4", 10).rename(tmp_path / "b#t=0,1")
    assert segment_of(file) is None
    assert file_of(file) == file
