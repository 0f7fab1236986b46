"""`validation.metric` takes any score of the measure table, a plugin's too."""

import json

import pytest

import tellapart as package
from capscore.measures import MEASURES, Measure, Score
from capscore.statistics import mean_of
from tellapart.commands.train import parse
from tellapart.training.build import run


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
