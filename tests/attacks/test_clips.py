"""Broken and hostile clips: one sentence each, or the right frames."""

import pytest

from attacks import clips as made
from tellapart.data.media import clips, photos
from tellapart.data.media.clips import open_clip
from tellapart.errors import BadPhoto


@pytest.mark.parametrize("make", made.REFUSED, ids=lambda make: make.__name__)
def test_a_clip_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, capfd, make):
    file = make(tmp_path)
    with pytest.raises(BadPhoto) as refused, open_clip(file) as clip:
        clip.frames(clip.evenly(3))
    assert refused.value.file == str(file)
    assert 5 < len(refused.value.reason) < 120
    assert "\n" not in refused.value.reason
    assert capfd.readouterr() == ("", "")  # FFmpeg is talkative


def reason(file):
    with pytest.raises(BadPhoto) as refused, open_clip(file) as clip:
        clip.frames([0])
    return refused.value.reason


def test_the_reason_says_what_is_wrong(tmp_path):
    assert reason(made.audio_only(tmp_path)) == "has sound but no video"
    assert reason(made.zero_frames(tmp_path)) == "has no frames"
    for make in (made.truncated, made.truncated_mkv, made.truncated_webm, made.truncated_avi):
        assert reason(make(tmp_path)) == "is cut short: its last frames are not in the file"
    assert reason(made.huge(tmp_path)) == "has frames of no size, or of more than 33 megapixels"
    assert reason(tmp_path) == "is a folder, not a photo"
    assert reason(tmp_path / "gone.mp4") == "there is no such file"


@pytest.mark.parametrize(("make", "length"), made.TAKEN.items(), ids=lambda made: getattr(made, "__name__", ""))
def test_frames_are_counted_in_the_file_whatever_its_header_says(tmp_path, make, length):
    with open_clip(make(tmp_path)) as clip:
        assert (len(clip), clip.duration) == (length[0], pytest.approx(length[1], abs=0.05))
        assert len(clip.frames(clip.evenly(8))) == 8


def test_frames_larger_than_all_the_memory_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(clips, "MAX_PIXELS", 128 * 48 - 1)
    assert "pixels" in reason(made.one_frame(tmp_path))


def test_the_memory_for_a_decoder_is_given_back(tmp_path):
    for make in (made.one_frame, made.garbage_frames):
        try:
            with open_clip(make(tmp_path)):
                assert photos._decoding._used == 128 * 48 * clips._DECODER_BYTES
        except BadPhoto:
            pass
        assert photos._decoding._used == 0
