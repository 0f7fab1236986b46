"""Policy gradients as recipes: every reward trains, runs go on where they stopped, and bad requests are answered."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch

from capscore import meteor
from capscore.errors import UserError
from detectors import tiny_yolox
from rewards.captions import context
from tellapart.data import examples
from tellapart.data.store import Stores
from tellapart.data.tokenizers import WordTokenizer
from tellapart.neighbours import groups, mining
from tellapart.neighbours.groups import Groups, Photo, Rule
from tellapart.recipe import RewardsConfig
from tellapart.rewards import agreement
from tellapart.rewards.preference import Preference
from tellapart.rewards.registry import REWARDS
from training.runs import assert_same_tensors, log_of, tensors_of


@pytest.fixture
def begin(begin, uninterrupted, retrievers, tmp_path):
    """A policy gradient from the small world's captioner, in this process."""

    def start(*arguments, terms="{cider_d: 1.0}", out=tmp_path / "run", resume=False):
        given = (
            f"--init_from={uninterrupted}",
            "--objective.name=policy_gradient",
            f"--objective.rewards.weights={terms}",
            f"--objective.rewards.image_retriever={retrievers[0]}",
            f"--objective.rewards.text_retriever={retrievers[1]}",
            "--objective.policy.samples=3",
            "--validation.metric=last",
            "--max_steps=2",
        )
        return begin(*given, *arguments, out=out, resume=resume)

    return start


# --- rewards ---

WORDS = WordTokenizer.build(["a ball"], 1)


def test_factors_are_of_the_photos_of_a_data_set():
    """Photos stand one data set after the other, and a set that is not named counts as it is."""
    first, second = [examples.Example(1, "1.jpg"), examples.Example(2, "2.jpg")], [examples.Example(1, "3.jpg")]
    config = RewardsConfig(weights={"cider_d": 1.0}, dataset_weights={"cider_d": {"second": 3.0}})
    made = context(
        config, [(Stores(), part) for part in (first, second, [])], WORDS, names=("first", "second", "third")
    )
    assert made.factors("cider_d").tolist() == [1, 1, 3]


def test_a_reward_that_counts_for_nothing_with_a_data_set_teaches_nothing(begin, tmp_path):
    begin(out=tmp_path / "alone")
    factors = "--objective.rewards.dataset_weights={faithful: {toy_world: 0.0}}"
    begin(factors, terms="{cider_d: 1.0, faithful: 1.0}", out=tmp_path / "nothing")
    begin(terms="{cider_d: 1.0, faithful: 1.0}", out=tmp_path / "both")
    alone, nothing, both = (tensors_of(tmp_path / run, "best") for run in ("alone", "nothing", "both"))
    assert all(alone[name].equal(nothing[name]) for name in alone)
    assert any(not alone[name].equal(both[name]) for name in alone)


def test_every_reward_trains(begin, tmp_path):
    names = [name for name in REWARDS if name != "meteor" or meteor.available() is None]
    detector = tiny_yolox.write(tmp_path / "tiny.onnx", tiny_yolox.nothing(classes=80))
    liked = tmp_path / "preferences.json"
    Preference({"a": 1.0}, -1.0, 0.0, 1.0).save(liked)
    terms = json.dumps(dict.fromkeys(names, 1.0))
    begin(f"--detector={detector}", f"--objective.rewards.preferences={liked}", terms=terms)
    steps = log_of(tmp_path / "run", "loss")
    assert len(steps) == 2
    for line in steps:
        rewards = [line[f"reward/{name}"] for name in names]
        assert all(map(math.isfinite, rewards))
        assert line["reward"] == pytest.approx(sum(rewards), abs=1e-4)
        assert line["words"] >= 12


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ["rewards.look_alikes=caption", "rewards.curriculum=true"],
        ["rewards.ld={qualify: contrast}", "rewards.weight_by_closeness=true"],
        ["rewards.ld={ngram_quantile: 0.5, word_quantile: 0.3}", "rewards.balance=true"],
        ["policy.references=2", "policy.kl=0.1"],
        ["policy.baseline=references"],
        ["policy.sampler=beam", "policy.baseline=greedy"],
    ],
)
def test_switches(begin, more):
    options = [f"--objective.{option}" for option in more]
    assert begin(*options, terms="{ld: 1.0, gd: 1.0, geg_min: 1.0}").finished == "all epochs done"


