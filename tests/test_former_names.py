"""Recipes and runs of earlier versions are read under the names of this one."""

import json

import pytest

from capscore.errors import UserError
from tellapart.commands import train
from tellapart.evaluation import training_runs
from tellapart.former_names import renewed
from tellapart.recipe import Recipe, WatchConfig
from tellapart.training import run_folder
from tellapart.training.watch import Watch

FORMER = """
objective: {name: policy_gradient, rewards: {terms: {cider_d: 1.0, usage: 0.2}, unbalanced: [usage, ending]}}
validation: {metric: Odd, watch: {odd: 0.05}}
"""


def test_a_recipe_of_an_earlier_version_is_read(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(FORMER)
    recipe, _, _ = train.parse([str(tmp_path / "recipe.yaml")])
    assert recipe.objective.rewards.weights == {"cider_d": 1.0, "unusual_order": 0.2}
    assert recipe.objective.rewards.unbalanced == ["unusual_order", "ending"]
    assert recipe.validation.metric == "UnusualOrder"
    assert recipe.validation.watch.unusual_order == 0.05
    assert capsys.readouterr().err == ""


def test_stages_have_former_names_too(tmp_path):
    stages = "stages: [{name: a, optim: {average: 0.5}}, {name: b, init_from: a, validation: {metric: Odd}}]"
    (tmp_path / "chain.yaml").write_text(stages)
    first, second = train.asked([str(tmp_path / "chain.yaml")]).what
    assert (first.recipe.optim.ema_decay, second.recipe.validation.metric) == (0.5, "UnusualOrder")


def test_what_is_called_the_same_is_left_alone():
    content = {"objective": {"rewards": {"weights": {"cider_d": 1.0}}}, "data": {"files": ["usage", "Odd"]}, "x": None}
    assert renewed(content) == content
    assert renewed("no recipe") == "no recipe"


def test_a_recipe_with_both_names_is_refused():
    with pytest.raises(UserError, match=r"^validation\.watch has both odd and unusual_order"):
        renewed({"validation": {"watch": {"odd": 0.1, "unusual_order": 0.2}}})


def test_a_run_of_an_earlier_version_goes_on_and_is_compared(tmp_path):
    recipe = Recipe()
    recipe.objective.rewards.weights = {"unusual_order": 0.2}
    run_folder.keep(recipe, tmp_path)
    stored = (tmp_path / "recipe.yaml").read_text().replace("unusual_order: 0.2", "usage: 0.2")
    stored = stored.replace("    unusual_order: 0.02", "    odd: 0.02").replace("- unusual_order", "- usage")
    assert stored.count("usage") == 2
    assert stored.count("odd:") == 1
    (tmp_path / "recipe.yaml").write_text(stored)
    (tmp_path / "last.safetensors").write_bytes(b"")
    assert run_folder.claim(recipe, tmp_path, resume=True)
    (tmp_path / "last.safetensors").unlink()
    (tmp_path / "log.jsonl").write_text(json.dumps({"step": 1, "val/Odd": 0.25}) + "\n")
    (run,) = training_runs.read([str(tmp_path)])
    assert run.validations == {"UnusualOrder": [(1, 0.25)]}
    assert run.recipe.objective.rewards.weights == {"unusual_order": 0.2}


def test_a_watched_run_of_an_earlier_version_is_compared_with_its_own_beginning():
    first = {"unique": 1.0, "length": 10.0, "Rep": 0.0, "BadEnd": 0.0, "Stutter": 0.0, "Odd": 0.0}
    now = {**first, "UnusualOrder": 0.5}
    assert "50 % of the captions have an unusual order of words" in Watch(WatchConfig(), photos=1000).check(first, now)
