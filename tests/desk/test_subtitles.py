"""Videos: segments that no caption tells apart are widened; subtitles that players show and people can read."""

import itertools
import re

import av
import numpy as np
import pytest

from support.clips import write_clip
from support.retrievers import bag_of_words_retriever, photos
from tellapart.captioning.pipeline import RerankConfig
from tellapart.captioning.rerank import Collection
from tellapart.data.captions import Candidate, Caption, Proposed
from tellapart.data.examples import segment_of
from tellapart.data.items import Input
from tellapart.desk.subtitles import Cue, Reading, cues, segmented, subtitles, timed, widened, write

READING = Reading()
TEXTS = [
    *("a man is playing a guitar on a stage", "a dog", "two women are cooking in a large kitchen", "a red car drives"),
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
    made = [Cue(4.0 * n, 4.0 * n + 4, text) for n, text in enumerate(TEXTS)] + [Cue(3725.25, 3730.5, "an hour later")]
    write(made, tmp_path / f"a{suffix}", READING)
    with av.open(str(tmp_path / f"a{suffix}")) as container:
        packets = [packet for packet in container.demux() if packet.size]
        times = [(float(p.pts * p.time_base), float((p.pts + p.duration) * p.time_base)) for p in packets]
        assert [" ".join(bytes(p).decode().split()) for p in packets] == [cue.text for cue in made]
    assert times == [(cue.start, cue.end) for cue in made]
    assert [block[1:3] for block in parsed((tmp_path / f"a{suffix}").read_text())] == times


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
    made = [Cue(0, 1, TEXTS[0]), Cue(1, 5, TEXTS[1])]
    first, second = timed(made, READING)
    assert first.end == pytest.approx(len(TEXTS[0]) / 17, abs=0.01)
    assert (second.start, second.end, first.text) == (first.end, 5, TEXTS[0])
    (cue,) = timed(made[:1], READING)  # what nobody could read is cut after a word
    assert cue.text == "a man is playing…"


def test_a_caption_is_no_markup_and_places_and_colours_nothing():
    text = subtitles([Cue(0, 9, "<b>a --> b</b> & c")], READING, vtt=True)
    assert text.count("-->") == 1
    assert not set("<&") & set(text)
    # Override tags of SubStation Alpha, which players of SRT follow too, and of MicroDVD.
    caption = r"{\an8\c&H00FF00&}a {\b1}dog{y:i}\Non {C:$0000FF}a {red: see} sofa{\an"
    text = subtitles([Cue(0, 9, caption)], READING, vtt=False)
    assert " ".join(text.split("\n", 2)[2].split()) == "a dog Non a red: see sofa an"


# Segments

FILES = [f"a.mp4#t={2 * n},{2 * n + 2}" for n in range(6)]


class Seconds:
    """Proposes captions that tell a segment apart once it is `enough` seconds long, and notes what it was asked."""

    identity = "seconds"

    def __init__(self, enough):
        self.enough, self.asked = enough, []

    def propose(self, files, scene):
        for file in files:
            self.asked.append((file, scene.collection.photos.files))
            long = segment_of(file).end - segment_of(file).start
            text = "told apart" if long >= self.enough else "same"
            yield Proposed(file, [Candidate(f"{text} for {long:g} seconds")], sha256=file)


@pytest.fixture
def collection(monkeypatch):
    """The segments that are captioned are described by "same" worse than all others; wider ones are told apart."""
    listener = bag_of_words_retriever(["the", "same", "told", "apart"])
    shown = dict.fromkeys(FILES, "the same") | {"a.mp4#t=0,2": "the", "a.mp4#t=4,6": "the"}
    there = Collection(listener, photos(listener, shown, FILES))
    monkeypatch.setattr(
        "tellapart.captioning.rerank.embed_photos",
        lambda retriever, files: photos(retriever, dict.fromkeys(files, "told apart"), list(files)),
    )
    return there


@pytest.mark.parametrize(("enough", "text"), [(4, "told apart for 4 sec"), (6, "told apart for 6 sec"), (99, "same")])
def test_a_segment_is_widened_until_it_is_told_apart_or_has_much_context(collection, enough, text):
    proposer = Seconds(enough)
    (found,) = widened(proposer, collection, RerankConfig()).caption(["a.mp4#t=4,6"])
    assert (found.file, found.sha256) == ("a.mp4#t=4,6", "a.mp4#t=4,6")
    assert found.text.startswith(text)
    assert len(proposer.asked) == {4: 2, 6: 3, 99: 4}[enough]
    for file, others in proposer.asked[1:]:  # none of the others is a part of what is described
        times = segment_of(file)
        assert others
        assert all(segment_of(other).end <= times.start or segment_of(other).start >= times.end for other in others)
    proposer = Seconds(99)  # a video begins where it would be widened beyond
    next(widened(proposer, collection, RerankConfig()).caption(["a.mp4#t=0,2"]))
    assert [segment_of(file).start for file, _ in proposer.asked] == [0, 0, 0, 0]


def test_photos_and_what_cannot_be_opened_stay_as_they_are(tmp_path):
    (tmp_path / "bad.mp4").write_bytes(b"nothing")
    clip = str(write_clip(tmp_path / "a.mp4", 50))
    inputs = [Input(clip, 5), Input(str(tmp_path / "bad.mp4")), Input("a.jpg"), Input(f"{clip}#t=1,2")]
    assert segmented(inputs, 1.5) == [Input(f"{clip}#t=0,1.5", 5), Input(f"{clip}#t=1.5,2", 5), *inputs[1:]]


def test_a_clip_as_a_whole_is_shown_from_its_beginning_to_its_end(tmp_path):
    clip = str(write_clip(tmp_path / "a.mp4", 50))
    shown = list(cues([Caption(clip, "a"), Caption(f"{clip}#t=0.5,1", "b")]))
    assert shown == [Cue(0.0, pytest.approx(2.0), "a"), Cue(0.5, 1.0, "b")]
