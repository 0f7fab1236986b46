"""How far automatic measures agree with people, against a loop over all pairs."""

import json
from itertools import combinations

import numpy as np
import pytest

from study.studies import store, study
from tellapart.__main__ import main
from tellapart.study import results, simulate
from tellapart.study.folder import Answers
from tellapart.study.results import analyse, tables

pytest.importorskip("scipy", reason="statistics of studies")


def share(pairs):
    """Of (people's preference, the measure's): how often they have one sign; none of the measure's is a half."""
    return np.mean([0.5 if measured == 0 else float((people > 0) == (measured > 0)) for people, measured in pairs])


def test_the_share_of_pairs_in_which_a_measure_prefers_the_caption_that_people_found_their_way_by(tmp_path):
    made = study(tmp_path, "choose", answers=3)
    persons, answers = simulate.people(made, {"plain": 0.4, "rich": 0.7}, seed=3)
    found = analyse(made, persons, answers)
    random = np.random.default_rng(0)
    values = {caption: float(random.integers(4)) for caption in results.captions_of(made)}
    assert len(values) == 2 * 24
    right = {}
    for row in found.counted:
        right.setdefault((row.trial.set, row.trial.models[0]), []).append(row.answer.response == row.trial.set)
    pairs = [
        (np.mean(right[one]) - np.mean(right[other]), values[one] - values[other], one[0] == other[0])
        for one, other in combinations(values, 2)
    ]
    told = [pair for pair in pairs if pair[0]]
    shares = results.agreement(found, {"X": values})["X"]
    assert shares["all captions"]["value"] == pytest.approx(share([pair[:2] for pair in told]))
    assert shares["all captions"]["pairs"] == len(told)
    assert shares["of the same photo"]["value"] == pytest.approx(share([pair[:2] for pair in told if pair[2]]))
    assert shares["all captions"]["low"] < shares["all captions"]["value"] < shares["all captions"]["high"]


def test_a_measure_that_thinks_as_people_do_agrees_with_all_and_its_opposite_with_none(tmp_path):
    made = study(tmp_path, "compare", answers=2)
    persons, answers = simulate.people(made, {"plain": 0.5, "rich": 0.5}, seed=1)
    found = analyse(made, persons, answers)
    values = dict.fromkeys(results.captions_of(made), 0.0)
    for row in found.counted:  # the first caption shown is worth what people give to it
        for place, model in enumerate(row.trial.models):
            sign = {("first", "second")[place]: 1, ("second", "first")[place]: -1}
            values[row.trial.set, model] += sign.get(row.answer.response["accuracy"], 0)
    opposite = {caption: -value for caption, value in values.items()}
    shares = results.agreement(found, {"same": values, "opposite": opposite, "blind": dict.fromkeys(values, 1.0)})
    assert [shares[name]["accuracy"]["value"] for name in shares] == [1, 0, 0.5]
    assert shares["same"]["accuracy"]["pairs"] > 10
    found.figures["agreement"] = shares
    line = next(line for line in tables(found) if "opposite" in line)
    assert line.startswith("agreement with people, opposite: accuracy 0.0 [0.0, 0.0] of ")


def test_intervals_hold_a_share_that_is_known(tmp_path):
    """A measure that is right about each photo with 70 % chance: in about 95 of 100 studies it is in the interval."""
    held = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        right = (random.random(60) < 0.7).astype(float)
        found = results._share(np.diag(right), np.eye(60))
        held += found["low"] <= 0.7 <= found["high"]
    assert 88 <= held <= 100


@pytest.mark.slow
def test_results_on_the_command_line_measure_the_captions_by_a_retriever(tmp_path, capsys, small_retriever, own_cache):
    made = study(tmp_path, "choose", captions=("human", "plain.json"), sets=8)
    database = Answers(tmp_path / "study")
    persons, answers = simulate.people(made, {"human": 0.5, "plain": 0.5})
    store(database, made, persons, answers)
    options = ["--retriever", str(small_retriever), "--out", str(tmp_path / "out")]
    assert main(["study", "results", str(tmp_path / "study"), *options]) == 0
    out, err = capsys.readouterr()
    figures = json.loads((tmp_path / "out" / "results.json").read_text())["figures"]["agreement"]
    name = small_retriever.name
    assert {f"R@1[{name}]", f"GEG-Avg[{name}]", f"Cosine[{name}]"} <= figures.keys()
    assert "TT R@1" in figures or "TT is left out" in err
    assert f"agreement with people, Cosine[{name}]: all captions " in out
