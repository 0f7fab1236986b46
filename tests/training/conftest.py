"""A world of 45 small scenes with its features, and a recipe that trains on it in a second or two."""

import pytest
import yaml

from support.stores import extract, store_folder
from support.toy import world as toy_world
from tellapart.encoders.encoder import Encoder
from tellapart.recipe import EncoderConfig
from training.runs import log_of, towers, train

NETWORK = {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feed_forward": 64, "dropout": 0.2}


@pytest.fixture(scope="session")
def small_world(tmp_path_factory):
    """Folder with toy/captions.json, features/ and recipe.yaml."""
    folder = tmp_path_factory.mktemp("small_world")
    world = toy_world.make(folder / "toy", groups=9, group_size=(5, 5), size=64)
    encoder = Encoder(EncoderConfig(image_size=64, grid=2))
    wanted = [example for example in world.examples if example.split != "test"]
    extract(wanted, encoder, store_folder(folder / "features", world.name, encoder))
    files, features = [str(folder / "toy" / "captions.json")], str(folder / "features")
    recipe = {
        "model": NETWORK,
        "encoder": {"image_size": 64, "grid": 2},
        "data": {"files": files, "features": features, "min_count": 1, "captions_per_photo": 3},
        "objective": {"scheduled_sampling": {"start": 1, "every": 2, "increase": 0.1}},
        "optim": {"lr": 0.003, "schedule": "linear", "warmup": 5, "clip_norm": 1.0, "accumulate": 2},
        "validation": {"every": 1.5, "metric": "loss"},
        "batch_size": 4,
        "epochs": 6,
        "save_minutes": 0,
        "log_steps": 1,
        "dtype": "fp32",
        "threads": 1,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


@pytest.fixture(scope="session")
def recipe(small_world):
    return small_world / "recipe.yaml"


@pytest.fixture(scope="session")
def uninterrupted(small_world, recipe):
    """The folder of a run that nobody disturbed."""
    train(recipe, small_world / "uninterrupted")
    return small_world / "uninterrupted"


@pytest.fixture(scope="session")
def retrievers(small_world, recipe):
    """A listener, who sees photos, and a reader."""
    return list(towers(recipe, small_world))


@pytest.fixture(scope="session")
def logged():
    """The lines of a run's log, without what the clock decides."""
    return lambda run: [{key: line[key] for key in line if key != "words_per_second"} for line in log_of(run)]


@pytest.fixture
def begin(recipe, tmp_path):
    """Run the small world's recipe with changes, in this process."""

    def start(*arguments, out=tmp_path / "run", resume=False):
        return train(recipe, out, *arguments, resume=resume).position

    return start


@pytest.fixture
def refused(tellapart, recipe, tmp_path):
    """What a wrong request to `tellapart train` is answered with: one line, and nothing is computed or left behind."""

    def ask(*arguments, out=tmp_path / "runs" / "new" / "run"):
        before = sorted(tmp_path.rglob("*"))
        given = ("--out", out, "--data.features", tmp_path / "features")
        code, printed, err = tellapart("train", recipe, *given, *arguments)
        assert (code, printed, err.count("\n")) == (2, "", 1), err
        assert err.startswith("tellapart train: ")
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return ask


@pytest.fixture
def stopped_after(monkeypatch):
    """Runs end as by Ctrl-C after each checkpoint for whose step `when` holds."""
    from tellapart.training import run_folder

    def stop(when):
        def save_and_stop(file, model, optimizer, position, *more):
            save(file, model, optimizer, position, *more)
            if when(position["step"]) and not position["finished"]:
                raise KeyboardInterrupt

        save = run_folder.save_checkpoint
        monkeypatch.setattr("tellapart.training.loop.save_checkpoint", save_and_stop)

    return stop
