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


def grid_of(after, difference=MORE, before=None):
    scores = {"before": before or BEFORE, "after": after}
    rows = {"before": SimpleNamespace(signature=scores["before"])}
    differences = {"after": dict.fromkeys(after, difference)}
    return SimpleNamespace(against="before", scores=scores, rows=rows, differences=lambda: differences)


def failed(after, *, kl=0.1, **more):
    found = verdict.checks(grid_of(after, **more), "after", judge="judge", kl=kl)
    return {check.name: check.sentence for check in found if not check.passed}


def test_more_found_by_the_judge_and_no_guard_objects():
    assert failed(BETTER) == {}


def test_the_interval_of_what_the_judge_finds_must_lie_above_nothing():
    (sentence,) = failed(BETTER, difference=Difference(0.06, -0.001, 0.12, 0.06)).values()
    assert sentence == (
        "the judge finds 46.0 % of the photos, 40.0 % before (+6.0 points, 95 % interval -0.1 to +12.0)"
    )


@pytest.mark.parametrize("name", ["Rep", "UnusualOrder", "Unidiomatic"])
def test_faults_may_rise_by_half_a_point_and_no_more(name):
    assert failed(BETTER | {name: BEFORE[name] + 0.005}) == {}
    found = failed(BETTER | {name: BEFORE[name] + 0.0052})
    assert list(found) == [name]
    assert found[name].endswith("(+0.5 points; +0.5 is allowed)")


@pytest.mark.parametrize(("words", "holds"), [(12.0, True), (12.1, False), (8.4, True), (8.3, False)])
def test_captions_may_neither_grow_nor_shrink_by_more_than_a_fifth(words, holds):
    assert (failed(BETTER | {"AvgLen": words}) == {}) == holds


def test_objects_that_the_detector_does_not_see_count_where_there_is_one():
    seen = "ObjPrec[yolox]"
    assert failed(BETTER | {seen: 0.80}, before=BEFORE | {seen: 0.805}) == {}
    assert list(failed(BETTER | {seen: 0.79}, before=BEFORE | {seen: 0.80})) == [seen]


def test_a_model_that_went_far_from_where_it_was_is_refused():
    assert list(failed(BETTER, kl=0.51)) == ["KL"]


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


def test_with_feedback_people_must_gain_and_the_judge_must_not_be_sure_of_a_loss():
    before, after = BEFORE | {"Preference": 0.3}, BETTER | {"Preference": 0.4}
    unsure, sure_loss = Difference(-0.01, -0.04, 0.02, 0.4), Difference(-0.05, -0.08, -0.02, 0.01)
    for of_judge, of_people, holds in (
        (unsure, MORE, []),
        (sure_loss, MORE, ["P@1/100[judge]"]),
        (unsure, unsure, ["Preference"]),
        (MORE, unsure, ["Preference"]),
    ):
        grid = grid_of(after, before=before)
        differences = {"after": grid.differences()["after"] | {"P@1/100[judge]": of_judge, "Preference": of_people}}
        grid.differences = lambda differences=differences: differences
        checks = verdict.checks(grid, "after", judge="judge", kl=0.1)
        assert [check.name for check in checks if not check.passed] == holds
