"""Average precision against scikit-learn's, and Fang's weighting against sums by hand."""

import numpy as np
import pytest

from tellapart.metrics.retrieval import average_precision, weighted_average_precision


def test_it_is_that_of_scikit_learn_also_where_scores_tie():
    reference = pytest.importorskip("sklearn.metrics").average_precision_score
    draw = np.random.default_rng(0)
    has = draw.random((60, 12)) < 0.3
    scores = draw.random((60, 12)).round(1)  # so few values that many tie
    expected = [reference(has[:, word], scores[:, word]) for word in range(12)]
    np.testing.assert_allclose(average_precision(scores, has), expected, atol=1e-12)


def test_where_all_scores_tie_it_is_the_share_of_photos_with_the_word():
    has = np.array([[True], [False], [False], [True], [False]])
    assert average_precision(np.zeros((5, 1)), has)[0] == pytest.approx(2 / 5)


def test_a_word_that_no_photo_has_is_left_out():
    assert np.isnan(average_precision(np.ones((3, 1)), np.zeros((3, 1), bool)))[0]
    assert np.isnan(weighted_average_precision(np.ones((3, 1)), np.zeros((3, 1), int), 5))[0]


def test_what_more_people_mention_counts_more():
    """K = 5.  By score: 3 mentions, none, 1 mention.  A mention is 0.8 of a true positive; the last photo is 0.2 of a
    false one, the second a whole one.
    """
    scores, mentions = np.array([[0.9], [0.5], [0.2]]), np.array([[3], [0], [1]])
    after_first = 2.4 / 2.4
    after_last = (2.4 + 0.8) / (2.4 + 0.8 + 1 + 0.2)
    expected = 2.4 / 3.2 * after_first + 0.8 / 3.2 * after_last
    assert weighted_average_precision(scores, mentions, 5)[0] == pytest.approx(expected)


def test_the_best_precision_at_a_recall_or_beyond_counts():
    """None first, then 2 mentions, then 4: precision rises to 4.8 / 5.8, which holds for all recall before."""
    scores, mentions = np.array([[0.9], [0.5], [0.2]]), np.array([[0], [2], [4]])
    assert weighted_average_precision(scores, mentions, 5)[0] == pytest.approx(4.8 / 5.8)
