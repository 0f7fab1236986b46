"""Folders of runs: what they take, hold, and keep of a run that was stopped or killed."""

import pytest
import torch
import yaml

from capscore.errors import UserError
from tellapart import journals
from tellapart.commands.train import parse
from tellapart.recipe import OptimConfig, Recipe
from tellapart.recipe_files import plain
from tellapart.training.build import run
from tellapart.training.run_folder import claim, number_type


def with_checkpoint(out, recipe):
    claim(recipe, out, resume=False)
    (out / "last.safetensors").write_bytes(b"")
    return out


def test_a_folder_that_holds_a_run_is_not_trained_into_again(tmp_path):
    out = with_checkpoint(tmp_path / "run", Recipe())
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
    out = with_checkpoint(tmp_path / "run", Recipe())
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


def test_a_length_that_is_no_number_in_a_run_folder_is_another_recipe(tmp_path):
    out = with_checkpoint(tmp_path / "run", Recipe())
    (out / "recipe.yaml").write_text((out / "recipe.yaml").read_text().replace("epochs: 10", "epochs: many"))
    with pytest.raises(UserError, match="epochs was many and is 10 now"):
        claim(Recipe(), out, resume=True)


def test_a_recipe_is_the_same_after_a_while_in_a_file(tmp_path):
    recipe = Recipe(model={"width": 8, "dropout": 1e-5}, optim=OptimConfig(lr=1e-7, betas=(0.8, 0.9)))
    assert yaml.safe_load(yaml.safe_dump(plain(recipe))) == plain(recipe)
    assert claim(recipe, with_checkpoint(tmp_path / "run", recipe), resume=True)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is not empty and holds no run"):
        claim(Recipe(), tmp_path, resume=False)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_run_folder(tellapart, small_world, tmp_path):
    (tmp_path / "run").write_text("")
    code, _, err = tellapart("train", small_world / "recipe.yaml", "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "run is not a folder" in err
    assert (tmp_path / "run").read_text() == ""


def test_a_run_that_never_began_leaves_its_folder_to_the_next(tellapart, small_world, tmp_path):
    """Who forgets --data adds it and runs the command again."""
    request = ("train", small_world / "recipe.yaml", "--out", tmp_path / "run", "--max_steps", 1)
    assert tellapart(*request, "--data", "nowhere.json")[0] == 2
    code, _, err = tellapart(*request)
    assert code == 0, err


def test_resume_in_an_empty_folder_begins(tmp_path):
    assert claim(Recipe(), tmp_path / "run", resume=True) is False


def test_what_a_kill_left_half_written_is_cleared_away(tmp_path):
    out = with_checkpoint(tmp_path / "run", Recipe())
    (out / ".tellapart-0123.tmp").write_bytes(b"half a checkpoint")
    claim(Recipe(), out, resume=True)
    assert not list(out.glob(".tellapart-*"))


def test_a_folder_with_only_what_a_kill_left_is_as_good_as_empty(tmp_path):
    (tmp_path / ".tellapart-0123.tmp").write_bytes(b"half a recipe")
    assert claim(Recipe(), tmp_path, resume=False) is False
    assert [file.name for file in tmp_path.iterdir()] == ["recipe.yaml"]


@pytest.mark.parametrize(
    ("content", "answer"), [("epochs: [", "is damaged"), ("- 1", "is damaged"), ("{}", "was None")]
)
def test_a_damaged_recipe_in_a_run_folder_is_named(tmp_path, content, answer):
    out = with_checkpoint(tmp_path / "run", Recipe())
    (out / "recipe.yaml").write_text(content)
    with pytest.raises(UserError, match=answer):
        claim(Recipe(), out, resume=True)
    assert number_type(Recipe(), out, True, torch.device("cpu")) == "fp32"


def test_a_run_keeps_its_vocabulary_though_the_data_have_grown(tellapart, small_world, tmp_path):
    """The weights belong to the words they were trained with."""
    run = tmp_path / "run"
    arguments = ["train", small_world / "recipe.yaml", "--out", run, "--max_steps", 1]
    assert tellapart(*arguments)[0] == 0
    vocabulary = (run / "vocabulary.json").read_text().replace('"ball"', '"globe"')
    (run / "vocabulary.json").write_text(vocabulary)
    code, _, err = tellapart(*arguments, "--resume")
    assert code == 0, err
    assert (run / "vocabulary.json").read_text() == vocabulary


def test_of_validation_photos_that_are_not_asked_for_no_features_are_computed(tellapart, small_world, tmp_path):
    arguments = ["--max_steps", 1, "--validation.photos", 2, "--data.features", tmp_path / "features"]
    code, _, err = tellapart("train", small_world / "recipe.yaml", "--out", tmp_path / "run", *arguments)
    assert code == 0, err
    (rows,) = tmp_path.glob("features/*/rows.jsonl")
    assert len(rows.read_text().splitlines()) == 30 + 2  # the world has 30 scenes to train on, and 5 for validation


def test_a_trained_model_is_not_written_over_though_its_last_checkpoint_was_deleted(tmp_path):
    """last.safetensors is the large one, and a run that is over does not need it."""
    out = tmp_path / "run"
    claim(Recipe(), out, resume=False)
    (out / "best.safetensors").write_bytes(b"a week of training")
    with pytest.raises(UserError, match="holds a run already"):
        claim(Recipe(), out, resume=False)


def test_two_processes_cannot_train_in_one_folder(tmp_path, small_world):
    recipe, _, _ = parse([str(small_world / "recipe.yaml"), "--max_steps=1"])
    with journals.held(tmp_path / "run", "busy"), pytest.raises(UserError, match="another process is training in this"):
        run(recipe, tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []  # the folder is the other's
    assert run(recipe, tmp_path / "run").position.step == 1  # free again


def test_a_folder_is_free_again_when_its_holder_fails(tmp_path):
    with pytest.raises(BlockingIOError, match="of its own"), journals.held(tmp_path, "busy"):
        raise BlockingIOError("of its own")
    with journals.held(tmp_path, "busy"):
        pass
