"""Validation: any score of the measure table chooses the best checkpoint, and the watch sees captions collapse."""

import pytest

import tellapart as package
from capscore.errors import UserError
from capscore.measures import MEASURES, Measure, Score
from capscore.statistics import mean_of
from tellapart.recipe import WatchConfig
from tellapart.training.validation import Watch, wilson
from training.runs import curve


@pytest.fixture
def longest(monkeypatch):
    """A measure of a plugin: captions of more than two words, as a share of all."""
    monkeypatch.setattr(MEASURES, "_lines", dict(MEASURES._lines))
    MEASURES.__dict__.pop("home", None)
    MEASURES["Long"] = Measure(
        (Score("Long", "Captions of more than two words."),),
        lambda inputs: mean_of("Long", [len(text.split()) > 2 for text in inputs.texts]),
        needs=(),
        signature=(),
    )
    yield "Long"
    MEASURES.__dict__.pop("home", None)


@pytest.mark.parametrize("metric", ["ROUGE-L", "BLEU-1"])
def test_a_run_is_chosen_by_a_measure_as_score_has_it(tellapart, begin, small_world, tmp_path, metric):
    position = begin(f"--validation.metric={metric}", "--max_steps=9", "--validation.every=0.5")
    values = curve(tmp_path / "run", f"val/{metric}")
    assert position.best == max(values.values()) == values[position.best_step]
    data, out = small_world / "toy" / "captions.json", tmp_path / "captions.jsonl"
    arguments = ("--split", "val", "--model", tmp_path / "run", "--beam", 1, "--out", out)
    code, _, err = tellapart("caption", data, *arguments)
    assert code == 0, err
    assert package.score(out, data, split="val", metrics=metric)[metric] == pytest.approx(position.best, abs=1e-9)


def test_a_run_is_chosen_by_the_measure_of_a_plugin_and_what_is_none_is_refused_with_it(longest, begin, tmp_path):
    position = begin(f"--validation.metric={longest}", "--max_steps=2")
    assert curve(tmp_path / "run", f"val/{longest}") == {2: position.best}
    with pytest.raises(UserError, match="there is no 'METEORS' here; there are loss, accuracy, CIDEr-D") as refused:
        begin("--validation.metric=METEORS")
    listed = str(refused.value).partition("there are ")[2].rstrip(".").split(", ")
    assert {"METEOR", "BLEU-4", "Long", "last"} <= set(listed)
    assert "Novel" not in listed


SOUND = {"unique": 0.8, "length": 10.0, "Rep": 0.1, "BadEnd": 0.01, "Stutter": 0.0, "UnusualOrder": 0.01}


def watched(change, photos=1000, first=SOUND, action="warn"):
    return Watch(WatchConfig(action), photos=photos).check(first, first | change)


@pytest.mark.parametrize(
    ("change", "sign"),
    [
        ({"unique": 0.39}, "39 % of the captions are different (80 % before)"),
        ({"length": 15.1}, "captions have 15.1 words (10.0 before)"),
        ({"length": 6.5}, "captions have 6.5 words"),
        ({"Rep": 0.36}, "36 % of the captions repeat a word (10 % before)"),
        ({"BadEnd": 0.07}, "7 % of the captions break off (1 % before)"),
        ({"Stutter": 0.03}, "3 % of the captions stutter (0 % before)"),
        ({"UnusualOrder": 0.04}, "4 % of the captions have an unusual order of words (1 % before)"),
    ],
)
def test_what_a_watch_sees(change, sign):
    assert sign in watched(change)
    assert watched({"unique": 0.41, "length": 14.9, "Rep": 0.34}) == watched({}) == ""
    assert watched({"unique": 0.0}, action="off") == ""
    assert [Watch(WatchConfig(action), photos=9).stops for action in ("warn", "stop", "off")] == [False, True, False]


FEW = SOUND | {"unique": 0.9, "length": 6.0, "Stutter": 0.0, "UnusualOrder": 0.0}


@pytest.mark.parametrize(
    ("photos", "change", "seen"),
    [
        # one caption of 49 is more than the two in a hundred that are allowed; 5 of 250 are not
        *((49, {name: 1 / 49}, False) for name in ("Stutter", "UnusualOrder")),
        *((50, {name: 4 / 50}, False) for name in ("Stutter", "UnusualOrder")),
        # Fisher's exact test against none of fifty: p = 0.027; of four it is 0.117
        *((50, {name: 6 / 50}, True) for name in ("Stutter", "UnusualOrder")),
        *((250, {name: 5 / 250}, False) for name in ("Stutter", "UnusualOrder")),
        *((250, {name: 8 / 250}, True) for name in ("Stutter", "UnusualOrder")),
        *((photos, {"length": 9.1}, photos > 6) for photos in (4, 6, 20, 500)),
        *((photos, {"unique": 0.4}, photos > 6) for photos in (4, 6, 20, 500)),
    ],
)
def test_what_chance_could_do_as_well_is_not_cried_about(photos, change, seen):
    assert bool(watched(change, photos, FEW)) == seen


def test_the_interval_of_a_share_is_the_one_of_the_books():
    """Newcombe (1998), table I: Wilson's interval of 15 of 148, and of 0 of 20."""
    assert wilson(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
