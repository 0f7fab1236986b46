import io

import pytest

from capscore import progress
from capscore.progress import Progress, notice


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def run(clock, stream, seconds, steps):
    with Progress("features", steps, stream=stream) as bar:
        for _ in range(steps):
            clock[0] += seconds / steps
            bar.advance()
    return stream.getvalue()


def test_what_is_over_at_once_shows_nothing(clock):
    assert run(clock, Terminal(), seconds=1.5, steps=30) == ""
    assert run(clock, io.StringIO(), seconds=1.5, steps=30) == ""


def test_a_terminal_has_a_bar_with_rate_and_time_left(clock):
    shown = run(clock, Terminal(), seconds=100, steps=50).split("\r")
    assert "features [##########..........] 25/50 photos, 0.5/s, 0:50 left\x1b[K" in shown
    assert shown[-1].endswith("50/50 photos, 0.5/s\x1b[K\n")


def test_elsewhere_there_is_a_plain_line_now_and_then(clock):
    lines = run(clock, io.StringIO(), seconds=100, steps=50).splitlines()
    assert lines[0] == "features: 1/50 photos, 0.5/s, 1:38 left"
    assert lines[-1] == "features: 50/50 photos, 0.5/s"
    assert 5 <= len(lines) <= 9
    assert len(set(lines)) == len(lines)


def test_hours_are_written_out(clock):
    stream = io.StringIO()
    with Progress("training", 10_000, unit="step", stream=stream) as bar:
        clock[0] += 4
        bar.advance()
    assert "1/10000 steps, 0.25/s, 11:06:36 left" in stream.getvalue()


def test_a_message_does_not_tear_the_bar(clock):
    stream = Terminal()
    with Progress("x", 9, stream=stream) as bar:
        clock[0] += 5
        bar.advance()
        bar.message("bad.jpg: the file is empty")
    assert "\r\x1b[Kbad.jpg: the file is empty\n" in stream.getvalue()


def test_a_notice_is_a_line_of_its_own_also_where_a_bar_is_drawn(monkeypatch):
    plain, screen = io.StringIO(), Terminal()
    for stream in (plain, screen):
        monkeypatch.setattr("sys.stderr", stream)
        notice("waiting")
    assert (plain.getvalue(), screen.getvalue()) == ("waiting\n", "\r\x1b[Kwaiting\n")
