"""Objects that captions name, and those that a detector sees."""

import numpy as np
import pytest

from capscore.objects import CLASSES
from tellapart.metrics import objects

NUMBER = {name: number for number, name in enumerate(CLASSES)}


def measured(captions, weak, clear):
    """Captions as text, several of a photo between bars; classes by name."""
    words = [[text.split() for text in texts.split("|")] if texts else [] for texts in captions]
    classes = [[{NUMBER[name] for name in names} for names in photos] for photos in (weak, clear)]
    return objects.objects(words, *classes, "d")


def test_shares_are_of_all_words_and_of_all_objects():
    result = measured(
        ["a dog and a cat with a dog", "a man on a bike", "the sky"],
        weak=[["dog", "person"], ["person", "motorcycle"], ["kite"]],
        clear=[["dog", "person"], ["motorcycle"], ["kite"]],
    )
    assert result.names == ("ObjPrec[d]", "ObjRec[d]")
    assert result.rows.tolist() == [[2, 3, 1, 2], [2, 2, 1, 1], [0, 0, 0, 1]]
    assert result.corpus() == {"ObjPrec[d]": pytest.approx(4 / 5), "ObjRec[d]": pytest.approx(2 / 4)}


def test_a_word_of_two_meanings_names_what_is_seen_and_is_never_wrong():
    result = measured(["an orange on a desk"] * 2, weak=[["orange"], []], clear=[["orange"], []])
    assert result.rows.tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]


def test_several_captions_of_a_photo_are_read_one_by_one_and_count_once():
    result = measured(["a dog|a cat|a dog and a cat", ""], weak=[["dog"], ["dog"]], clear=[["dog"], ["dog"]])
    np.testing.assert_allclose(result.rows, [[2 / 3, 4 / 3, 2 / 3, 1], [0, 0, 0, 0]])
    assert result.corpus()["ObjRec[d]"] == pytest.approx(2 / 3)  # and not 1: no caption is helped by another


def test_nothing_seen_and_nothing_named_is_0_and_not_nan():
    assert measured(["the sky"], [[]], [[]]).corpus() == {"ObjPrec[d]": 0, "ObjRec[d]": 0}
    assert measured([], [], []).corpus() == {"ObjPrec[d]": 0, "ObjRec[d]": 0}


def test_names_parse_back():
    assert objects.parse("ObjPrec[yolox_nano]") == ("ObjPrec", "yolox_nano")
    assert objects.parse("ObjRec[a[b]]") == ("ObjRec", "a[b]")
    assert [objects.parse(name) for name in ("ObjPrec", "ObjPrec[]", "R@1[judge]", "Prec")] == [None] * 4
