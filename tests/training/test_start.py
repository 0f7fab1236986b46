"""The model that a run starts from gives it words and weights, and competes with what becomes of it."""

import html
import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn

import tellapart as package
from capscore.errors import UserError
from tellapart import models
from tellapart.commands.train import parse
from tellapart.objectives import StepResult
from tellapart.recipe import Recipe, ValidationConfig, WatchConfig
from tellapart.training.build import run
from tellapart.training.loop import fit
from tellapart.training.validation import Watch


@pytest.fixture
def recipe(small_world, tmp_path):
    def read(*changes):
        return parse([str(small_world / "recipe.yaml"), f"--out={tmp_path / 'new'}", *changes])[:2]

    return read


def test_a_run_starts_with_the_words_and_weights_of_another(recipe, uninterrupted):
    changes = [f"--init_from={uninterrupted}", "--max_steps=1", "--optim.lr=0", "--optim.weight_decay=0"]
    settings, out = recipe(*changes)
    run(settings, out)
    before, after = load_file(uninterrupted / "best.safetensors"), load_file(out / "best.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (out / "vocabulary.json").read_text() == (uninterrupted / "vocabulary.json").read_text()


def test_a_run_does_not_start_from_another_encoders_features(recipe, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    config["encoder"]["weights_sha256"] = "0" * 64
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"init_from: .*other learned from features of another encoder: weights_sha256"):
        run(*recipe(f"--init_from={tmp_path / 'other'}"))


def test_a_run_does_not_start_from_a_captioner_of_another_size(recipe, uninterrupted):
    with pytest.raises(UserError, match="is a checkpoint of another model"):
        run(*recipe(f"--init_from={uninterrupted}", "--model.feed_forward=32"))


def test_a_model_that_is_not_there_is_named(recipe):
    with pytest.raises(UserError, match="there is no model 'nowhere'"):
        run(*recipe("--init_from=nowhere"))


def test_two_data_sets_of_one_name_do_not_mix_their_features(recipe, small_world, tmp_path):
    shutil.copytree(small_world / "toy", tmp_path / "toy")
    files = [small_world / "toy" / "captions.json", tmp_path / "toy" / "captions.json"]
    with pytest.raises(UserError, match="are both called"):
        run(*recipe("--data", *map(str, files)))


def test_a_run_is_not_judged_by_what_it_learned_from(recipe):
    with pytest.raises(UserError, match=r"data\.train_split and data\.val_split share 'train'"):
        run(*recipe("--data.val_split=train"))


def test_saying_words_in_a_row_does_not_change_what_is_loaded(uninterrupted):
    """The weights lie in memory by columns for speed; their values are those of the file."""
    loaded = models.load(uninterrupted, torch.device("cpu")).captioner.state_dict()
    stored = load_file(uninterrupted / "best.safetensors")
    assert all(torch.equal(loaded[name], stored[name]) for name in stored)


class Batches:
    """Ten an epoch, of nothing."""

    batches_per_epoch = 10

    def __init__(self):
        self.consumed = 0

    def __iter__(self):
        while True:
            self.consumed += 1
            yield self

    def to(self, _device):
        return self


SOUND = {"unique": 0.8, "length": 10.0, "Rep": 0.1, "BadEnd": 0.0, "Stutter": 0.0, "UnusualOrder": 0.0}
STUTTERING = SOUND | {"Stutter": 1.0}


@pytest.fixture
def train(tmp_path):
    """A run of one weight, 1 before the first step and less after each; a validation after each of two epochs."""

    def run(*validations, metric="CIDEr-D", init_from="runs/start", **more):
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        results = iter(validations)
        position = fit(
            Recipe(
                init_from=init_from, epochs=2, dtype="fp32", validation=ValidationConfig(metric=metric), log_steps=1
            ),
            tmp_path,
            model=model,
            step=lambda batch, info: StepResult(model.weight.sum(), 1, {"loss": 1.0}),
            validate=lambda: next(results),
            stream=Batches(),
            device=torch.device("cpu"),
            resume=False,
            **more,
        )
        return position, load_file(tmp_path / "best.safetensors")["weight"].item()

    return run


def cider(*values):
    return [SOUND | {"CIDEr-D": value} for value in values]


def test_a_run_that_is_never_better_keeps_its_start_and_says_so(train):
    position, weight = train(*cider(0.356, 0.1, 0.0673))
    assert (position.best, position.best_step, weight) == (0.356, 0, 1.0)
    assert position.fault("CIDEr-D") == (
        "no validation was better than the start (CIDEr-D 0.3560); the run's model is its start."
    )


def test_a_run_that_gets_better_once_keeps_that(train):
    position, weight = train(*cider(0.3, 0.4, 0.2))
    assert (position.best, position.best_step, position.fault("CIDEr-D")) == (0.4, 10, "")
    assert weight < 1


def test_random_weights_do_not_compete(train):
    position, weight = train(*cider(0.0, 0.0), init_from="")
    assert (position.best_step, position.fault("CIDEr-D")) == (10, "")
    assert weight < 1


def test_what_collapsed_at_the_last_step_is_the_model_of_last_and_is_at_fault(train):
    watch = Watch(WatchConfig(), photos=1000)
    position, weight = train(SOUND, SOUND, STUTTERING, metric="last", watch=watch)
    assert position.best_step == 20
    assert weight < 1
    assert "captions collapse: 100 % of the captions stutter" in position.fault("last")


def test_a_collapse_before_or_after_the_weights_that_are_kept_is_no_fault(train):
    watch = Watch(WatchConfig(), photos=1000)
    position, _ = train(SOUND, STUTTERING, SOUND, metric="last", watch=watch)
    assert position.fault("last") == ""
    position, _ = train(*cider(0.3, 0.4), STUTTERING | {"CIDEr-D": 0.1}, watch=watch)
    assert position.fault("CIDEr-D") == ""


def test_the_command_exits_with_1_and_captions_with_the_start(tellapart, small_world, uninterrupted, tmp_path):
    """As when a reward of 0.35 was left for one of 0.07 and the run ended with exit code 0."""
    code, out, err = tellapart(
        *("train", small_world / "recipe.yaml", "--init_from", uninterrupted, "--out", tmp_path / "run"),
        *("--optim.lr", 10, "--validation.metric", "CIDEr-D", "--max_steps", 3),
    )
    assert code == 1, err
    assert "at step 0" in out
    assert f"{tmp_path / 'run'}: no validation was better than the start (CIDEr-D " in err
    start, best = (load_file(run / "best.safetensors") for run in (uninterrupted, tmp_path / "run"))
    assert all(start[name].equal(best[name]) for name in start)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    shown = {line["step"]: line["val/CIDEr-D"] for line in lines if "val/CIDEr-D" in line}
    assert max(shown, key=shown.get) == 0  # as `compare` has it


def test_python_tells_it_too(small_world, uninterrupted, tmp_path):
    overrides = {"init_from": uninterrupted, "optim.lr": 10, "validation.metric": "CIDEr-D", "max_steps": 3}
    run = package.train(small_world / "recipe.yaml", out=tmp_path / "run", overrides=overrides)
    assert run.fault.startswith("no validation was better than the start (CIDEr-D ")
    assert run.fault in html.unescape(run._repr_html_())
    again = package.train(small_world / "recipe.yaml", out=tmp_path / "run", overrides=overrides, resume=True)
    assert again.fault == run.fault


def test_a_stage_at_fault_holds_up_what_uses_it_and_nothing_else(tellapart, small_world, tmp_path):
    still = {"optim": {"lr": 0}}  # never better than its start
    stages = [
        {"name": "xe"},
        {"name": "still", "init_from": "xe", **still},
        {"name": "after", "init_from": "still"},
        {"name": "mean", "mean": {"after": 1, "xe": 1}},
        {"name": "beside", "init_from": "xe"},
    ]
    (tmp_path / "world.yaml").write_bytes((small_world / "recipe.yaml").read_bytes())
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