# --- runs ---


@pytest.mark.slow
def test_a_run_in_pieces_is_the_whole_run(begin, tmp_path, stopped_after):
    """Running means and spreads are kept: with another scale of a reward the weights would be others."""
    arguments = ("--objective.rewards.balance=true", "--objective.policy.baseline=running_mean", "--max_steps=4")
    arguments += ("--optim.ema_decay=0.9",)
    terms = "{cider_d: 1.0, geg_avg: 1.0, different: 1.0}"
    whole = begin(*arguments, terms=terms, out=tmp_path / "whole")
    stopped_after(lambda step: step > 0)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            begin(*arguments, terms=terms, out=tmp_path / "pieces", resume=True)
    pieces = begin(*arguments, terms=terms, out=tmp_path / "pieces", resume=True)
    pieces.seconds = whole.seconds
    assert pieces == whole
    kept = {"so_far", "reward/cider_d", "reward/geg_avg", "reward/different/memory"}
    assert {"mean/steps", *(f"objective/{name}" for name in kept)} <= tensors_of(tmp_path / "whole").keys()
    assert_same_tensors(tmp_path / "whole", tmp_path / "pieces", ["last"])


def test_a_run_without_the_default_reward_goes_on_and_knows_its_first_validation(begin, retrievers, tmp_path):
    judge = f"--validation.judges=[{retrievers[0]}]"
    position = begin(judge, terms="{repetition: 1.0}")
    first = log_of(tmp_path / "run")[0]
    assert first["step"] == 0
    assert 0 <= first["val/R@1[listener]"] <= 1
    assert position.first == {name[4:]: value for name, value in first.items() if name.startswith("val/")}
    assert begin(judge, terms="{repetition: 1.0}", resume=True).finished == "all epochs done"
    with pytest.raises(UserError, match="was started with another recipe: objective"):
        begin(judge, terms="{faithful: 1.0}", resume=True)


LONGER = ("--epochs=100", "--optim.lr=5e-3", "--optim.accumulate=1", "--optim.warmup=0")


@pytest.mark.slow
def test_a_policy_that_learns_gets_more_reward(begin, tmp_path):
    begin(*LONGER, "--max_steps=80", "--validation.every=1000", terms="{faithful: 1.0}")
    rewards = [line["reward"] for line in log_of(tmp_path / "run", "reward")]
    assert sum(rewards[-10:]) > 1.5 * sum(rewards[:10])


def test_weights_that_are_not_numbers_stop_a_run_and_keep_the_last_good_ones(begin, tmp_path, monkeypatch):
    scores, calls = agreement.Consensus.__call__, []

    def broken(self, tokens, photos, but=None):
        calls.append(1)
        return scores(self, tokens, photos, but) * (math.nan if len(calls) > 2 else 1)

    monkeypatch.setattr(agreement.Consensus, "__call__", broken)
    with pytest.raises(UserError, match="reward 'cider_d' is not a finite number for the photos at"):
        begin("--max_steps=9", "--optim.accumulate=1")
    assert all(
        tensor.isfinite().all() for tensor in tensors_of(tmp_path / "run").values() if tensor.dtype.is_floating_point
    )


