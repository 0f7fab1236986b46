"""Clips: exact frames, by number and by time, whatever the container and the frame rate; segments of clips as items of
their own, and shots of generated videos."""

import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from support.clips import counted, number_in, rotate, write_clip
from tellapart.data.examples import Segment, file_of, segment_of
from tellapart.data.media import clips, photos
from tellapart.data.media.clips import cuts, is_clip, open_clip, pieces, shots
from tellapart.errors import BadPhoto

UNEVEN = np.cumsum([0.04, 0.04, 0.5, 0.02, 1.7, 0.04, 0.04, 0.9, 0.02, 0.3] * 4)
UNEVEN = (UNEVEN - UNEVEN[0]).tolist()


def numbers(frames):
    return [number_in(frame) for frame in frames]


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.webm", "libvpx-vp9"), ("a.ts", "libx264"), ("a.mov", "mpeg4")],
)
def test_every_frame_is_found_by_its_number_in_any_order(tmp_path, name, codec):
    with open_clip(write_clip(tmp_path / name, 60, codec=codec)) as clip:
        assert len(clip) == 60
        assert clip.duration == pytest.approx(60 / 25, abs=0.041)
        assert numbers(clip.frames(range(60))) == list(range(60))
        assert numbers(clip.frames([41, 3, 3, 59, 12, 11])) == [41, 3, 3, 59, 12, 11]


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_at_a_variable_rate_the_frame_at_a_time_is_the_one_that_is_shown_then(tmp_path, name):
    with open_clip(write_clip(tmp_path / name, 40, UNEVEN)) as clip:
        np.testing.assert_allclose(clip.times, UNEVEN, atol=1e-3)
        wanted = np.random.default_rng(0).uniform(0, UNEVEN[-1], 50)
        shown = [max(number for number, time in enumerate(UNEVEN) if time <= moment) for moment in wanted]
        assert numbers(clip.frames([clip.index_at(moment) for moment in wanted])) == shown


def test_frames_evenly_in_time_are_in_the_middle_of_equal_parts(tmp_path):
    with open_clip(write_clip(tmp_path / "a.mp4", 40)) as clip:
        assert (clip.evenly(4), clip.evenly(1)) == ([5, 15, 25, 35], [20])
        assert numbers(clip.frames([-5, 99])) == [0, 39]


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_a_rotated_clip_is_upright(tmp_path, degrees):
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[:16, :32] = 255  # top left
    with open_clip(rotate(write_clip(tmp_path / "a.mp4", [pixels] * 3), degrees)) as clip:
        (frame,) = clip.frames([1])
        assert frame.shape == ((32, 64, 3) if degrees % 180 == 0 else (64, 32, 3)) == (*clip.size[::-1], 3)
    height, width = frame.shape[:2]
    corners = [frame[y, x].mean() > 128 for y in (4, height - 5) for x in (4, width - 5)]
    place = {0: 0, 90: 1, 180: 3, 270: 2}[degrees]  # clockwise: top left, top right, bottom right, bottom left
    assert corners == [corner == place for corner in range(4)]


@pytest.mark.parametrize(("name", "more"), [("a.ts", {}), ("a.mkv", {"format": "matroska", "options": {"live": "1"}})])
def test_a_clip_that_is_cut_short_is_as_long_as_what_is_left_of_it(tmp_path, name, more):
    """Also a recording that does not say how long it is."""
    file = write_clip(tmp_path / name, 60, **more)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with open_clip(file) as clip:
        assert 10 <= len(clip) <= 45
        assert clip.duration <= 45 / 25
        assert numbers(clip.frames(range(len(clip) - 3))) == list(range(len(clip) - 3))


def test_a_frame_costs_the_way_from_its_key_frame_and_no_more(tmp_path, monkeypatch):
    decoded = []
    following = clips._Video._next
    monkeypatch.setattr(clips._Video, "_next", lambda self: decoded.append(1) or following(self))
    file = write_clip(tmp_path / "a.mp4", 600, gop=20)
    with av.open(str(file)) as bare:
        keys = [number for number, frame in enumerate(bare.decode(video=0)) if frame.key_frame]
    with open_clip(file) as clip:
        clip.frames([599])
        assert len(decoded) == 1 + 599 - keys[-1] + 1  # the first one of all, when the clip was opened
        decoded.clear()
        clip.frames([keys[7] + 5, keys[7] + 2])  # one group: its frames are decoded once
        assert len(decoded) == 6


def test_a_photo_is_a_clip_of_one_frame(tmp_path):
    Image.fromarray(counted(77)).save(tmp_path / "a.png")
    with open_clip(tmp_path / "a.png") as clip:
        assert (len(clip), clip.duration, clip.size) == (1, 0.0, (128, 48))
        assert numbers(clip.frames([-5, 0, 5])) == [77, 77, 77]


