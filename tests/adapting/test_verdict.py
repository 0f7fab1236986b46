"""When an adapted model is kept."""

from types import SimpleNamespace

import numpy as np
import pytest

from capscore.statistics import Difference
from tellapart.adapting import verdict
from tellapart.evaluation.grid import Row

BEFORE = {"P@1/100[judge]": 0.40, "AvgLen": 10.0, "Rep": 0.02, "UnusualOrder": 0.01, "Unidiomatic": 0.03}
BETTER = BEFORE | {"P@1/100[judge]": 0.46}
MORE = Difference(0.06, 0.01, 0.11, 0.02)


def grid_of(after, difference=MORE, before=BEFORE, **differences):
    scores = {"before": before, "after": after}
    rows = {"before": SimpleNamespace(signature=before)}
    of_after = dict.fromkeys(after, difference) | {NAMES[name]: value for name, value in differences.items()}
    return SimpleNamespace(against="before", scores=scores, rows=rows, differences=lambda: {"after": of_after})


NAMES = {"judge": "P@1/100[judge]", "people": "Preference"}


def failed(after, *, kl=0.1, **more):
    checks = verdict.checks(grid_of(after, **more), "after", judge="judge", kl=kl)
    return {check.name: check.sentence for check in checks if not check.passed}


def test_the_interval_of_what_the_judge_finds_must_lie_above_nothing():
    assert failed(BETTER) == {}
    (sentence,) = failed(BETTER, difference=Difference(0.06, -0.001, 0.12, 0.06)).values()
    assert sentence == (
        "the judge finds 46.0 % of the photos, 40.0 % before (+6.0 points, 95 % interval -0.1 to +12.0)"
    )


SEEN = "ObjPrec[yolox]"


@pytest.mark.parametrize(
    ("changed", "before", "failing"),
    [
        # faults may rise by half a point and no more
        *(({name: BEFORE[name] + 0.005}, {}, []) for name in ("Rep", "UnusualOrder", "Unidiomatic")),
        *(({name: BEFORE[name] + 0.0052}, {}, [name]) for name in ("Rep", "UnusualOrder", "Unidiomatic")),
        # captions may neither grow nor shrink by more than a fifth
        *(({"AvgLen": words}, {}, [] if words in (12.0, 8.4) else ["AvgLen"]) for words in (12.0, 12.1, 8.4, 8.3)),
        # objects that the detector does not see count where there is one
        ({SEEN: 0.80}, {SEEN: 0.805}, []),
        ({SEEN: 0.79}, {SEEN: 0.80}, [SEEN]),
    ],
)
def test_what_guards_allow(changed, before, failing):
    sentences = failed(BETTER | changed, before=BEFORE | before)
    assert list(sentences) == failing
    if failing and "Rep" in failing:
        assert sentences["Rep"].endswith("(+0.5 points; +0.5 is allowed)")
    assert list(failed(BETTER, kl=0.51)) == ["KL"]  # a model that went far from where it was


def test_with_fewer_than_a_hundred_photos_the_judge_looks_among_all():
    few = {"R@1[judge]" if name.startswith("P@1") else name: value for name, value in BEFORE.items()}
    found = verdict.checks(grid_of(few, before=few), "after", judge="judge", kl=0.0)
    assert found[0].name == "R@1[judge]"


def test_unidiomatic_counts_only_the_photos_that_are_measured():
    """Of three photos two are measured; "a the on of" is no English, and its row is the second measured."""
    said = SimpleNamespace(of_photo={0: ["a man riding a wave on a surfboard"], 2: ["a the on of"]})
    row = Row([], {}, said, {})
    verdict.add_unidiomatic(row, [0, 2], 3)
    assert row.scores == {"Unidiomatic": 0.5}
    (statistics,) = row.statistics
    assert len(statistics.rows) == 3
    assert np.count_nonzero(statistics.rows[1]) == 0


UNSURE, SURE_LOSS = Difference(-0.01, -0.04, 0.02, 0.4), Difference(-0.05, -0.08, -0.02, 0.01)


@pytest.mark.parametrize(
    ("judge", "people", "failing"),
    [
        (UNSURE, MORE, []),
        (SURE_LOSS, MORE, ["P@1/100[judge]"]),
        (UNSURE, UNSURE, ["Preference"]),
        (MORE, UNSURE, ["Preference"]),
    ],
)
def test_with_feedback_people_must_gain_and_the_judge_must_not_be_sure_of_a_loss(judge, people, failing):
    before, after = BEFORE | {"Preference": 0.3}, BETTER | {"Preference": 0.4}
    assert list(failed(after, before=before, judge=judge, people=people)) == failing
