import numpy as np
import pytest

from capscore import statistics
from capscore.statistics import Statistics, mean_of, mean_of_runs, ratio_of


def test_the_interval_of_a_mean_is_that_of_the_central_limit_theorem():
    scores = np.random.default_rng(0).normal(0.3, 0.2, 2000)
    low, high = statistics.intervals([mean_of("m", scores)], samples=4000)["m"]
    error = scores.std() / np.sqrt(2000)
    assert low == pytest.approx(scores.mean() - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(scores.mean() + 1.96 * error, abs=0.1 * error)


def test_the_intervals_hold_the_truth_nineteen_times_of_twenty():
    """200 worlds of a ratio of sums, whose truth is known: 30 words a photo, of which a share of 0.2 counts."""
    random = np.random.default_rng(1)
    held = 0
    for seed in range(200):
        lengths = random.integers(5, 55, 150)
        words = ratio_of("share", random.binomial(lengths, 0.2).astype(float), lengths.astype(float))
        low, high = statistics.intervals([words], samples=400, seed=seed)["share"]
        held += low <= 0.2 <= high
    assert 180 <= held <= 199  # 95 % of 200 is 190, with a standard deviation of 3


def test_a_measure_is_resampled_by_its_own_formula_and_not_by_the_mean_of_photos():
    """The largest of sums: every sample of two photos is one of three sums, and none is a mean."""
    rows = np.array([[1.0, 0.0], [0.0, 3.0]])
    both = Statistics(("m",), rows, lambda sums: sums.max(-1, keepdims=True))
    low, high = statistics.intervals([both])["m"]
    assert (low, high) == (2.0, 6.0)


def test_the_same_difference_on_every_photo_is_certain_and_noise_is_not():
    random = np.random.default_rng(2)
    scores = random.normal(0, 1, 500)
    better = statistics.differences([mean_of("m", scores + 0.01)], [mean_of("m", scores)])["m"]
    assert better.value == pytest.approx(0.01)
    assert (better.low, better.high) == pytest.approx((0.01, 0.01))
    assert better.p == pytest.approx(2 / 1001)
    same = statistics.differences([mean_of("m", scores)], [mean_of("m", scores)])["m"]
    assert same == (0.0, 0.0, 0.0, 1.0)


def test_p_is_uniform_where_there_is_no_difference():
    random = np.random.default_rng(3)
    chances = [
        statistics.differences(
            [mean_of("m", random.normal(0, 1, 100))], [mean_of("m", random.normal(0, 1, 100))], samples=200
        )["m"].p
        for _ in range(300)
    ]
    assert np.mean(np.array(chances) < 0.05) == pytest.approx(0.05, abs=0.035)
    assert np.mean(np.array(chances) < 0.5) == pytest.approx(0.5, abs=0.09)


def test_edges():
    scores = mean_of("m", np.random.default_rng(4).random(50))
    assert statistics.intervals([scores], seed=7) == statistics.intervals([scores], seed=7)
    assert statistics.intervals([scores], seed=7) != statistics.intervals([scores], seed=8)
    empty = ratio_of("share", np.zeros(3), np.zeros(3))  # nothing to divide by
    assert empty.corpus() == {"share": 0.0}
    assert statistics.intervals([empty])["share"] == (0.0, 0.0)
    both, one = [mean_of("a", [1, 2]), mean_of("b", [1, 2])], [mean_of("b", [1, 2])]  # one side lacks a score
    assert list(statistics.differences(both, one)) == list(statistics.differences(one, both)) == ["b"]
    assert statistics.differences([mean_of("m", [1.0])], [mean_of("m", [0.0])])["m"].p == 1  # one photo


def test_the_mean_of_runs_is_resampled_on_the_same_photos():
    """Two runs that are right on different halves of the photos: their mean does not depend on the photos at all."""
    right = np.array([1.0] * 50 + [0.0] * 50)
    runs = [mean_of("found", right), mean_of("found", 1 - right)]
    together = mean_of_runs(runs)
    assert together.corpus() == {"found": 0.5}
    assert statistics.intervals([together]) == {"found": (0.5, 0.5)}
    assert statistics.intervals(runs[:1])["found"][1] > 0.55


def test_the_mean_of_runs_is_of_their_scores_and_not_of_their_photos():
    few, many = ratio_of("share", np.array([1.0, 0.0]), np.array([1.0, 1.0])), ratio_of("share", *np.full((2, 2), 9.0))
    assert mean_of_runs([few, many]).corpus() == {"share": 0.75}  # (1/2 + 18/18) / 2, not 19/20
