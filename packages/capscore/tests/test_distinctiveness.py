import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capscore import overlap
from capscore.overlap import cider_between, cider_d
from capscore.sentences import Grouped
from capscore.words import (
    average_length,
    bad_end,
    distinct,
    distinctive_words,
    precision,
    rare_words,
    repetition,
    stutter,
    unique_captions,
    vocabulary,
)
from scored import prepared

SAID = [text.split() for text in ["a dog runs", "a dog runs", "a dog and a red dog", "a cat"]]
TOLD = [
    [text.split() for text in texts]
    for texts in [["a dog runs fast", "the dog"], ["a dog"], ["two red animals"], ["the tabby"]]
]
WORDS = 3 + 3 + 6 + 2
captions = st.lists(st.lists(st.sampled_from("abc"), max_size=5), min_size=1, max_size=6)


def corpus(statistics):
    (score,) = statistics.corpus().values()
    return score


def test_captions_that_photos_share_count_once():
    assert corpus(unique_captions(SAID)) == pytest.approx(3 / 4)


def test_length_is_in_words():
    assert corpus(average_length(SAID)) == pytest.approx(WORDS / 4)


def test_vocabulary_is_the_number_of_different_words():
    assert corpus(vocabulary(SAID)) == pytest.approx(len({"a", "dog", "runs", "and", "red", "cat"}))


@given(captions)
def test_sizes_of_sets_are_what_python_says(captions):
    words = {word for caption in captions for word in caption}
    pairs = [(a, b) for caption in captions for a, b in pairwise(caption)]
    assert corpus(vocabulary(captions)) == pytest.approx(len(words))
    assert corpus(unique_captions(captions)) == pytest.approx(len(set(map(tuple, captions))) / len(captions))
    assert corpus(distinct(captions, 2)) == pytest.approx(len(set(pairs)) / len(pairs) if pairs else 0)


def test_words_of_few_photos_and_unknown_ones_are_rare():
    table = {"a": 9000, "dog": 400, "runs": 17, "and": 5000, "red": 18, "cat": 300}
    assert corpus(rare_words(SAID, table, 17_721)) == pytest.approx(2 / WORDS)  # "runs" twice
    assert corpus(rare_words([["axolotl"]], table, 17_721)) == 1.0


def test_a_caption_breaks_off_whose_last_word_no_sentence_ends_with():
    said = [["a", "dog", "on", "a"], ["a", "dog", "on", "grass"], ["a", "wall", "to", "lean", "on"], [], ["the"]]
    assert bad_end(said).per_photo()[:, 0].tolist() == [1, 0, 0, 0, 1]


def test_a_content_word_said_twice_is_repetition_and_a_stop_word_is_not():
    said = [text.split() for text in ["a man with a hat", "a red bus and a red car", "", "dog dog"]]
    assert repetition(said).per_photo()[:, 0].tolist() == [0, 1, 0, 1]


def test_any_word_that_follows_itself_is_a_stutter():
    said = [text.split() for text in ["a dog on on a bed", "a dog dog", "", "a", "in a dog in a cat"]]
    assert stutter(said).per_photo()[:, 0].tolist() == [1, 1, 0, 0, 0]


def test_precision_is_of_content_words_in_their_surface_forms():
    # dog, runs | dog of dog, runs | red of dog, red, dog | none of cat
    assert corpus(precision(SAID, TOLD)) == pytest.approx((2 + 1 + 1 + 0) / (2 + 2 + 3 + 1))


def test_words_that_no_look_alike_has():
    others = np.array([[1], [0], [3], [2]])
    # all three words but "runs" are in photo 1's references, and all in photo 0's | all six | "cat" and "a"
    assert corpus(distinctive_words(SAID, TOLD, others)) == pytest.approx((1 + 0 + 6 + 2) / WORDS)


def test_agreement_with_look_alikes_is_the_mean_over_them():
    captions, _, references, _ = prepared(SAID, TOLD)
    others = np.array([[1, 2], [0, 3], [0, 1], [0, 2]])
    found = cider_between(captions, references, others)
    expected = [(cider_d(captions, others[:, k], references)) for k in (0, 1)]
    assert found == pytest.approx(np.mean(expected, 0))
    assert found[0] > 0


def test_look_alikes_are_the_nearest_by_a_dense_computation():
    random = np.random.default_rng(0)
    # words as frequent as in language, so that no two photos are exactly alike
    world = [[random.zipf(1.6, size=9).clip(max=200).tolist() for _ in range(3)] for _ in range(90)]
    found = overlap.look_alikes(Grouped.join(world), 5)
    counts = np.zeros((90, 201))
    for photo, texts in enumerate(world):
        for text in texts:
            np.add.at(counts[photo], text, 1)
    weights = counts * np.log(90 / np.maximum((counts > 0).sum(0), 1))
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    similarity = weights @ weights.T
    np.fill_diagonal(similarity, -1)
    expected = -np.sort(-similarity, 1)[:, :5]
    np.testing.assert_allclose(np.take_along_axis(similarity, found, 1), expected, atol=1e-12)
    assert all(len(set(row)) == 5 for row in found.tolist())


def test_look_alikes_of_few_photos_are_all_the_others():
    assert overlap.look_alikes(Grouped.join([[[1]], [[1]], [[2]]]), 5).tolist() == [[1, 2], [0, 2], [0, 1]]
    assert overlap.look_alikes(Grouped.join([[[1]]]), 5).shape == (1, 0)


def test_empty_captions_have_defined_values():
    for statistics in (
        precision([[]], [[["a"]]]),
        rare_words([[]], {}, 10),
        repetition([[]]),
        distinct([[]], 2),
        distinctive_words([[]], [[["a"]]], np.zeros((1, 0), int)),
    ):
        assert not math.isnan(corpus(statistics))
