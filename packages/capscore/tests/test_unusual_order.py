from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capscore.words import END, STOP_WORDS, WordOrder, roles, unusual_order
from capscore.words import coco_order as coco
from scored import loo1000

WORDS = st.lists(st.sampled_from(["a", "in", "it", "dog", "cat", "is"]), max_size=7)


def whole(text):
    return [*roles(text.split()), END]


def test_a_word_is_odd_where_nobody_goes_on_so():
    people = WordOrder.of([whole("a dog in a park"), whole("a toilet with a sink in it"), whole("a man is on a horse")])
    said = ["a cat in a box", "a sink in it", "a cat is on it", "a dog in", "a dog in a park a", ""]
    assert people.unusual([whole(text) for text in said]).tolist() == [0, 0, 1, 1, 1, 1]


def test_a_caption_that_was_cut_is_not_reproached_with_its_end():
    people = WordOrder.of([whole("a dog in a park")])
    cut, ended = roles(["a", "dog", "in"]), whole("a dog in")
    assert people.unusual([cut, ended]).tolist() == [0, 1]


def test_what_one_in_five_hundred_say_is_usual_and_what_fewer_say_is_not():
    often, once = whole("a dog is in a park"), whole("a dog is on a hill")
    assert WordOrder.of([*[often] * 499, once]).unusual([once]).tolist() == [0]
    assert WordOrder.of([*[often] * 500, once]).unusual([once]).tolist() == [1]


@given(st.lists(WORDS, max_size=6), st.lists(WORDS, max_size=4))
def test_odd_words_are_counted_as_by_hand(told, said):
    def runs(words):
        named = [word if word in STOP_WORDS else "*" for word in words]
        line = ["<", "<", "<", *named, ">"]
        return [tuple(line[i : i + 4]) for i in range(len(line) - 3)]

    times = Counter(run for words in told for run in runs(words))
    contexts = Counter(run[:3] for words in told for run in runs(words))
    expected = []
    for words in said:
        odd = [500 * times[run] < contexts[run[:3]] or not times[run] for run in runs(words)]
        expected.append(sum(now and not before for before, now in zip([False, *odd], odd, strict=False)))
    people = WordOrder.of([[*roles(words), END] for words in told])
    assert people.unusual([[*roles(words), END] for words in said]).tolist() == expected


def test_what_is_kept_in_a_file_is_the_same(tmp_path):
    people = WordOrder.of([whole("a dog 's bed in a park"), whole("a man with it"), []])
    people.save(tmp_path / "order.txt.gz")
    said = [whole("a dog 's bed"), whole("a man with it"), whole("a man with"), whole("the man")]
    assert WordOrder.load(tmp_path / "order.txt.gz").unusual(said).tolist() == people.unusual(said).tolist()


def test_by_the_bundled_table_people_are_seldom_odd_and_a_captioner_that_plays_with_words_is():
    people = [text.split() for image in loo1000()["images"] for text in image["reference_words"]]
    played = [
        "a bathroom with a toilet in it on it",
        "a cake with it is on top of it",
        "a bed with it on it",
        "a dog is is on a bed",
    ]
    spoken = [
        "a bathroom with a toilet in it",
        "a cake is on top of a table",
        "a dog is on a bed",
        "two men are riding horses",
    ]
    assert unusual_order(people, coco()).corpus()["UnusualOrder"] < 0.2
    assert unusual_order([text.split() for text in played], coco()).corpus()["UnusualOrder"] == 1
    assert unusual_order([text.split() for text in spoken], coco()).corpus()["UnusualOrder"] == 0


@pytest.mark.parametrize("captions", [[], [[]]])
def test_where_nothing_is_said_and_nothing_ends_nothing_is_odd(captions):
    odd = coco().unusual(captions)
    assert odd.dtype == np.int64
    assert odd.tolist() == [0] * len(captions)
