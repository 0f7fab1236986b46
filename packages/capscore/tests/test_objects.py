"""Objects that captions name."""

import pytest

from capscore import objects
from capscore.objects import CLASSES
from capscore.words import chair

NUMBER = {name: number for number, name in enumerate(CLASSES)}


def named(text):
    """The classes of a caption's object words; those that it may not mean in brackets."""
    result = [("|".join(CLASSES[number] for number in one.classes), one.sure) for one in objects.mentions(text.split())]
    return [name if sure else f"({name})" for name, sure in result]


def test_the_classes_are_those_of_coco_in_its_order():
    """COCO's own numbers go from 1 to 90 and leave out ten; places as in its annotations."""
    assert len(CLASSES) == len(set(CLASSES)) == 80
    places = {"person": 0, "stop sign": 11, "bench": 13, "giraffe": 23, "backpack": 24, "bottle": 39, "wine glass": 40}
    places |= {"couch": 57, "dining table": 60, "toilet": 61, "tv": 62, "book": 73, "toothbrush": 79}
    assert {name: NUMBER[name] for name in places} == places


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_named_by_its_own_name_and_its_plural(name):
    one = name if name != "skis" else "pair of skis"
    result = named(f"a {one} in the photo")
    # an orange may be a colour, and a tie or a mouse or a bat is what it is called
    assert result == [f"({name})" if name == "orange" else name]
    last = {"person": "people", "knife": "knives", "mouse": "computer mice", "scissors": "scissors", "skis": "skis"}
    same = {"sheep": "sheep", "broccoli": "broccoli"}
    many = (last | same).get(name, objects._plural(name))
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
    lists = objects._LISTS
    assert set(lists["sure"]) >= set(CLASSES)
    assert {name for names in (*lists["sure"], *lists["maybe"]) for name in names.split("|")} == set(CLASSES)
    for section in ("sure", "maybe", "nothing", "modifiers"):
        for text in lists[section].values():
            assert text == text.lower()
            assert all(name.strip() for name in text.split(","))


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
