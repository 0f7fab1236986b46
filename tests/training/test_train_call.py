"""`tellapart.train` in Python."""

import json
import shutil

import pytest
import torch

import tellapart
from capscore.errors import UserError
from tellapart import album, recipe_files
from tellapart.recipe import Recipe
from training.runs import curve

SMALL = {
    "captioner": "up_down",
    "model": {"width": 16, "attention_width": 8},
    "encoder": {"name": "efficientnet_lite2", "image_size": 64, "grid": 2},
    "data": {"min_count": 1},
    "batch_size": 2,
    "epochs": 2,
}


@pytest.fixture
def data(tmp_path, own_cache, monkeypatch):
    records = []
    for number, (photo, split) in enumerate((("205577", "train"), ("397404", "train"), ("191893", "val"))):
        shutil.copy(album.HERE / "photos" / f"coco_000000{photo}.webp", tmp_path / f"{number}.webp")
        records.append({"id": number, "file": f"{number}.webp", "split": split, "captions": ["a train", "a red train"]})
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "trains", "images": records}))
    monkeypatch.chdir(tmp_path)  # where the features are kept
    return tmp_path / "data.json"


def test_a_run_knows_its_validations_and_gives_its_captioner(data, tmp_path):
    run = tellapart.train(SMALL, data=data, out=tmp_path / "run")
    logged = curve(tmp_path / "run", "val/loss")
    assert {step: row["loss"] for step, row in run.validations.items()} == logged
    assert list(logged) == [1, 2]
    assert run.position.finished == "all epochs done"
    assert run.problems == []
    assert run.captioner(device="cpu").caption(tmp_path / "0.webp").error == ""
    html = run._repr_html_()
    assert html.count("<tr>") == 3  # the head and two validations
    assert f"<b>{logged[run.position.best_step]:.4g}</b>" in html


def test_overrides_are_nested_or_dotted_and_leave_their_neighbours_and_threads_are_those_of_the_call(data, tmp_path):
    overrides = {"optim.lr": 0.25, "max_steps": 1, "threads": 2, "optim": {"betas": (0.8, 0.9)}, "model": {"width": 24}}
    torch.set_num_threads(1)
    try:
        run = tellapart.train(SMALL, data=[data], out=tmp_path / "run", overrides=overrides)
        assert torch.get_num_threads() == 1
        with pytest.raises(UserError):
            tellapart.train(SMALL, data=data, out=tmp_path / "run", overrides=overrides)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)
    kept = recipe_files.read_yaml(run.folder / "recipe.yaml")
    assert (kept["optim"]["lr"], kept["optim"]["betas"], kept["max_steps"]) == (0.25, [0.8, 0.9], 1)
    assert kept["model"] == {"width": 24, "attention_width": 8}
    assert (kept["data"]["min_count"], kept["data"]["files"]) == (1, [str(data)])


def test_weights_of_rewards_are_one_value_and_one_of_them_can_be_set():
    def weights(overrides):
        recipe = recipe_files.with_value(Recipe(), "objective.rewards.weights", {"cider_d": 1.0})
        for name, value in recipe_files.flat(overrides).items():
            recipe = recipe_files.with_value(recipe, name, value)
        return recipe.objective.rewards.weights

    assert weights({"objective": {"rewards": {"weights": {"geg_avg": 2}}}}) == {"geg_avg": 2}
    assert weights({"objective.rewards.weights.geg_avg": 2}) == {"cider_d": 1, "geg_avg": 2}


def test_a_recipe_may_be_a_file_or_build_on_one_and_a_run_can_get_longer(data, tmp_path):
    (tmp_path / "mine.yaml").write_text(recipe_files.dump_yaml(SMALL))
    run = tellapart.train(tmp_path / "mine.yaml", data=data, out=tmp_path / "run")
    assert run.position.step == 2
    longer = {"base": str(tmp_path / "mine.yaml"), "epochs": 3}
    run = tellapart.train(longer, data=data, out=tmp_path / "run", resume=True)
    assert run.position.step == 3


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ({"stages": []}, {}, "has stages"),
        ({"epoch": 1}, {}, "epoch: a recipe has no such field; did you mean epochs"),
        (SMALL, {"optim.lrr": 1}, "optim.lrr: a recipe has no such field"),
        (SMALL, {"epochs": "two"}, "epochs must be a whole number, not 'two'"),
        ("tiny/photo_xe", {}, "there is no recipe 'tiny/photo_xe'; did you mean tiny/photos_xe"),
    ],
)
def test_a_wrong_request_is_one_sentence(tmp_path, recipe, overrides, message):
    with pytest.raises(UserError, match=message):
        tellapart.train(recipe, overrides=overrides, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
