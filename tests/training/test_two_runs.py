import pytest

from tellapart import files
from tellapart.errors import UserError
from tellapart.recipe import Recipe
from tellapart.training.build import run


def test_two_processes_cannot_train_in_one_folder(tmp_path):
    with files.held(tmp_path / "run", "busy"), pytest.raises(UserError, match="another process is training in this"):
        run(Recipe(), tmp_path / "run")
    with pytest.raises(UserError, match="the recipe names no data"):  # free again
        run(Recipe(), tmp_path / "run")


def test_a_folder_is_free_again_when_its_holder_fails(tmp_path):
    with pytest.raises(BlockingIOError, match="of its own"), files.held(tmp_path, "busy"):
        raise BlockingIOError("of its own")
    with files.held(tmp_path, "busy"):
        pass
