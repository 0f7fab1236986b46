"""Validation: any score of the measure table chooses the best checkpoint, and the watch sees captions collapse."""

import json

import pytest

import tellapart as package
from capscore.measures import MEASURES, Measure, Score
from capscore.statistics import mean_of
from tellapart.commands.train import parse
from tellapart.recipe import WatchConfig
from tellapart.training.build import run
from tellapart.training.validation import Watch, wilson


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


def train(small_world, out, metric, *arguments):
    recipe, out, _ = parse(
        [str(small_world / "recipe.yaml"), f"--validation.metric={metric}", f"--out={out}", *arguments]
    )
    position = run(recipe, out).position
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return position, {line["step"]: line[f"val/{metric}"] for line in lines if f"val/{metric}" in line}


@pytest.mark.parametrize("metric", ["ROUGE-L", "BLEU-1"])
def test_a_run_is_chosen_by_a_measure_as_score_has_it(tellapart, small_world, tmp_path, metric):
    position, values = train(small_world, tmp_path / "run", metric, "--max_steps=9", "--validation.every=0.5")
    assert position.best == max(values.values()) == values[position.best_step]
    data, out = small_world / "toy" / "captions.json", tmp_path / "captions.jsonl"
    arguments = ("--split", "val", "--model", tmp_path / "run", "--beam", 1, "--out", out)
    code, _, err = tellapart("caption", data, *arguments)
    assert code == 0, err
    assert package.score(out, data, split="val", metrics=metric)[metric] == pytest.approx(position.best, abs=1e-9)


def test_a_run_is_chosen_by_the_measure_of_a_plugin(longest, small_world, tmp_path):
    position, values = train(small_world, tmp_path / "run", longest, "--max_steps=2")
    assert values == {2: position.best}


@pytest.mark.parametrize("metric", ["BLEU", "mBLEU", "Novel", "METEORS"])
def test_what_no_validation_measures_is_refused_with_what_there_is(tellapart, small_world, longest, tmp_path, metric):
    """mBLEU compares several captions of a photo, Novel needs those of the training."""
    code, _, err = tellapart(
        *("train", small_world / "recipe.yaml", "--out", tmp_path / "run", "--validation.metric", metric)
    )
    assert code == 2
    assert f"validation.metric: there is no {metric!r} here; there are loss, accuracy, CIDEr-D" in err
    for name in ("METEOR", "BLEU-4", "Long", "last"):
        assert name in err
    assert "Novel," not in err.partition("there are")[2]


def test_a_measure_that_is_neither_better_nor_worse_is_refused(tellapart, small_world, tmp_path):
    code, _, err = tellapart(
        *("train", small_world / "recipe.yaml", "--out", tmp_path / "run", "--validation.metric", "AvgLen")
    )
    assert code == 2
    assert "AvgLen is neither better nor worse when it grows" in err


def test_what_a_watch_sees():
    watch = Watch(WatchConfig(), photos=1000)
    first = {"unique": 0.8, "length": 10.0, "Rep": 0.1, "BadEnd": 0.01, "Stutter": 0.0, "UnusualOrder": 0.01}
    assert watch.check(first, first) == ""
    assert watch.check(first, first | {"unique": 0.41, "length": 14.9, "Rep": 0.34}) == ""
    assert "39 % of the captions are different (80 % before)" in watch.check(first, first | {"unique": 0.39})
    assert "captions have 15.1 words (10.0 before)" in watch.check(first, first | {"length": 15.1})
    assert "captions have 6.5 words" in watch.check(first, first | {"length": 6.5})
    assert "36 % of the captions repeat a word (10 % before)" in watch.check(first, first | {"Rep": 0.36})
    assert "7 % of the captions break off (1 % before)" in watch.check(first, first | {"BadEnd": 0.07})
    assert "3 % of the captions stutter (0 % before)" in watch.check(first, first | {"Stutter": 0.03})
    assert "4 % of the captions have an unusual order of words (1 % before)" in watch.check(
        first, first | {"UnusualOrder": 0.04}
    )
    assert Watch(WatchConfig("off"), photos=1000).check(first, first | {"unique": 0.0}) == ""
    assert [Watch(WatchConfig(action), photos=9).stops for action in ("warn", "stop", "off")] == [False, True, False]


SOUND = {"unique": 1.0, "length": 10.0, "Rep": 0.0, "BadEnd": 0.0, "Stutter": 0.0, "UnusualOrder": 0.0}


@pytest.mark.parametrize(
    ("photos", "captions", "seen"),
    [
        (49, 1, False),  # more than the two in a hundred that are allowed, and yet one caption
        (50, 4, False),
        (50, 6, True),  # Fisher's exact test against none of fifty: p = 0.027; of four it is 0.117
        (250, 5, False),  # no more than is allowed
        (250, 8, True),
    ],
)
@pytest.mark.parametrize("name", ["Stutter", "UnusualOrder"])
def test_a_few_captions_are_no_collapse(name, photos, captions, seen):
    """What chance could do as well is not cried about."""
    found = Watch(WatchConfig(), photos=photos).check(SOUND, SOUND | {name: captions / photos})
    assert bool(found) == seen


@pytest.mark.parametrize(("photos", "seen"), [(4, False), (6, False), (20, True), (500, True)])
def test_a_few_photos_show_no_collapse_of_lengths_or_of_different_captions(photos, seen):
    watch = Watch(WatchConfig(), photos=photos)
    assert bool(watch.check(SOUND | {"length": 6.0}, SOUND | {"length": 9.1})) == seen
    assert bool(watch.check(SOUND | {"unique": 0.9}, SOUND | {"unique": 0.4})) == seen


def test_the_interval_of_a_share_is_the_one_of_the_books():
    """Newcombe (1998), table I: Wilson's interval of 15 of 148, and of 0 of 20."""
    assert wilson(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
