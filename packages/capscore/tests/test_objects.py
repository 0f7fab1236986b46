"""Objects that captions name, and those that a detector sees."""

from itertools import pairwise

import numpy as np
import pytest

from capscore import bootstrap, objects
from capscore.object_words import CLASSES, MAYBE, MODIFIERS, NOTHING, SURE
from capscore.wording import chair

NUMBER = {name: number for number, name in enumerate(CLASSES)}


def named(text):
    """The classes of a caption's object words; those that it may not mean in brackets."""
    found = [("|".join(CLASSES[number] for number in one.classes), one.sure) for one in objects.mentions(text.split())]
    return [name if sure else f"({name})" for name, sure in found]


def test_the_classes_are_those_of_coco_in_its_order():
    """COCO's own numbers go from 1 to 90 and leave out ten; places as in its annotations."""
    assert len(CLASSES) == len(set(CLASSES)) == 80
    places = {"person": 0, "stop sign": 11, "bench": 13, "giraffe": 23, "backpack": 24, "bottle": 39, "wine glass": 40}
    places |= {"couch": 57, "dining table": 60, "toilet": 61, "tv": 62, "book": 73, "toothbrush": 79}
    assert {name: NUMBER[name] for name in places} == places


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_named_by_its_own_name_and_its_plural(name):
    one = name if name != "skis" else "pair of skis"
    found = named(f"a {one} in the photo")
    # an orange may be a colour, and a tie or a mouse or a bat is what it is called
    assert found == [f"({name})" if name == "orange" else name]
    last = {"person": "people", "knife": "knives", "mouse": "computer mice", "scissors": "scissors", "skis": "skis"}
    same = {"sheep": "sheep", "broccoli": "broccoli"}
    many = (last | same).get(name, objects.plural(name))
    assert named(f"two {many}") == [name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # several words before one
        ("a hot dog and a dog", ["hot dog", "dog"]),
        ("a teddy bear beside a brown bear", ["teddy bear", "bear"]),
        ("a stuffed bear", ["teddy bear"]),
        ("a wine glass and a glass of wine", ["wine glass", "wine glass"]),
        ("a man holding a baseball bat", ["person", "baseball bat"]),
        ("a fire truck by a fire hydrant", ["truck", "fire hydrant"]),
        ("a cell phone on a dining room table", ["cell phone", "dining table"]),
        ("a double-decker bus", ["bus"]),
        ("a train car", ["train"]),
        ("a toilet bowl", ["toilet"]),
        ("a laptop computer", ["laptop"]),
        ("a pair of scissors", ["scissors"]),
        # people
        ("a surfer and two skiers", ["person", "person"]),
        ("women with children", ["person", "person"]),
        ("a couple of dogs", ["dog"]),
        ("a couple on a couch", ["person", "couch"]),
        ("a group of people", ["person"]),
        ("a baby with a baby elephant", ["person", "elephant"]),
        ("a man 's hand", ["person"]),
        ("a passenger train with passengers", ["train", "person"]),
        ("a baseball player", ["person"]),
        ("a dvd player", []),
        # two meanings
        ("a bike", ["bicycle|motorcycle"]),
        ("a dirt bike and a mountain bike", ["motorcycle", "bicycle"]),
        ("a motorbike", ["motorcycle"]),
        ("a bike rack", []),
        ("a mouse and a keyboard", ["mouse", "keyboard"]),
        ("mickey mouse", []),
        ("swinging a bat", ["baseball bat"]),
        ("a player at bat", ["person"]),
        ("an orange cat", ["(orange)", "cat"]),
        ("a bowl of oranges", ["bowl", "orange"]),
        ("a man with glasses", ["person"]),
        ("glasses of water", ["(cup|wine glass)"]),
        ("a glass door", []),
        ("playing baseball", ["(sports ball)"]),
        ("a sofa", ["couch"]),
        ("a suit and tie", ["tie"]),
        ("a tie dye shirt", []),
        ("a computer", ["laptop|tv"]),
        # not the thing itself
        ("people at the train station", ["person"]),
        ("a bus stop", []),
        ("flowers in a flower bed", []),
        ("a roll of toilet paper", []),
        ("a bird feeder", []),
        ("a bird 's eye view", []),
        ("an apple laptop", ["laptop"]),
        ("a jet ski", []),
        ("people on a ski lift", ["person"]),
        ("a dog bowl", ["bowl"]),
        ("a cutting board", []),
        ("a carrot cake", ["cake"]),
        ("the street in the rain", []),
        ("", []),
    ],
)
def test_words_mean_what_they_mean_in_captions(text, expected):
    assert named(text) == expected