def test_training_says_how_good_an_approximate_search_for_look_alikes_is(begin, tmp_path, monkeypatch, capsys):
    """And rewards are added by weight and logged apart."""
    terms, features = "{geg_avg: 10.0, repetition: 0.5, cider_d: 2.0}", f"--data.features={tmp_path / 'features'}"
    arguments = ("--objective.rewards.look_alikes=caption", features)
    plain = "--objective.rewards={balance: true, unbalanced: [geg_avg, repetition, cider_d]}"
    begin(*arguments, plain, terms=terms)
    assert "recall" not in capsys.readouterr().err
    for line in log_of(tmp_path / "run", "loss"):
        weighted = 2 * line["reward/cider_d"] + 10 * line["reward/geg_avg"] + 0.5 * line["reward/repetition"]
        assert line["reward"] == pytest.approx(weighted, abs=1e-4)
    monkeypatch.setattr(mining, "LARGE", 20)
    exact = mining.build_index  # on so few photos
    monkeypatch.setattr(mining, "build_index", lambda *given, **more: replace(exact(*given, **more), recall=0.875))
    for out in ("third", "fourth"):  # the second time from what was kept
        begin(*arguments, "--objective.rewards.group_size=3", terms="{geg_avg: 1.0}", out=tmp_path / out)
        said = re.findall(r"look-alikes of rewards: found by an index, recall (\S+) of exact", capsys.readouterr().err)
        assert said == ["0.875"]


@pytest.mark.slow
def test_a_collapse_is_seen_and_can_stop_a_run(begin, tmp_path):
    """Captions are paid for saying again what they have said, and for content words, so that those are said again."""
    arguments = ("--max_steps=200", "--validation.every=2", "--validation.watch.action=stop")
    position = begin(*LONGER, *arguments, terms="{repetition: -1.0, faithful: 20.0}")
    assert position.finished.startswith("stopped, for captions collapse: ")
    assert position.step < 200


def test_dropout_off_is_as_no_dropout(begin, tmp_path):
    """A policy gradient samples and learns without dropout unless it is asked for."""
    begin("--model.dropout=0.5", out=tmp_path / "some")
    begin("--model.dropout=0", out=tmp_path / "none")
    torch.testing.assert_close(*(tensors_of(tmp_path / name, "best") for name in ("some", "none")))


# --- look-alikes that were found before ---


def photos_of(small_world, split):
    dataset = examples.read(small_world / "toy" / "captions.json").split(split)
    return dataset, [Photo(str(e.file), str(i), e.id, e.split) for i, e in enumerate(dataset)]


@pytest.mark.parametrize("split", ["train", "test"])
def test_look_alikes_from_a_file_are_those_of_this_split(begin, small_world, tmp_path, split):
    _, photos = photos_of(small_world, split)
    found, file = Groups.empty(Rule(k=2), photos), tmp_path / "groups.json"
    for position in range(len(photos)):
        found.indices[position] = [(position + 1) % len(photos), (position + 2) % len(photos)]
        found.scores[position] = [0.9, 0.8]
    groups.save(found, file)
    arguments = (f"--objective.rewards.look_alikes={file}",)
    if split == "train":
        assert begin(*arguments, terms="{geg_avg: 1.0}").finished == "all epochs done"
    else:
        with pytest.raises(UserError, match=rf"{re.escape(str(file))}.*another split"):
            begin(*arguments, terms="{geg_avg: 1.0}")


@pytest.mark.parametrize(("metric", "sign"), [("cosine", 1), ("euclidean", -1)])
def test_how_close_look_alikes_are(small_world, tmp_path, metric, sign):
    """The nearer, the larger, whatever the file is by; a photo that has none is the farthest."""
    dataset, photos = photos_of(small_world, "train")
    found = Groups.empty(Rule(k=1, metric=metric), photos[:3])
    found.indices[:2, 0], found.scores[:2, 0] = [1, 0], [0.4, 0.9]
    groups.save(found, tmp_path / "groups.json")
    config = RewardsConfig(look_alikes=str(tmp_path / "groups.json"))
    assert context(config, [(Stores(), dataset[:3])], WORDS).closeness.tolist() == pytest.approx(
        [sign * 0.4, sign * 0.9, -math.inf]
    )
