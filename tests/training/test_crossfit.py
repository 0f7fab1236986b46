"""Cross-fitting: a captioner learns from photos by the features of encoders that were tuned without them."""

import json

import pytest
import torch
import yaml

from capscore.errors import UserError
from tellapart.__main__ import main
from tellapart.commands.train import asked, parse
from tellapart.data import examples as data_files
from tellapart.data.folds import fold_of
from tellapart.distributed import SINGLE
from tellapart.features.extracted import encode_items
from tellapart.models.parts import load_encoder, read_tagger
from tellapart.recipe import EncoderConfig
from tellapart.training import data as training_data
from tellapart.training.preparation import prepare

CPU = torch.device("cpu")
LOOKS = {"image_size": 64, "grid": 2}
HALVES = {
    "name": "halves",
    "folds": 2,
    "objective": {"name": "tagging"},
    "validation": {"metric": "mAP"},
    "optim": {"lr": 0.05, "schedule": "constant", "warmup": 0, "accumulate": 1},
    "model": {"words": 12, "tuned_blocks": 1, "encoder_rate": 1.0},
}
TUNED = {"name": "tuned", "mean": {"halves/fold1": 1, "halves/fold2": 1}}
CAPTIONER = {
    "name": "xe",
    "encoder": {"name": "tuned", **LOOKS},
    "data": {"crossfit": ["halves/fold1", "halves/fold2"], "views": 1},
}


@pytest.fixture(scope="module")
def chain(small_world, tmp_path_factory):
    """The folder of a chain of three stages, of two steps a run."""
    folder = tmp_path_factory.mktemp("crossfit")
    (folder / "world.yaml").write_bytes((small_world / "recipe.yaml").read_bytes())
    shared = {"base": "world", "max_steps": 2, "data": {"features": str(folder / "features")}}
    file = folder / "chain.yaml"
    file.write_text(yaml.safe_dump(shared | {"stages": [HALVES, TUNED, CAPTIONER]}))
    assert main(["train", str(file), "--out", str(folder / "runs"), "--jobs", "2"]) == 0
    return folder


@pytest.fixture
def recipe(chain):
    return parse([str(chain / "runs" / "xe" / "recipe.yaml")])[0]


def test_each_run_is_without_one_fold(chain, small_world):
    seen = []
    for number in (1, 2):
        folder = chain / "runs" / "halves" / f"fold{number}"
        learned = training_data.choose(parse([str(folder / "recipe.yaml")])[0], takes=("photos",))[0][0]
        assert {fold_of(example, 2) for example in learned.training} == {3 - number}
        assert {fold_of(example, 2) for example in learned.left_out} == {number}
        seen += [example.id for example in learned.training]
    photos = data_files.read(small_world / "toy" / "captions.json").examples
    assert sorted(seen) == sorted(example.id for example in photos if example.split == "train")


def test_the_folds_share_their_words_and_their_mean_is_an_encoder(chain):
    runs = chain / "runs"
    folds = [read_tagger(runs / "halves" / f"fold{number}") for number in (1, 2)]
    assert folds[0].words == folds[1].words
    mean = json.loads((runs / "tuned" / "config.json").read_text())
    assert mean["network"] == "tagger"
    first, second = (fold.network.state_dict() for fold in folds)
    tuned = read_tagger(runs / "tuned").network.state_dict()
    assert not torch.equal(first["encoder.head.weight"], second["encoder.head.weight"])
    for name, weight in tuned.items():
        torch.testing.assert_close(weight, (first[name] + second[name]) / 2, rtol=2e-3, atol=1e-4)  # half precision
    named = json.loads((runs / "xe" / "config.json").read_text())["encoder"]
    assert named["weights_sha256"] == load_encoder(EncoderConfig(str(runs / "tuned")), CPU).weights_sha256


def test_every_photo_is_seen_by_the_encoder_that_has_not_learned_from_it(chain, recipe):
    prepared = prepare(recipe, CPU)
    sources, _ = training_data.with_features(
        prepared.chosen, prepared.encoders, chain / "features", SINGLE, photos_once=True
    )
    training = training_data.split(sources, "train", 0)
    seen, views = training_data.crossfitted(recipe, prepared.fold_encoders, prepared.chosen, training)
    ((stores, examples),) = seen
    assert examples == training[0][1]
    for example in examples:
        encoder = load_encoder(
            EncoderConfig(str(chain / "runs" / "halves" / f"fold{fold_of(example, 2)}"), **LOOKS), CPU
        )
        (batch,) = encode_items(encoder, encoder, [example])
        torch.testing.assert_close(
            stores.main.grid([stores.main.row(example)])[0], batch.arrays[0][0].float(), rtol=2e-3, atol=5e-3
        )
    (of_source,) = views
    (view,) = of_source
    rows = [view.main.row(example) for example in examples]
    whole = stores.main.grid([stores.main.row(example) for example in examples])
    assert view.main.grid(rows).shape == whole.shape
    assert not torch.allclose(view.main.grid(rows), whole, atol=1e-2)


def test_an_encoder_that_knows_the_photos_is_refused(chain, recipe):
    recipe.data.crossfit = recipe.data.crossfit[::-1]
    with pytest.raises(UserError, match=r"fold2 was not trained without fold 1 of 2"):
        prepare(recipe, CPU)
    recipe.data.crossfit = ["efficientnet_lite2", "efficientnet_lite2"]  # no run at all
    with pytest.raises(UserError, match=r"data.crossfit: efficientnet_lite2 was not trained without fold 1 of 2"):
        prepare(recipe, CPU)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data.fold", "1"], "there is no fold 1 of 0"),
        (["--data.fold", "3", "--data.folds", "2"], "there is no fold 3 of 2"),
        (["--data.folds", "2"], "there is no fold 0 of 2"),
        (["--data.crossfit", "[one]"], "two folds or more"),
        (["--data.crossfit", "[one, two]", "--data.fold", "1", "--data.folds", "2"], "data.fold must be 0"),
        (["--lora.rank", "2", "--data.crossfit", "[one, two]"], "only a captioner"),
    ],
)
def test_what_cannot_be_is_refused(small_world, options, message, tmp_path, capsys):
    arguments = ["train", str(small_world / "recipe.yaml"), *options, "--out", str(tmp_path / "run")]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"folds": 1}, "folds must be a whole number from 2"),
        ({"folds": 2, "seeds": [0, 1]}, "it has seeds, data.fold or data.folds as well"),
        ({"folds": 2, "mean": True}, "mean of its seeds"),
    ],
)
def test_stages_with_folds_that_cannot_be(small_world, tmp_path, change, message):
    (tmp_path / "world.yaml").write_bytes((small_world / "recipe.yaml").read_bytes())
    file = tmp_path / "chain.yaml"
    file.write_text(yaml.safe_dump({"base": "world", "stages": [HALVES | change]}))
    with pytest.raises(UserError, match=message):
        asked([str(file)])


def test_a_stage_name_with_folds_does_not_say_which_run(small_world, tmp_path):
    (tmp_path / "world.yaml").write_bytes((small_world / "recipe.yaml").read_bytes())
    file = tmp_path / "chain.yaml"
    stages = [HALVES, {"name": "xe", "encoder": {"name": "halves", **LOOKS}}]
    file.write_text(yaml.safe_dump({"base": "world", "stages": stages}))
    with pytest.raises(UserError, match="halves has 2 folds and no mean; say which one"):
        asked([str(file)])
