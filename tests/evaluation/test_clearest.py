"""Which photos a page may open with."""

from pathlib import Path

from tellapart.evaluation.cards import Card, Line, clarity, positions

PEOPLE = ["A blue train stops at the station.", "People wait for a train."]


def judged(ours, plain="a train on the tracks", *, alike=(), references=PEOPLE, places=(1, 4), gain=0.5):
    lines = [
        Line("plain", plain, figures={"TT": places[1]} if places else {}),
        Line("ours", ours, frozenset(alike), {"TT": places[0]} if places else {}),
    ]
    return clarity(Card(Path("x.png"), [], lines, references), "ours", "plain", by="TT", gain=gain)


CLEAR = judged("a blue train at the station")


def test_a_caption_that_differs_is_right_and_found_is_clear():
    assert CLEAR.is_clear
    assert judged("a blue train at the station", places=()).is_clear  # nobody read it


def test_what_a_page_must_not_open_with():
    same = judged("A train, on the tracks.")
    false = judged("a blue train with a helmet")
    known = judged("a blue train", alike=["blue"])  # said of a look-alike too
    nothing_new = judged("a train")
    lost = judged("a blue train at the station", places=(2, 1))
    worse = judged("a blue train at the station", gain=-0.1)
    unknown = judged("a blue train", references=[])
    for one in (same, false, known, nothing_new, lost, worse, unknown):
        assert not one.is_clear
        assert one < CLEAR
    assert positions([same, false, CLEAR, lost]) == [3, 2, 0, 1]


def test_among_clear_ones_those_come_first_that_tell_most_then_that_only_this_caption_finds_then_that_gain_most():
    fewer = judged("a blue train", gain=2)
    found_before = judged("a blue train at the station", places=(1, 1), gain=2)
    more = judged("a blue train at the station", gain=0.6)
    assert all(one.is_clear for one in (fewer, found_before, more))
    assert positions([fewer, found_before, CLEAR, more, CLEAR]) == [4, 3, 1, 0, 2]
