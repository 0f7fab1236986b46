import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from capscore.errors import UserError
from tellapart import models
from tellapart.commands.train import parse
from tellapart.training.build import run


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