def test_no_term_has_two_meanings_and_every_list_is_of_known_classes():
    assert objects._lexicon()  # raises where a term is in two lists
    assert set(SURE) >= set(CLASSES)
    assert {name for names in (*SURE, *MAYBE) for name in names.split("|")} == set(CLASSES)
    for text in (*SURE.values(), *MAYBE.values(), NOTHING, *MODIFIERS.values()):
        assert text == text.lower()
        assert not any(one == other == "," for one, other in pairwise(text))


def statistics(captions, weak, clear):
    """Captions as text, several of a photo between bars; classes by name."""
    words = [[text.split() for text in texts.split("|")] if texts else [] for texts in captions]
    seen = [[{NUMBER[name] for name in names} for names in photos] for photos in (weak, clear)]
    return objects.objects(words, *seen, "d")


def test_shares_are_of_all_words_and_of_all_objects():
    found = statistics(
        ["a dog and a cat with a dog", "a man on a bike", "the sky"],
        weak=[["dog", "person"], ["person", "motorcycle"], ["kite"]],
        clear=[["dog", "person"], ["motorcycle"], ["kite"]],
    )
    assert found.names == ("ObjPrec[d]", "ObjRec[d]")
    assert found.rows.tolist() == [[2, 3, 1, 2], [2, 2, 1, 1], [0, 0, 0, 1]]
    assert found.corpus() == {"ObjPrec[d]": pytest.approx(4 / 5), "ObjRec[d]": pytest.approx(2 / 4)}


def test_a_word_of_two_meanings_names_what_is_seen_and_is_never_wrong():
    found = statistics(["an orange on a desk"] * 2, weak=[["orange"], []], clear=[["orange"], []])
    assert found.rows.tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]


def test_several_captions_of_a_photo_are_read_one_by_one_and_count_once():
    found = statistics(["a dog|a cat|a dog and a cat", ""], weak=[["dog"], ["dog"]], clear=[["dog"], ["dog"]])
    np.testing.assert_allclose(found.rows, [[2 / 3, 4 / 3, 2 / 3, 1], [0, 0, 0, 0]])
    assert found.corpus()["ObjRec[d]"] == pytest.approx(2 / 3)  # and not 1: no caption is helped by another


def test_nothing_seen_and_nothing_named_is_0_and_not_nan():
    assert statistics(["the sky"], [[]], [[]]).corpus() == {"ObjPrec[d]": 0, "ObjRec[d]": 0}
    assert statistics([], [], []).corpus() == {"ObjPrec[d]": 0, "ObjRec[d]": 0}


def test_rows_add_up_so_that_a_difference_has_an_interval():
    good = statistics(["a dog"] * 40, [["dog"]] * 40, [["dog"]] * 40)
    bad = statistics(["a dog", "a cat"] * 20, [["dog"]] * 40, [["dog"]] * 40)
    found = bootstrap.differences([good], [bad])["ObjPrec[d]"]
    assert found.value == 0.5
    assert 0.3 < found.low < 0.5 < found.high < 0.7
    assert found.p < 0.01


def test_names_parse_back():
    assert objects.parse("ObjPrec[yolox_nano]") == ("ObjPrec", "yolox_nano")
    assert objects.parse("ObjRec[a[b]]") == ("ObjRec", "a[b]")
    assert [objects.parse(name) for name in ("ObjPrec", "ObjPrec[]", "R@1[judge]", "Prec")] == [None] * 4


def test_chair_counts_objects_that_no_reference_names():
    """By hand: of dog, person, frisbee and cat the cat is in no reference; no object word is no invention."""
    captions = ["a dog and a man with a frisbee and a cat", "a green field", "a puppy"]
    references = [["a woman throws a frisbee", "a dog runs"], ["grass"], ["a brown dog"]]
    words = [text.split() for text in captions]
    measured = chair(words, [[text.split() for text in texts] for texts in references])
    assert measured.corpus() == {"CHAIRi": pytest.approx(1 / 5), "CHAIRs": pytest.approx(1 / 3)}
    assert measured.per_photo().tolist() == [[1 / 4, 1], [0, 0], [0, 0]]


def test_chair_takes_the_meaning_that_fits():
    """A bike may be a bicycle or a motorcycle: neither is an invention, a car is."""
    words = [["a", "bike"]] * 3
    references = [["a bicycle"], ["a motorcycle"], ["a car"]]
    measured = chair(words, [[text.split() for text in texts] for texts in references])
    assert measured.per_photo()[:, 0].tolist() == [0, 0, 1]
