"""The table that a person reads."""

import pytest

from evaluation import world
from tellapart.evaluation import table
from tellapart.metrics.bootstrap import Difference


@pytest.fixture
def example(tmp_path, grid):
    """Captions that name thing and place, and those that name only the thing, of 110 photos."""
    data = world.make(tmp_path / "w", 110)
    told = [record["captions"][0].split() for record in world.records_of(data)]
    exact = {i: f"a {words[1]} on the {words[-1]}" for i, words in enumerate(told)}
    vague = {i: f"a {words[1]}" for i, words in enumerate(told)}
    return grid(data, {"exact": exact, "vague": vague}, retrievers=("word", "a/long.name[of] one"), human=True)


def test_the_measures_that_belong_together_stand_side_by_side(example):
    assert table.main_columns(example) == [
        "R@1[word]",
        "R@1[a/long.name[of] one]",
        "TT R@1",
        "Rep",
        "BadEnd",
        "Prec",
        "CIDEr-D",
        "UniCap",
        "AvgLen",
    ]
    every = table.all_columns(example)
    assert set(every) == example.scores["exact"].keys()
    assert len(every) == len(set(every))


def test_figures_are_below_each_other_and_marked_where_they_differ(example):
    differences = example.differences()
    text = table.table(example, differences, columns=["R@1[word]", "UniCap", "AvgLen", "Rep"], width=100)
    measures, by, exact, vague, human = text.split("\n")
    assert measures.split() == ["R@1", "UniCap", "AvgLen", "Rep"]
    assert by.split() == ["word"]
    assert exact.split() == ["exact", "100.0", "100.0", "5.0", "0.0"]
    scores = example.scores["vague"]
    assert vague.split() == ["vague", f"{100 * scores['R@1[word]']:.1f}-", "9.1-", "2.0*", "0.0"]
    assert human.split()[0] == "human"
    ends = [[i + 1 for i in range(len(line)) if line[i] == "." and line[i - 1].isdigit()] for line in (exact, vague)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("width", [40, 60, 100])
def test_no_line_is_wider_than_the_terminal(example, width):
    text = table.table(example, example.differences(), columns=table.all_columns(example), width=width)
    assert max(map(len, text.split("\n"))) <= width
    assert text.count("GEG-Min") == 2


@pytest.mark.parametrize(
    ("name", "value", "p", "expected"),
    [
        ("R@1[word]", 0.1, 0.01, "better"),
        ("R@1[word]", -0.1, 0.01, "worse"),
        ("R@1[word]", -0.1, 0.05, ""),
        ("Rep", 0.1, 0.01, "worse"),
        ("CIDErBtw", -0.1, 0.01, "better"),
        ("AvgLen", 1, 0.01, "other"),
    ],
)
def test_less_is_better_where_it_is(name, value, p, expected):
    assert table.verdict(name, Difference(value, value, value, p)) == expected


def test_figures_as_people_read_them():
    shown = {"R@1[r]": "12.3", "GEG-Avg[r]": "12.35", "CIDEr-D": "12.3", "AvgLen": "0.1", "Vocabulary": "0"}
    assert {name: table.shown(name, 0.12346) for name in shown} == shown


def test_the_notes_say_what_one_has_to_know(example):
    text = "\n".join(table.notes(example, table.main_columns(example)))
    assert "world: 110 photos" in text
    assert "worse, * other than exact" in text
    assert "no MiniLM-based retriever rewarded or chose" in text
    assert "human: in text the first reference" in text
