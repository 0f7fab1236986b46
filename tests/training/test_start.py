"""The model that a run starts from gives it words and weights, and competes with what becomes of it."""

import html
import json
import shutil

import pytest
import torch
import yaml

import tellapart as package
from capscore.errors import UserError
from tellapart import models
from tellapart.recipe import WatchConfig
from tellapart.training.validation import Watch
from training.runs import curve, tensors_of
from training.test_loop import train


def test_a_run_starts_with_the_words_and_weights_of_another(begin, uninterrupted, tmp_path):
    begin(f"--init_from={uninterrupted}", "--max_steps=1", "--optim.lr=0", "--optim.weight_decay=0")
    before, after = tensors_of(uninterrupted, "best"), tensors_of(tmp_path / "run", "best")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (tmp_path / "run" / "vocabulary.json").read_text() == (uninterrupted / "vocabulary.json").read_text()
    # weights lie in memory by columns for speed; their values are those of the file
    loaded = models.load(uninterrupted, torch.device("cpu")).captioner.state_dict()
    assert all(torch.equal(loaded[name], before[name]) for name in before)


def test_a_run_does_not_start_from_what_does_not_fit(begin, uninterrupted, tmp_path):
    other = shutil.copytree(uninterrupted, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    config["encoder"]["weights_sha256"] = "0" * 64
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"init_from: .*other learned from features of another encoder: weights_sha256"):
        begin(f"--init_from={other}")
    with pytest.raises(UserError, match="is a checkpoint of another model"):
        begin(f"--init_from={uninterrupted}", "--model.feed_forward=32")


def test_two_data_sets_of_one_name_do_not_mix_their_features(begin, small_world, tmp_path):
    shutil.copytree(small_world / "toy", tmp_path / "toy")
    with pytest.raises(UserError, match="are both called"):
        begin("--data", *(folder / "toy" / "captions.json" for folder in (small_world, tmp_path)))


SOUND = {"unique": 0.8, "length": 10.0, "Rep": 0.1, "BadEnd": 0.0, "Stutter": 0.0, "UnusualOrder": 0.0}
STUTTERING = SOUND | {"Stutter": 1.0}


def cider(*values):
    return [SOUND | {"CIDEr-D": value} for value in values]


@pytest.mark.parametrize(
    ("validations", "metric", "init_from", "watched", "kept", "fault"),
    [
        (cider(0.356, 0.1, 0.0673), "CIDEr-D", "runs/start", False, 0,
         "no validation was better than the start (CIDEr-D 0.3560); the run's model is its start."),
        (cider(0.3, 0.4, 0.2), "CIDEr-D", "runs/start", False, 10, ""),
        (cider(0.0, 0.0), "CIDEr-D", "", False, 10, ""),  # random weights do not compete
        # what collapsed at the last step is the model of "last"; before or after the weights that are kept, no matter
        ([SOUND, SOUND, STUTTERING], "last", "runs/start", True, 20,
         "captions collapse: 100 % of the captions stutter (0 % before)."),
        ([SOUND, STUTTERING, SOUND], "last", "runs/start", True, 20, ""),
        ([*cider(0.3, 0.4), STUTTERING | {"CIDEr-D": 0.1}], "CIDEr-D", "runs/start", True, 10, ""),
    ],
)  # fmt: skip
def test_a_run_whose_model_is_not_what_it_was_trained_for_says_so(
    tmp_path, validations, metric, init_from, watched, kept, fault
):
    """The start competes; two epochs of ten steps follow."""
    watch = Watch(WatchConfig(), photos=1000) if watched else None
    settings = {"init_from": init_from, "epochs": 2, "watch": watch}
    position, _ = train(tmp_path, metrics=validations, metric=metric, **settings)
    assert (position.best_step, position.fault(metric)) == (kept, fault)
    assert (tensors_of(tmp_path, "best")["weight"].item() == 1) == (kept == 0)


def test_the_command_exits_with_1_and_captions_with_the_start_and_python_tells_it_too(
    tellapart, recipe, uninterrupted, tmp_path
):
    """As when a reward of 0.35 was left for one of 0.07 and the run ended with exit code 0."""
    changes = {"init_from": uninterrupted, "optim.lr": 10, "validation.metric": "CIDEr-D", "max_steps": 3}
    options = [f"--{name}={value}" for name, value in changes.items()]
    code, out, err = tellapart("train", recipe, "--out", tmp_path / "run", *options)
    assert code == 1, err
    assert "at step 0" in out
    assert f"{tmp_path / 'run'}: no validation was better than the start (CIDEr-D " in err
    start, best = (tensors_of(run, "best") for run in (uninterrupted, tmp_path / "run"))
    assert all(start[name].equal(best[name]) for name in start)
    shown = curve(tmp_path / "run", "val/CIDEr-D")
    assert max(shown, key=shown.get) == 0  # as `compare` has it
    run = package.train(recipe, out=tmp_path / "run", overrides=changes, resume=True)
    assert run.fault.startswith("no validation was better than the start (CIDEr-D ")
    assert run.fault in html.unescape(run._repr_html_())


def test_a_stage_at_fault_holds_up_what_uses_it_and_nothing_else(tellapart, recipe, tmp_path):
    stages = [
        {"name": "xe"},
        {"name": "still", "init_from": "xe", "optim": {"lr": 0}},  # never better than its start
        {"name": "after", "init_from": "still"},
        {"name": "mean", "mean": {"after": 1, "xe": 1}},
        {"name": "beside", "init_from": "xe"},
    ]
    (tmp_path / "world.yaml").write_bytes(recipe.read_bytes())
    file, out = tmp_path / "chain.yaml", tmp_path / "runs"
    file.write_text(yaml.safe_dump({"base": "world", "max_steps": 2, "stages": stages}))
    for more in ((), ("--resume",)):
        code, printed, err = tellapart("train", file, "--out", out, *more)
        assert code == 1, err
        assert "stage 2 of 5, still: no validation was better than the start (loss " in err
        assert "not started, for they use it: after, mean." in err
        assert "the rest is done" in printed
        assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["beside", "still", "xe"]
    stages[1]["validation"] = {"metric": "last"}  # so it may end with whatever it has
    file.write_text(yaml.safe_dump({"base": "world", "max_steps": 2, "stages": stages}))
    code, printed, err = tellapart("train", file, "--out", out, "--resume")
    assert code == 0, err
    assert "all 5 stages are done" in printed