def test_what_a_file_is_decides_not_its_name(tmp_path):
    video = write_clip(tmp_path / "a.mp4", 3).rename(tmp_path / "a.jpg")
    Image.fromarray(counted(7)).save(tmp_path / "b.png")
    photo = (tmp_path / "b.png").rename(tmp_path / "b.mp4")
    assert is_clip(video)
    assert not is_clip(photo)
    with open_clip(photo) as clip, open_clip(video) as other:
        assert (len(clip), len(other)) == (1, 3)


def test_large_frames_are_averaged_down(tmp_path, monkeypatch):
    monkeypatch.setattr(clips, "KEPT_PIXELS", 64 * 24)
    with open_clip(write_clip(tmp_path / "a.mp4", 3)) as clip:
        assert clip.frames([1])[0].shape == (24, 64, 3)


def test_without_pyav_a_clip_is_refused_with_what_to_install(tmp_path, monkeypatch):
    file = write_clip(tmp_path / "a.mp4", 3)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(BadPhoto, match=r"tellapart\[video\]"), open_clip(file):
        pass


def test_frames_are_made_without_threads(tmp_path):
    """PyAV's own way to convert a frame starts threads for each one, and has been seen to deadlock."""
    file = write_clip(tmp_path / "a.mp4", [np.zeros((480, 640, 3), np.uint8)] * 40)
    before = len(list(Path("/proc/self/task").iterdir()))
    with open_clip(file) as clip:
        frames = [frame for _, frame in clip.each(range(40))] + [frame for _, frame in clip.small(48)]
        assert len(list(Path("/proc/self/task").iterdir())) <= before
    assert {frame.shape for frame in frames} == {(480, 640, 3), (48, 48, 3)}


_PEAK = """
import resource, sys
from tellapart.data.media.clips import open_clip
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open_clip(sys.argv[1]) as clip:
    clip.frames(clip.evenly(8))
print(len(clip), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_length_of_a_video(tmp_path):
    peaks = []
    for length in (250, 15_000):  # ten minutes
        file = write_clip(tmp_path / f"{length}.mkv", [counted(0)] * length, codec="mpeg4", gop=250, b_frames=0)
        answer = subprocess.run([sys.executable, "-c", _PEAK, file], capture_output=True, text=True, check=True)
        count, peak = map(int, answer.stdout.split())
        assert count == length
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 8 << 10  # KB; all frames would be 270 MB


# Segments


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
    with open_clip(Segment(file, 1, 2).name) as clip:
        assert [number_in(frame) for frame in clip.frames(range(len(clip)))] == list(range(25, 50))
        assert clip.duration == pytest.approx(1)
        assert [number_in(frame) for frame in clip.frames([clip.index_at(time) for time in (0, 0.5, 9)])] == [
            25,
            37,
            49,
        ]
        assert [number_in(frame) for frame in clip.frames([-50, 50])] == [25, 49]
    for moment, number in ((1.01, 25), (99, 59)):  # a moment is one frame
        with open_clip(Segment(file, moment, moment).name) as clip:
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


# Shots


def scene(seed, count, noise=10):
    """A coloured pattern that moves a little, with noise."""
    random = np.random.default_rng(seed)
    colours = random.integers(0, 256, (4, 3))
    base = np.kron(colours.reshape(2, 2, 3), np.ones((32, 32, 1)))
    for number in range(count):
        shaken = np.roll(base, number % 5, axis=1) + random.normal(0, noise, base.shape)
        yield shaken.clip(0, 255).astype(np.uint8)


@pytest.fixture
def video(tmp_path):
    """Shots of 75, 100, 10 and 65 frames: cuts at 3, 7 and 7.4 seconds of 10."""
    frames = [frame for seed, count in enumerate((75, 100, 10, 65)) for frame in scene(seed, count)]
    return write_clip(tmp_path / "a.mp4", frames)


def test_cuts_are_found_where_they_are_and_nowhere_else_and_no_shot_is_too_short_to_be_described(video):
    with open_clip(video) as clip:
        assert cuts(clip) == pytest.approx([3.0, 7.0, 7.4], abs=1e-3)
        assert np.array(pieces(clip, 4)) == pytest.approx(np.array([(0, 4), (4, 8), (8, 10)]))
        assert np.array(shots(clip)) == pytest.approx(np.array([(0, 3), (3, 7), (7, 10)]), abs=1e-3)
        assert len(shots(clip, shortest=0.1)) == 4


def test_a_video_that_gets_dark_slowly_has_one_shot(tmp_path):
    frames = [np.full((64, 64, 3), 250 - number, np.uint8) for number in range(200)]
    with open_clip(write_clip(tmp_path / "a.mp4", frames)) as clip:
        assert len(shots(clip, shortest=0.1)) <= 200 // 64 + 1  # at most where a whole picture changes its bin
        assert len(shots(clip)) <= 4


def test_a_gap_of_years_between_two_frames_makes_no_pieces(tmp_path):
    frames = list(scene(0, 3))
    with open_clip(write_clip(tmp_path / "a.mkv", frames, [0, 0.04, 2_000_000], codec="ffv1")) as clip:
        assert clip.duration > 1_900_000
        assert len(pieces(clip, 1)) == 2
