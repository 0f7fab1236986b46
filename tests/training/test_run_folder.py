"""Folders of runs: what they take, hold, and keep of a run that was stopped or killed."""

import pytest
import torch
import yaml

from capscore.errors import UserError
from tellapart import journals
from tellapart.recipe import OptimConfig, Recipe
from tellapart.recipe_files import plain
from tellapart.training.run_folder import claim, number_type


def with_checkpoint(out, recipe=None, name="last"):
    claim(recipe or Recipe(), out, resume=False)
    (out / f"{name}.safetensors").write_bytes(b"")
    return out


@pytest.mark.parametrize("name", ["last", "best"])
def test_a_folder_that_holds_a_run_is_not_trained_into_again(tmp_path, name):
    """Also where last.safetensors was deleted, which is the large one: a run that is over does not need it."""
    out = with_checkpoint(tmp_path / "run", name=name)
    with pytest.raises(UserError, match="holds a run already; --resume continues it"):
        claim(Recipe(), out, resume=False)
    assert claim(Recipe(), out, resume=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (Recipe(epochs=9), "epochs was 10 and is 9 now; a resumed run can get longer, not shorter"),
        (Recipe(max_steps=1000), "max_steps was 0 and is 1000 now; a resumed run can get longer, not shorter"),
        (Recipe(epochs=20, seed=1), "started with another recipe: seed was 0 and is 1 now"),
        (Recipe(optim=OptimConfig(lr=0.1)), r"optim\.lr was 0\.0005 and is 0\.1 now"),
        (Recipe(model={"width": 8}), r"model\.width was None and is 8 now"),
    ],
)
def test_a_run_does_not_go_on_with_a_changed_recipe(tmp_path, changed, message):
    out = with_checkpoint(tmp_path / "run")
    with pytest.raises(UserError, match=message):
        claim(changed, out, resume=True)


@pytest.mark.parametrize(
    ("before", "longer"),
    [
        (Recipe(), Recipe(epochs=11)),
        (Recipe(max_steps=5), Recipe(max_steps=6)),
        (Recipe(max_steps=5), Recipe(max_steps=0)),
        (Recipe(max_steps=5), Recipe(max_steps=6, epochs=20)),
    ],
)
def test_a_run_may_get_longer(tmp_path, before, longer):
    assert claim(longer, with_checkpoint(tmp_path / "run", before), resume=True)


def test_a_recipe_is_the_same_after_a_while_in_a_file(tmp_path):
    recipe = Recipe(model={"width": 8, "dropout": 1e-5}, optim=OptimConfig(lr=1e-7, betas=(0.8, 0.9)))
    assert yaml.safe_load(yaml.safe_dump(plain(recipe))) == plain(recipe)
    assert claim(recipe, with_checkpoint(tmp_path / "run", recipe), resume=True)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path, tellapart, recipe):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is not empty and holds no run"):
        claim(Recipe(), tmp_path, resume=False)
    code, _, err = tellapart("train", recipe, "--out", tmp_path / "thesis.tex")
    assert (code, err.count("\n")) == (2, 1)
    assert "thesis.tex is not a folder" in err
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"thesis.tex": "years of work"}


def test_a_run_that_never_began_leaves_its_folder_to_the_next(tellapart, recipe, tmp_path):
    """Who forgets --data adds it and runs the command again."""
    request = ("train", recipe, "--out", tmp_path / "run", "--max_steps", 1)
    assert tellapart(*request, "--data", "nowhere.json")[0] == 2
    code, _, err = tellapart(*request)
    assert code == 0, err


def test_what_a_kill_left_half_written_is_cleared_away(tmp_path):
    (tmp_path / ".tellapart-0123.tmp").write_bytes(b"half a recipe")
    assert claim(Recipe(), tmp_path, resume=True) is False
    assert [file.name for file in tmp_path.iterdir()] == ["recipe.yaml"]
    (with_checkpoint(tmp_path) / ".tellapart-0123.tmp").write_bytes(b"half a checkpoint")
    assert claim(Recipe(), tmp_path, resume=True)
    assert not list(tmp_path.glob(".tellapart-*"))


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (lambda text: "epochs: [", "is damaged"),
        (lambda text: "- 1", "is damaged"),
        (lambda text: "{}", "was None"),
        (lambda text: text.replace("epochs: 10", "epochs: many"), "epochs was many and is 10 now"),
    ],
)
def test_a_damaged_recipe_in_a_run_folder_is_named(tmp_path, content, answer):
    out = with_checkpoint(tmp_path / "run")
    (out / "recipe.yaml").write_text(content((out / "recipe.yaml").read_text()))
    with pytest.raises(UserError, match=answer):
        claim(Recipe(), out, resume=True)
    assert number_type(Recipe(), out, True, torch.device("cpu")) == "fp32"


def test_a_run_keeps_its_vocabulary_though_the_data_have_grown(begin, tmp_path):
    """The weights belong to the words they were trained with.  Of photos beyond `validation.photos` no features are
    computed: the world has 30 scenes to train on, and 5 for validation.
    """
    arguments = ("--max_steps=1", "--validation.photos=2", f"--data.features={tmp_path / 'features'}")
    begin(*arguments)
    (rows,) = tmp_path.glob("features/*/rows.jsonl")
    assert len(rows.read_text().splitlines()) == 30 + 2
    file = tmp_path / "run" / "vocabulary.json"
    vocabulary = file.read_text().replace('"ball"', '"globe"')
    file.write_text(vocabulary)
    begin(*arguments, resume=True)
    assert file.read_text() == vocabulary


def test_two_processes_cannot_train_in_one_folder(tmp_path, begin):
    with journals.held(tmp_path / "run", "busy"), pytest.raises(UserError, match="another process is training in this"):
        begin("--max_steps=1")
    assert list((tmp_path / "run").iterdir()) == []  # the folder is the other's
    with pytest.raises(BlockingIOError, match="of its own"), journals.held(tmp_path / "run", "busy"):
        raise BlockingIOError("of its own")
    assert begin("--max_steps=1").step == 1  # free again
