"""Subtitles: the times and texts that players find, and what people can read."""

import itertools
import re

import av
import numpy as np
import pytest

from tellapart.desk.subtitles import Cue, Reading, subtitles, timed, write

READING = Reading()
TEXTS = [
    "a man is playing a guitar on a stage",
    "a dog",
    "two women are cooking in a large kitchen",
    "a red car drives",
]


def parsed(text):
    """As the formats are defined: blocks between empty lines; the second line of a block has the times."""
    found = []
    for block in text.removeprefix("WEBVTT\n").strip().split("\n\n"):
        number, times, *lines = block.strip().split("\n")
        clock = re.fullmatch(r"(\d\d):(\d\d):(\d\d)[,.](\d{3}) --> (\d\d):(\d\d):(\d\d)[,.](\d{3})", times).groups()
        start, end = (3600 * int(h) + 60 * int(m) + int(s) + int(ms) / 1000 for h, m, s, ms in (clock[:4], clock[4:]))
        found.append((int(number), start, end, lines))
    return found


@pytest.mark.parametrize("suffix", [".srt", ".vtt"])
def test_ffmpeg_finds_the_same_times_and_texts(tmp_path, suffix):
    cues = [Cue(4.0 * n, 4.0 * n + 4, text) for n, text in enumerate(TEXTS)] + [Cue(3725.25, 3730.5, "an hour later")]
    write(cues, tmp_path / f"a{suffix}", READING)
    with av.open(str(tmp_path / f"a{suffix}")) as container:
        packets = [packet for packet in container.demux() if packet.size]
        found = [
            (float(p.pts * p.time_base), float((p.pts + p.duration) * p.time_base), bytes(p).decode()) for p in packets
        ]
    assert [(start, end) for start, end, _ in found] == [(cue.start, cue.end) for cue in cues]
    assert [" ".join(text.split()) for _, _, text in found] == [cue.text for cue in cues]
    assert [one[1:3] for one in parsed((tmp_path / f"a{suffix}").read_text())] == [one[:2] for one in found]


@pytest.mark.parametrize("speed", [10, 17])
@pytest.mark.parametrize("line", [12, 32])
def test_lines_are_short_and_can_be_read_in_time(speed, line):
    random = np.random.default_rng(0)
    for _ in range(50):
        edges = np.cumsum(random.uniform(0.3, 5, 8)).round(3)
        cues = [Cue(a, b, TEXTS[random.integers(4)]) for a, b in itertools.pairwise(edges)]
        shown = parsed(subtitles(cues, Reading(speed, line), vtt=True))
        for _, start, end, lines in shown:
            assert max(map(len, lines)) <= line
            assert len(" ".join(lines)) <= speed * (end - start + 0.002)
        times = [time for _, start, end, _ in shown for time in (start, end)]
        assert times == sorted(times)
        assert times[-1] <= edges[-1]


def test_a_long_caption_stays_while_the_next_can_wait():
    cues = [Cue(0, 1, TEXTS[0]), Cue(1, 5, TEXTS[1])]
    first, second = timed(cues, READING)
    assert first.end == pytest.approx(len(TEXTS[0]) / 17, abs=0.01)
    assert (second.start, second.end, first.text) == (first.end, 5, TEXTS[0])


def test_what_nobody_could_read_is_cut_after_a_word():
    (cue,) = timed([Cue(0, 1, TEXTS[0])], READING)
    assert cue.text == "a man is playing…"
    assert len(cue.text) <= 17


def test_a_caption_is_no_markup():
    text = subtitles([Cue(0, 9, "<b>a --> b</b> & c")], READING, vtt=True)
    assert text.count("-->") == 1
    assert not set("<&") & set(text)


def test_a_caption_places_and_colours_nothing():
    """Override tags of SubStation Alpha, which players of SRT follow too, and of MicroDVD."""
    text = subtitles(
        [Cue(0, 9, r"{\an8\c&H00FF00&}a {\b1}dog{y:i}\Non {C:$0000FF}a {red: see} sofa{\an")], READING, vtt=False
    )
    assert " ".join(text.split("\n", 2)[2].split()) == "a dog Non a red: see sofa an"
