"""Shots of generated videos."""

import numpy as np
import pytest

from support.clips import write_clip
from tellapart.data.media.clips import cuts, open_clip, pieces, shots


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
