"""Checkpoints: what was saved comes back, and what is no checkpoint of this run is refused."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from capscore.errors import UserError
from tellapart import models
from tellapart.captioning import captioner
from tellapart.recipe import Recipe
from tellapart.training import run_folder
from tellapart.training.optimizer import MeanWeights, build_optimizer


def training(width=3):
    """A model and its optimiser after one step."""
    torch.manual_seed(width)
    model = nn.Sequential(nn.Linear(2, width), nn.Linear(width, 1))
    optimizer = build_optimizer(model, Recipe())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def file(tmp_path):
    return tmp_path / "last.safetensors"


def test_what_was_saved_comes_back(file):
    model, optimizer = training()
    run_folder.save_checkpoint(file, model, optimizer, {"step": 7})
    expected = torch.rand(5)  # the next numbers that the run would draw

    torch.manual_seed(99)
    other = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    other_optimizer = build_optimizer(other, Recipe())
    assert run_folder.load_checkpoint(file, other, other_optimizer) == {"step": 7}
    assert torch.rand(5).equal(expected)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    states = (each.state_dict()["state"] for each in (other_optimizer, optimizer))
    torch.testing.assert_close(*states, rtol=0, atol=0)


def with_mean(model):
    return {"mean": MeanWeights(model, 0.9)}


@pytest.mark.parametrize("keeps", [lambda model: {}, with_mean], ids=["weights", "with a mean"])
def test_a_checkpoint_of_another_model_is_refused_with_the_tensor_that_differs(file, keeps):
    (narrow, theirs), (wide, ours) = training(width=3), training(width=4)
    run_folder.save_checkpoint(file, narrow, theirs, {}, keeps(narrow))
    with pytest.raises(UserError, match=r"another model: 0\.bias is \(3,\) there and \(4,\) here"):
        run_folder.load_checkpoint(file, wide, ours, keeps(wide))
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, bias=False))
    with pytest.raises(UserError, match=r"1\.bias is \(1,\) there and absent here"):
        run_folder.load_checkpoint(file, model, build_optimizer(model, Recipe()), keeps(model))


def test_what_lacks_a_part_of_a_checkpoint_is_none(file, tmp_path):
    """The mean of weights that should be kept; optimiser and all; the random state."""
    model, optimizer = training()
    run_folder.save_checkpoint(file, model, optimizer, {})
    models.save_weights(tmp_path / "best.safetensors", model)
    tensors = {name: tensor for name, tensor in load_file(file).items() if not name.startswith("random/")}
    save_file(tensors, tmp_path / "fixed.safetensors", metadata={"position": "{}"})
    for name, keeps in (("last", with_mean(model)), ("best", {}), ("fixed", {})):
        with pytest.raises(UserError, match=rf"{name}\.safetensors is not a training checkpoint"):
            run_folder.load_checkpoint(tmp_path / f"{name}.safetensors", model, optimizer, keeps)


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:20],
        lambda data: b"\xff" * 8 + data[8:],  # a header that is too long
        lambda data: b"",
        lambda data: b"not a checkpoint at all",
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name(file, damage):
    run_folder.save_checkpoint(file, *training(), {})
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=r"last\.safetensors is not a safetensors file, or is damaged"):
        run_folder.load_checkpoint(file, *training())


@pytest.mark.parametrize("write", [pickle.dump, torch.save])
def test_a_pickle_is_refused_without_being_run(file, tmp_path, write):
    planted = tmp_path / "planted"
    with file.open("wb") as out:
        write(Trap(planted), out)
    for place, problem in ((file, "is not a safetensors file"), (tmp_path, "this is a folder, not a file")):
        with pytest.raises(UserError, match=problem):
            run_folder.load_checkpoint(place, *training())
    assert not planted.exists()
    pickle.loads(pickle.dumps(Trap(planted)))  # the trap works
    assert planted.exists()


@pytest.mark.parametrize("change", [lambda encoder: encoder.pop("weights_sha256"), lambda encoder: encoder.update(x=1)])
def test_a_model_that_does_not_say_which_encoder_it_needs_is_refused(tmp_path, small_model, change):
    folder = shutil.copytree(small_model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    change(config["encoder"])
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"config\.json does not say which encoder"):
        captioner.load(folder)
