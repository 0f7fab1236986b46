"""From a recipe to a run: ranges, the best checkpoint, full disks, views and number types."""

import json
import resource
import shutil
from dataclasses import is_dataclass
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
import torch

from capscore.errors import UserError
from tellapart import models, recipe_files
from tellapart.data.batches import CaptionedPhotos
from tellapart.encoders.encoder import Encoder
from tellapart.features.sources import Encoded, Imported, Sources
from tellapart.recipe import EncoderConfig, Recipe
from tellapart.training import run_folder
from tellapart.training.preparation import check, split, views
from tellapart.training.validation import METRICS, validate
from training.runs import asked, assert_same_tensors, curve, gathered, log_of

HASTY = (
    "--optim={lr: 0.2, schedule: constant, warmup: 0, clip_norm: 0}",
    "--validation.every=0.5",
)


def test_every_number_of_a_recipe_has_a_range_which_holds_for_each_input_stream():
    """Except the points of a curve, which a rule of its own checks, and the settings of networks."""

    def without(hint, name):
        if is_dataclass(hint):
            hints = get_type_hints(hint, include_extras=True)
            return [bare for key, inner in hints.items() for bare in without(inner, f"{name}.{key}")]
        if get_origin(hint) is Annotated:
            return []
        return [name] if hint in (int, float) else [bare for part in get_args(hint) for bare in without(part, name)]

    assert set(without(Recipe, "")) - {".objective.scheduled_sampling.curve", ".model"} == set()
    recipe = Recipe(inputs={"regions": EncoderConfig(), "scene": EncoderConfig(grid=65)})
    with pytest.raises(UserError, match=r"^inputs\.scene\.grid must be at most 64, not 65\.$"):
        check(recipe)


def test_a_metric_that_decides_is_one_that_validation_reports(uninterrupted):
    reported = {name for line in log_of(uninterrupted) for name in line if name.startswith("val/")}
    assert reported == {f"val/{name}" for name in METRICS}


def test_the_best_checkpoint_is_the_best_one(begin, recipe, tmp_path):
    """Trained in such haste that it gets worse: what was best is kept, and is as good as the log says."""
    position = begin(*HASTY, "--optim.accumulate=2", "--max_steps=12")
    losses = curve(tmp_path / "run", "val/loss")
    assert position.best == min(losses.values()) == losses[position.best_step]
    assert position.best_step < position.step  # or the test shows nothing

    model = models.load(tmp_path / "run", torch.device("cpu"))
    encoder = models.encoder_of(model, torch.device("cpu"))
    sources, _ = gathered(asked(recipe), Sources({"regions": Encoded(encoder)}))
    held_out = CaptionedPhotos(split(sources, "val", 0), model.tokenizer, 20)
    metrics = validate(model.captioner, held_out, model.tokenizer, torch.device("cpu"), beam=1, max_words=20)
    assert metrics["loss"] == pytest.approx(position.best, rel=1e-6)


@pytest.mark.slow
def test_patience_survives_a_stop_after_every_single_step(begin, tmp_path, stopped_after):
    """Stopping early depends on what was seen before; a run in as many pieces as steps stops at the same place."""
    hasty = (*HASTY, "--validation.patience=2", "--batch_size=8", "--optim.accumulate=1")
    whole = begin(*hasty, out=tmp_path / "whole")
    assert "has not improved for 2 validations" in whole.finished

    stopped_after(lambda step: step > 0)
    for _ in range(whole.step - 1):
        with pytest.raises(KeyboardInterrupt):
            begin(*hasty, out=tmp_path / "pieces", resume=True)
    pieces = begin(*hasty, out=tmp_path / "pieces", resume=True)
    pieces.seconds = whole.seconds
    assert pieces == whole
    assert_same_tensors(tmp_path / "whole", tmp_path / "pieces")


def test_a_disk_that_fills_up_costs_no_more_than_the_steps_since_the_last_checkpoint(
    begin, uninterrupted, tmp_path, monkeypatch
):
    save, hard = run_folder.save_checkpoint, resource.getrlimit(resource.RLIMIT_FSIZE)

    def save_until_full(file, model, optimizer, position, *more):
        if position["step"] == 7:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard[1]))  # as good as a full disk
        save(file, model, optimizer, position, *more)

    monkeypatch.setattr("tellapart.training.loop.save_checkpoint", save_until_full)
    try:
        with pytest.raises(UserError, match=r"last\.safetensors: the file cannot be written .*before is untouched"):
            begin()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, hard)
    assert not list((tmp_path / "run").glob(".tellapart-*"))
    monkeypatch.setattr("tellapart.training.loop.save_checkpoint", save)
    begin(resume=True)
    assert_same_tensors(tmp_path / "run", uninterrupted)


def test_a_run_with_views_looks_at_them_once_and_learns_from_them(begin, small_world, uninterrupted, tmp_path):
    """Of training photos alone: a run is judged by whole photos."""
    cache = tmp_path / "features"
    whole = Encoded(Encoder(EncoderConfig(image_size=64, grid=2))).folder(small_world / "features", "toy_world")
    shutil.copytree(whole, cache / whole.name)  # without what other tests have made
    arguments = (f"--data.features={cache}", "--data.views=2", "--epochs=1")
    position = begin(*arguments)
    made = sorted(set(cache.iterdir()) - {cache / whole.name})
    assert {json.loads((folder / "manifest.json").read_text())["encoder"]["view"] for folder in made} == {1, 2}
    assert [len((folder / "rows.jsonl").read_text().splitlines()) for folder in made] == [30, 30]
    assert position.finished
    assert log_of(tmp_path / "run")[0]["loss"] != log_of(uninterrupted)[0]["loss"]

    written = {file: file.stat().st_mtime_ns for folder in made for file in folder.iterdir()}
    begin(*arguments, out=tmp_path / "again")
    assert {file: file.stat().st_mtime_ns for file in written} == written
    assert_same_tensors(tmp_path / "run", tmp_path / "again", ["best"])


def test_features_from_elsewhere_have_no_views(tmp_path):
    with pytest.raises(UserError, match=r"data\.views: features of bottom_up were imported; there is no encoder"):
        views(1, Sources({"regions": Imported("bottom_up", 2048)}), tmp_path, [], [])


def test_the_number_type_of_a_run_is_stated_and_stays(tellapart, recipe, tmp_path):
    """On a CPU "auto" is fp32, however quick bf16 may be; a run that was asked for bf16 goes on in it."""
    for dtype, came_to in (("auto", "fp32"), ("bf16", "bf16")):
        given = ("train", recipe, f"--out={tmp_path / dtype}", "--validation.metric=last")
        code, out, err = tellapart(*given, f"--dtype={dtype}", "--max_steps=2")
        assert code == 0, err
        assert f"in {came_to}" in out
        assert f"training on cpu in {came_to}" in err
        assert tellapart(*given, "--dtype=auto", "--max_steps=3", "--resume")[0] == 0
        assert recipe_files.read_yaml(tmp_path / dtype / "recipe.yaml")["dtype"] == came_to
        assert set(curve(tmp_path / dtype, "dtype").values()) == {came_to}
        assert max(curve(tmp_path / dtype, "dtype")) == 3
    code, out, _ = tellapart("compare", tmp_path / "auto", tmp_path / "bf16")
    assert ["dtype", "fp32", "bf16"] in [line.split() for line in out.splitlines()]
    code, _, err = tellapart(*given, "--dtype=fp32", "--max_steps=3", "--resume")
    assert code == 2
    assert "dtype was bf16 and is fp32 now" in err
