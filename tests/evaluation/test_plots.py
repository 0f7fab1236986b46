"""Charts: well-formed, with every value where it belongs, and safe whatever things are called."""

import math
from xml.etree import ElementTree

import pytest

from tellapart.evaluation import plots
from tellapart.evaluation.plots import Mark, Series

SVG = "{http://www.w3.org/2000/svg}"


def parse(chart):
    return ElementTree.fromstring(chart)


def points(chart):
    """title -> place"""
    return {
        circle.find(f"{SVG}title").text: (float(circle.get("cx")), float(circle.get("cy")))
        for circle in parse(chart).iter(f"{SVG}circle")
    }


def ticks(chart):
    """The numbers at the left, and how far down they stand."""
    return {
        float(text.text.replace(",", "")): float(text.get("y")) - 4
        for text in parse(chart).iter(f"{SVG}text")
        if text.get("text-anchor") == "end"
    }


def test_points_lie_where_the_axis_says():
    chart = plots.lines("loss", [Series("a", [(0, 2.0), (100, 4.0), (200, 3.0)], 0)], x="step")
    found, axis = points(chart), ticks(chart)
    assert found.keys() == {"a, step 0: 2", "a, step 100: 4", "a, step 200: 3"}
    for title, value in (("a, step 0: 2", 2.0), ("a, step 100: 4", 4.0), ("a, step 200: 3", 3.0)):
        assert found[title][1] == pytest.approx(axis[value], abs=0.1)
    first, middle, last = (found[title][0] for title in ("a, step 0: 2", "a, step 100: 4", "a, step 200: 3"))
    assert middle == pytest.approx((first + last) / 2, abs=0.1)


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (2.6, 3.4), (-0.07, 0.02), (0.0, 1e-5), (1e5, 3e5), (99.9, 100.1)]
)
def test_axes_have_a_few_round_numbers_around_all_values(low, high):
    chart = plots.lines("m", [Series("a", [(0, low), (1, high)], 0)], x="step")
    (bottom, top), axis = sorted(points(chart).values(), key=lambda place: -place[1]), ticks(chart)
    assert 3 <= len(axis) <= 8
    assert max(axis.values()) >= bottom[1] - 0.1
    assert min(axis.values()) <= top[1] + 0.1


def test_values_that_are_all_alike_have_a_place():
    ((_, v),) = points(plots.lines("m", [Series("a", [(5, 3.0)], 0)], x="step")).values()
    assert math.isfinite(v)


def test_curves_over_words_have_the_words_below_and_zero_at_the_foot():
    chart = plots.lines("m", [Series("LD", [(0, 5.0), (1, 6.0)], 0)], x="word", words=["a", "<dog>"])
    texts = [text.text for text in parse(chart).iter(f"{SVG}text")]
    assert "<dog>" in texts
    assert points(chart).keys() == {"LD, a: 5", "LD, <dog>: 6"}
    assert "0" in texts


def test_a_mark_stands_at_its_value():
    chart = plots.lines("m", [Series("a", [(0, 1.0), (10, 2.0)], 0)], x="w", marks=[Mark(10.0, "here")])
    (line,) = [line for line in parse(chart).iter(f"{SVG}line") if line.get("class") == "mark"]
    assert float(line.get("x1")) == pytest.approx(points(chart)["a, w 10: 2"][0], abs=0.1)


def test_series_after_the_last_colour_are_dashed():
    many = [Series(f"run {n}", [(0, n), (1, n)], n) for n in range(plots.COLOURS + 1)]
    kinds = [line.get("class") for line in parse(plots.lines("m", many, x="step")).iter(f"{SVG}polyline")]
    assert len(set(kinds)) == len(many)
    assert kinds[-1] == "c0 dashed"


def test_long_names_go_to_the_next_row_of_the_legend():
    long = [Series("a name of some thirty-odd letters", [(0, n), (1, 1)], n) for n in range(3)]
    rows = {
        text.get("y") for text in parse(plots.lines("m", long, x="s")).iter(f"{SVG}text") if text.text == long[0].name
    }
    assert len(rows) == 3


def test_a_file_has_its_own_style_and_the_names_that_were_given():
    names = ['<script>alert("x")</script>', "a&b"]
    series = [Series(name, [(0.0, 1.0), (2.0, 3.0)], n) for n, name in enumerate(names)]
    file = plots.standalone(plots.lines(names[0], series, x="<q>"))
    tree = ElementTree.fromstring(file)
    assert tree.find(f"{SVG}style") is not None
    assert not list(tree.iter(f"{SVG}script"))
    assert {title.text for title in tree.iter(f"{SVG}title")} >= {"a&b, <q> 0: 1", f"{names[0]}, <q> 2: 3"}
    assert "prefers-color-scheme: dark" in file.decode()
