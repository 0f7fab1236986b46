"""The facts in captions, decided by reading them, and the F-score by hand."""

import time
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from capscore.scene_graph import NAMES, infinitive, rows, singular, tuples
from capscore.scene_graph.parser import describe
from capscore.statistics import quotients as value


def facts(*rows):
    """ "dog", "dog brown" and "dog / chase / cat" as tuples; the objects of attributes and relations come with them."""
    result = set()
    for row in rows:
        parts = tuple(row.split(" / ")) if "/" in row else tuple(row.split())
        result.add(parts)
        result.update({(parts[0],), (parts[2],)} if len(parts) == 3 else {(parts[0],)})
    return result


READ = {
    "a brown dog is chasing a small cat": ["dog brown", "cat small", "dog / chase / cat"],
    "a man riding a wave on a surfboard": ["man / ride / wave", "man / ride on / surfboard"],
    "two women are walking down the street": ["woman two", "woman / walk down / street"],
    "a black and white cat": ["cat black", "cat white"],
    "the man is very tall": ["man tall"],
    "a woman holding a red umbrella": ["woman / hold / umbrella", "umbrella red"],
    "a baby elephant stands next to its mother": [
        "elephant baby", "elephant / stand next to / mother", "elephant / have / mother",
    ],
    "a kitchen with a stove and a sink": ["kitchen / with / stove", "kitchen / with / sink"],
    "there is a clock on the wall": ["clock / on / wall"],
    "a man is being pulled by a horse": ["horse / pull / man"],
    "the bus is parked on the street": ["bus / park on / street"],
    "a cat is sitting in front of a mirror": ["cat / sit in front of / mirror", "front"],
    "the woman 's hair is long": ["woman / have / hair", "hair long"],
    "a dog that is black": ["dog black"],
    "a bunch of bananas": ["bunch", "banana bunch"],
    "the food is on the plate": ["food / on / plate"],
    "a giraffe and a zebra are eating": ["giraffe eat", "zebra eat"],
    "a man wearing a hat": ["man / wear / hat"],
}  # fmt: skip


@pytest.mark.parametrize("caption", READ)
def test_the_facts_of_a_caption(caption):
    assert tuples(caption.split()) == facts(*READ[caption])


def test_capitals_and_punctuation_make_no_difference():
    assert tuples(["A", "Brown", ",", "DOG", "."]) == tuples(["a", "brown", "dog"]) == facts("dog brown")


def row(hypothesis, *references):
    return rows([hypothesis.split()], [[reference.split() for reference in references]])[0]


def scores(hypothesis, *references):
    return dict(zip(NAMES, value(row(hypothesis, *references)).tolist(), strict=True))


def test_f_by_hand():
    # dog, brown dog, dog chases cat, cat (4 facts) against dog, black dog, cat (3): dog and cat are shared
    result = scores("a brown dog is chasing a cat", "a black dog and a cat")
    assert result["SGF"] == pytest.approx(2 * 2 / (4 + 3))
    assert result["SGF-object"] == 1.0
    assert result["SGF-attribute"] == result["SGF-relation"] == result["SGF-colour"] == 0.0
    # dog and brown dog against dog, brown dog, and from the other reference cat: 2 shared of 2 and 3
    assert scores("a brown dog", "a brown dog", "a cat")["SGF"] == pytest.approx(2 * 2 / (2 + 3))
    assert scores("a brown dog", "a brown dog", "a brown dog")["SGF"] == 1.0
    same = "two small brown dogs are chasing a cat"
    assert row(same, same).tolist() == [1.0] * 14


def test_the_corpus_score_is_the_mean_of_the_photos_where_it_is_defined():
    photos = rows([["a", "red", "car"], ["a", "dog"]], [[["a", "red", "car"]], [["a", "dog"]]])
    colour = 2 * NAMES.index("SGF-colour")
    assert photos[:, colour : colour + 2].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert value(photos.sum(0))[NAMES.index("SGF-colour")] == 1.0
    hypotheses, references = [["a", "dog"], ["a", "cat"], ["a", "dog"]], [[["a", "dog"]]] * 3
    assert value(rows(hypotheses, references).sum(0))[0] == pytest.approx(2 / 3)


SYNONYMS = "bicycle/bike, sofa/couch, large dog/big dog, photo/picture, men/man"
OTHERS = "dog/cat, red car/blue car, two dogs/three dogs"


@pytest.mark.parametrize(("pairs", "equal"), [(SYNONYMS, True), (OTHERS, False)])
def test_synonyms_agree_and_other_words_do_not(pairs, equal):
    for pair in pairs.split(", "):
        one, other = pair.split("/")
        assert (scores(f"a {one}", f"a {other}")["SGF"] == 1.0) == equal, pair


def test_colours_counts_and_sizes_are_attributes_with_scores_of_their_own():
    same, other = "three small red cars on a road", "two large blue cars on a road"
    right = scores(same, same)
    wrong = scores(same, other)
    for part in ("attribute", "colour", "count", "size"):
        assert right[f"SGF-{part}"] == 1.0
        assert wrong[f"SGF-{part}"] == 0.0
    assert wrong["SGF-relation"] == 1.0


