"""CIDEr-D beside the field's own scorer, and what it must hold to whatever the words."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tellapart.metrics.cider import cider_d

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "cider_d.json").read_text())

captions = st.lists(st.sampled_from("abcd"), max_size=8)
photos = st.lists(st.tuples(captions, st.lists(captions, min_size=1, max_size=3)), min_size=2, max_size=5)


def split(texts):
    return [text.split() for text in texts]


def test_sixty_photos_score_as_the_scorer_of_the_field_says():
    images = GOLDEN["images"]
    scores = cider_d(split(image["caption"] for image in images), [split(image["references"]) for image in images])
    assert len(scores) == 60
    assert scores == pytest.approx([image["cider_d"] for image in images], abs=1e-9)
    assert sum(scores) / 60 == pytest.approx(GOLDEN["mean"], abs=1e-9)


def test_a_reference_word_for_word_scores_ten():
    said = ["a", "b", "c", "d"]
    assert cider_d([said, ["e"]], [[said], [["e"]]])[0] == pytest.approx(10)


def test_a_caption_of_one_word_can_have_but_a_quarter_of_the_n_grams():
    assert cider_d([["a"], ["e"]], [[["a"]], [["e"]]]) == pytest.approx([2.5, 2.5])


def test_each_word_too_many_costs_by_the_bell_of_sigma_six():
    """A word that every photo's people use weighs nothing, so it changes the length and nothing else."""
    references = [[["x"], ["a"]], [["x"], ["b"]]]
    plain, longer = (cider_d([said, []], references)[0] for said in (["a"], ["a", "x", "x"]))
    assert plain == pytest.approx(10 * 0.25 / 2)
    # Of the longer one's bigrams, none is in the references; its unigrams agree as before.
    assert longer == pytest.approx(plain * math.exp(-(2**2) / (2 * 6**2)))


def test_a_word_said_over_and_over_counts_no_more_often_than_people_said_it():
    (once, _), (thrice, _) = (
        cider_d([said, ["c"]], [[["a", "b"]], [["c"]]]) for said in (["a", "b"], ["a", "a", "a", "b"])
    )
    norm = math.sqrt(3**2 + 1)
    unigrams = (1 * 1 + 1 * 1) / (norm * math.sqrt(2))
    bigrams = 1 / (math.sqrt(2**2 + 1) * 1)
    assert once == pytest.approx(10 * 2 / 4)
    assert thrice == pytest.approx(10 / 4 * (unigrams + bigrams) * math.exp(-(2**2) / (2 * 6**2)))


def test_nothing_said_and_nothing_to_compare_with_score_nothing():
    assert cider_d([[], ["a"]], [[["a"]], []]) == [0.0, 0.0]
    assert cider_d([], []) == []


def test_with_a_single_photo_every_word_is_in_all_photos_and_weighs_nothing():
    assert cider_d([["a"]], [[["a"]]]) == [0.0]


def test_ids_score_as_the_words_they_stand_for():
    images = GOLDEN["images"][:20]
    ids = {}

    def numbered(text):
        return [ids.setdefault(word, len(ids)) for word in text.split()]

    words = cider_d(split(i["caption"] for i in images), [split(i["references"]) for i in images])
    numbers = cider_d(
        [numbered(i["caption"]) for i in images], [[numbered(r) for r in i["references"]] for i in images]
    )
    assert numbers == pytest.approx(words, abs=1e-12)


def test_a_caption_without_its_references_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        cider_d([["a"], ["b"]], [[["a"]]])


@given(photos)
def test_scores_lie_between_zero_and_ten(world):
    scores = cider_d([said for said, _ in world], [texts for _, texts in world])
    assert all(0 <= score <= 10 + 1e-9 for score in scores)


@given(photos, st.randoms(use_true_random=False))
def test_the_order_of_photos_and_of_references_changes_nothing(world, chance):
    before = cider_d([said for said, _ in world], [texts for _, texts in world])
    order = chance.sample(range(len(world)), len(world))
    shuffled = [(world[i][0], chance.sample(world[i][1], len(world[i][1]))) for i in order]
    after = cider_d([said for said, _ in shuffled], [texts for _, texts in shuffled])
    assert after == pytest.approx([before[i] for i in order], abs=1e-9)
