import pytest

from capscore import files
from capscore.errors import UserError
from tellapart.commands.train import parse
from tellapart.training.build import run


def test_two_processes_cannot_train_in_one_folder(tmp_path, small_world):
    recipe, _, _ = parse([str(small_world / "recipe.yaml"), "--max_steps=1"])
    with files.held(tmp_path / "run", "busy"), pytest.raises(UserError, match="another process is training in this"):
        run(recipe, tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []  # the folder is the other's
    assert run(recipe, tmp_path / "run").position.step == 1  # free again


def test_a_folder_is_free_again_when_its_holder_fails(tmp_path):
    with pytest.raises(BlockingIOError, match="of its own"), files.held(tmp_path, "busy"):
        raise BlockingIOError("of its own")
    with files.held(tmp_path, "busy"):
        pass
