"""Statistics of human studies, against textbooks, closed forms and simulated people whose accuracy is known."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from capscore.errors import UserError
from tellapart.study import statistics

# Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", section C: 4 observers, 12 units, missing values
TEXTBOOK = """
1 2 3 3 2 1 4 1 2 . . .
1 2 3 3 2 2 4 1 2 5 . 3
. 3 3 3 2 3 4 2 2 5 1 .
1 2 3 3 2 4 4 1 2 5 1 .
"""


@pytest.mark.parametrize(("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_krippendorffs_alpha_is_that_of_the_textbook(level, alpha):
    observers = [line.split() for line in TEXTBOOK.split("\n") if line]
    units = [[int(value) for value in unit if value != "."] for unit in zip(*observers, strict=True)]
    assert statistics.krippendorff(units, level) == pytest.approx(alpha, abs=5e-4)
    assert math.isnan(statistics.krippendorff([[1, 1], [1, 1]], level))


def test_the_wilson_interval_is_that_of_its_formula():
    right, count, z = 214, 500, 1.959963984540054
    share = right / count
    middle = (share + z * z / 2 / count) / (1 + z * z / count)
    reach = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / 4 / count**2)
    assert statistics.wilson(right, count)[:3] == pytest.approx((share, middle - reach, middle + reach))


def test_mcnemars_test_is_exact():
    assert statistics.mcnemar(9, 3) == pytest.approx(2 * binom.cdf(3, 12, 0.5))
    assert statistics.mcnemar(0, 0) == 1


def test_two_captioners_strengths_have_a_closed_form():
    wins, ties = np.array([[0.0, 8.0], [44.0, 0.0]]), np.array([[0.0, 47.0], [0.0, 0.0]])
    strengths, tie = statistics.davidson(wins, ties)
    assert strengths[1] - strengths[0] == pytest.approx(math.log(44.5 / 8.5), abs=1e-4)
    assert tie == pytest.approx(math.log(47 / math.sqrt(44.5 * 8.5)), abs=1e-4)


def test_strengths_of_three_captioners_are_found_again():
    true, tie = np.array([-0.5, 0.1, 0.4]), -0.3
    wins, ties = np.zeros((3, 3)), np.zeros((3, 3))
    for i in range(3):
        for j in range(i + 1, 3):
            odds = np.exp([true[i], tie + (true[i] + true[j]) / 2, true[j]])
            wins[i, j], ties[i, j], wins[j, i] = 1e6 * odds / odds.sum()
    strengths, found = statistics.davidson(wins, ties)
    assert strengths == pytest.approx(true - true.mean(), abs=1e-3)
    assert found == pytest.approx(tie, abs=1e-3)


def test_the_size_of_discritunes_study():
    needed = statistics.size(0.476, 0.428, 1 / 3)
    assert needed.paired == pytest.approx(1100, rel=0.05)
    assert needed.unpaired == pytest.approx(1700, rel=0.02)
    fewer = statistics.size(0.476, 0.428, 0.15)
    assert fewer.paired < needed.paired
    assert fewer.unpaired == needed.unpaired
    for wrong in ((0.4, 0.4, 0.3), (0.5, 0.4, 0.05), (0.9, 0.8, 0.5)):
        with pytest.raises(UserError):
            statistics.size(*wrong)


def crossed(random, spread, accuracies=(0.5, 0.5), blocks=6, per_block=10, answers=3):
    """Answers of a study in blocks: each set is seen under both conditions by several people."""
    people = 2 * answers
    block, turn, place = (axis.ravel() for axis in np.indices((blocks, people, per_block)))
    model, person, set_ = (place + turn) % 2, block * people + turn, block * per_block + place
    # people and sets differ; on average over them the accuracies are as given
    ability, ease = random.normal(size=blocks * people) * spread, random.normal(size=blocks * per_block) * spread
    threshold = norm.ppf(np.array(accuracies))[model] * math.sqrt(1 + 2 * spread**2)
    right = random.normal(size=len(model)) < threshold + ability[person] + ease[set_]
    ours = model == 1
    values, people, sets = ((axis[ours], axis[~ours]) for axis in (right.astype(float), person, set_))
    return statistics.difference(*values, people, sets)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_paired_test_has_its_nominal_error(spread):
    random = np.random.default_rng(1)
    wrong = sum(crossed(random, spread).p < 0.05 for _ in range(200))
    low, high = binom.ppf([0.001, 0.999], 200, 0.05)
    assert low <= wrong <= high


def test_the_paired_test_finds_a_large_difference():
    random = np.random.default_rng(2)
    found = [crossed(random, 0.5, (0.4, 0.65)) for _ in range(20)]
    assert sum(one.p < 0.05 for one in found) >= 19
    assert np.mean([one.value for one in found]) == pytest.approx(0.25, abs=0.04)


def test_one_person_shows_no_spread():
    one, two = np.array([1.0, 1.0]), np.array([0.0, 0.0])
    people = np.zeros(2, np.int64)
    assert statistics.difference(one, two, (people, people), (np.arange(2), np.arange(2))).p == 1
