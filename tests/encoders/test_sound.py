"""The sound of generated clips."""

import numpy as np
import pytest
import torch
from PIL import Image

from support.clips import counted, write_clip
from support.stores import extract
from tellapart.data.examples import Example, Segment
from tellapart.encoders.loading import load
from tellapart.encoders.sound import BANDS, LogMel, log_mel
from tellapart.features.extracted import read_item
from tellapart.recipe import EncoderConfig

ENCODER = LogMel(EncoderConfig("log_mel", frames=4))
SECOND = np.arange(16000) / 16000


def tone(hertz, level=0.5, seconds=1):
    return level * np.sin(2 * np.pi * hertz * np.tile(SECOND, seconds))


def band_of(hertz):
    """The band whose middle is nearest, by the definition of the mel scale."""
    mels = [2595 * np.log10(1 + f / 700) for f in (50, 7600, hertz)]
    return round((mels[2] - mels[0]) / (mels[1] - mels[0]) * (BANDS + 1)) - 1


def clip(folder, sound, seconds=4):
    return write_clip(folder / "a.mp4", [counted(0)] * (25 * seconds), sound=sound)


def seen(file):
    return ENCODER(read_item(ENCODER, file).pixels[None])


@pytest.mark.parametrize("hertz", [200, 1000, 4000])
def test_a_tone_is_loudest_in_its_band(tmp_path, hertz):
    levels, loudness = log_mel(tone(hertz).astype(np.float32))
    assert abs(int(levels.mean(0).argmax()) - band_of(hertz)) <= 1
    assert loudness.mean() == pytest.approx(20 * np.log10(0.5 / 2**0.5), abs=0.05)
    features = seen(clip(tmp_path, tone(hertz, seconds=4)))
    assert features.counts.tolist() == [4]
    assert abs(int(features.grid[0, 1, :BANDS].argmax()) - band_of(hertz)) <= 1


def test_a_tenth_of_the_amplitude_is_20_decibels_less(tmp_path):
    sound = np.concatenate([tone(1000, 0.5, 2), tone(1000, 0.05, 2)])
    grid = seen(clip(tmp_path, sound)).grid[0]
    levels = -100 + 100 * grid[:, band_of(1000)]
    assert float(levels[0] - levels[3]) == pytest.approx(20, abs=1)


def test_silent_windows_do_not_exist(tmp_path):
    sound = np.concatenate([np.zeros(32000), tone(500, seconds=1), tone(3000, seconds=1)])
    features = seen(clip(tmp_path, sound))
    assert features.counts.tolist() == [2]
    bands = features.grid[0, :2, :BANDS].argmax(1).tolist()
    assert [abs(band - band_of(hertz)) <= 1 for band, hertz in zip(bands, (500, 3000), strict=True)] == [True, True]
    assert not features.grid[0, 2:].any()
    np.testing.assert_allclose(features.pooled[0], features.grid[0, :2].mean(0))


def test_a_part_of_a_clip_has_the_sound_of_its_time(tmp_path):
    file = clip(tmp_path, np.concatenate([tone(500, seconds=2), tone(3000, seconds=2)]))
    for start, hertz in ((0, 500), (2, 3000)):
        grid = seen(Segment(file, start + 0.1, start + 1.9).name).grid[0, :, :BANDS]
        assert all(abs(band - band_of(hertz)) <= 1 for band in grid.argmax(1).tolist())


def test_sound_that_nobody_can_decode_is_none(tmp_path):
    file = clip(tmp_path, tone(440), seconds=1)
    file.write_bytes(file.read_bytes().replace(b"mp4a", b"zzzz").replace(b"esds", b"zzzz"))
    assert seen(file).counts.tolist() == [0]


def test_silence_no_sound_and_photos_have_no_rows(tmp_path):
    Image.fromarray(counted(0)).save(tmp_path / "photo.png")
    for file in (
        clip(tmp_path, np.zeros(64000)),
        write_clip(tmp_path / "none.mp4", 10),
        tmp_path / "photo.png",
        Image.open(tmp_path / "photo.png"),
    ):
        assert seen(file).counts.tolist() == [0]


def test_a_store_knows_how_many_windows_a_clip_has(tmp_path):
    sound = np.concatenate([np.zeros(48000), tone(500)])
    examples = [Example(1, clip(tmp_path, sound)), Example(2, write_clip(tmp_path / "none.mp4", 10))]
    store = extract(examples, load(EncoderConfig("log_mel", frames=4), torch.device("cpu")), tmp_path / "f").store
    assert [store.count(example) for example in examples] == [1, 0]