def test_neither_the_order_of_references_nor_other_photos_make_a_difference():
    hypothesis = "a young man riding a red bike on a street"
    references = [
        "a boy on a bicycle",
        "the man rides his bike down a road",
        "a person on a street",
        "a guy with a bike",
    ]
    expected = row(hypothesis, *references)
    assert all((row(hypothesis, *order) == expected).all() for order in permutations(references))
    # a bicycle is no motorcycle, but either may be called a bike
    orders = permutations(["a bicycle", "a motorcycle", "a bike"])
    assert len({tuple(row("a motorcycle", *order)) for order in orders}) == 1
    hypotheses = [["a", "dog"], ["a", "red", "car"], []]
    of_each = [[["a", "dog", "runs"]], [["the", "car"], ["a", "red", "car"]], [["a", "cat"]]]
    alone = [rows([words], [texts])[0] for words, texts in zip(hypotheses, of_each, strict=True)]
    assert_array_equal(rows(hypotheses, of_each), alone)


def test_nothing_said_scores_nothing():
    assert row("", "a dog")[:2].tolist() == [0.0, 1.0]
    assert row("a dog")[:2].tolist() == [0.0, 1.0]
    assert row("", "").tolist() == [0.0] * 14
    assert rows([], []).shape == (0, 14)
    assert value(rows([], []).sum(0)).tolist() == [0.0] * 7
    assert tuples([]) == set()


@pytest.mark.parametrize("junk", ["\ud800", "😀", "\x00\x07", "", " ", "\u202e", "é" * 500, "-", "'s", "½", "2"])
def test_odd_words_do_no_harm(junk):
    result = rows([["a", junk, "dog", junk]], [[[junk], ["a", "dog"]]])
    assert np.isfinite(result).all()
    assert ((result >= 0) & (result <= 1)).all()


LONG = {
    "nouns": ["dog"],
    "and": ["a", "dog", "and"],
    "verbs": ["man", "is", "riding"],
    "in front of": ["in", "front", "of", "the", "front", "of"],
    "pronouns": ["he", "who", "is", "the"],
    "sentence": ["the", "dogs", "and", "cats", "run", "with", "a", "ball", "in", "a", "park"],
}


@pytest.mark.parametrize("words", LONG.values(), ids=LONG)
def test_ten_thousand_words_take_no_more_than_a_moment(words):
    tuples(["warm", "up"])
    began = time.monotonic()
    tuples((words * 10_000)[:10_000])
    assert time.monotonic() - began < 5  # a tenth of a second; an algorithm that is quadratic takes minutes


VOCABULARY = ("a", "the", "dog", "cats", "red", "and", "is", "riding", "of", "in", "front", "it", "his", "two", "to")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(VOCABULARY), max_size=14))
def test_any_words_give_facts_that_hang_together(words):
    facts = tuples(words)
    for fact in facts:
        assert 1 <= len(fact) <= 3
        assert (fact[0],) in facts
        assert (fact[-1],) in facts or len(fact) == 2
    result = rows([words], [[words]])
    assert set(result[0, 1::2]) <= {0.0, 1.0}
    assert_array_equal(result[0, 0::2], result[0, 1::2])  # against itself everything that is defined is 1


IRREGULAR = {"teeth": "tooth", "rode": "ride", "sitting": "sit"}
KNOWN = {"bench", "shoe", "movie", "fall", "pass", "dance", "open", "look", "leave", "ski", "vase", "ride", "party"}


@pytest.mark.parametrize(
    ("plural", "expected"),
    [
        ("dogs", "dog"), ("benches", "bench"), ("shoes", "shoe"), ("tomatoes", "tomato"), ("movies", "movie"),
        ("parties", "party"), ("buses", "bus"), ("vases", "vase"), ("grass", "grass"), ("tennis", "tennis"),
        ("skis", "ski"), ("women", "woman"), ("teeth", "tooth"), ("scissors", "scissors"), ("bus", "bus"), ("s", "s"),
    ],
)  # fmt: skip
def test_singulars(plural, expected):
    assert singular(plural, IRREGULAR, KNOWN) == expected


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("riding", "ride"), ("rode", "ride"), ("sitting", "sit"), ("falling", "fall"), ("passes", "pass"),
        ("dancing", "dance"), ("opened", "open"), ("looking", "look"), ("leaving", "leave"), ("carried", "carry"),
        ("tied", "tie"), ("stopped", "stop"), ("is", "be"), ("has", "have"), ("bring", "bring"), ("feed", "feed"),
        ("ing", "ing"), ("ed", "ed"),
    ],
)  # fmt: skip
def test_infinitives(form, expected):
    assert infinitive(form, IRREGULAR, KNOWN) == expected


def test_a_word_is_described_by_itself_its_endings_and_its_shape():
    assert describe("riding")[1:3] == describe("sliding")[1:3]
    assert describe("riding")[0] != describe("sliding")[0]
    assert [describe(word)[3] for word in ("dog", "2nd", "t-shirt", "50-foot")] == [0, 1, 2, 3]
