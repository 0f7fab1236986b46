"""From a recipe to a run: what is refused before any work is done, and what a run folder holds in the end."""

import json
import resource
import shutil
from dataclasses import is_dataclass
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
import torch
from safetensors.torch import load_file

from capscore.errors import UserError
from tellapart import models, recipe_files
from tellapart.commands.train import parse
from tellapart.data.batches import CaptionedPhotos
from tellapart.encoders.encoder import Encoder
from tellapart.features.sources import Encoded, Imported, Sources
from tellapart.recipe import EncoderConfig, Recipe
from tellapart.training import checks, run_folder
from tellapart.training.preparation import gather, split, views
from tellapart.training.validation import METRICS, validate

HASTY = (
    "--optim.lr=0.2",
    "--optim.schedule=constant",
    "--optim.warmup=0",
    "--optim.clip_norm=0",
    "--validation.every=0.5",
)


def log_of(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_data_file_without_a_usable_record_says_why(tellapart, small_world, tmp_path):
    file = tmp_path / "bad.json"
    file.write_text(json.dumps({"images": [{"id": 1909, "file": "a.jpg", "split": "train", "captions": "a dog"}]}))
    code, _, err = tellapart("train", small_world / "recipe.yaml", "--data", file, "--out", tmp_path / "run")
    assert code == 2
    assert 'image 1909: "captions" must be a list of strings' in err


def test_a_data_file_of_other_splits_is_refused_with_those_it_has(tellapart, small_world, tmp_path):
    file = tmp_path / "album.json"
    file.write_text(json.dumps({"images": [{"id": 1, "file": "1.jpg", "split": "test", "captions": ["a dog"]}]}))
    code, _, err = tellapart("train", small_world / "recipe.yaml", "--out", tmp_path / "run", "--data", file)
    assert (code, err.count("\n")) == (2, 1)
    assert "'train' and 'val' (its splits: test)" in err


def test_every_number_of_a_recipe_has_a_range():
    """Except the points of a curve, which a rule of its own checks, and the settings of networks."""

    def without(hint, name):
        if is_dataclass(hint):
            hints = get_type_hints(hint, include_extras=True)
            return [found for key, inner in hints.items() for found in without(inner, f"{name}.{key}")]
        if get_origin(hint) is Annotated:
            return []
        return [name] if hint in (int, float) else [one for part in get_args(hint) for one in without(part, name)]

    numbers = set(without(Recipe, "")) - {".objective.scheduled_sampling.curve", ".model"}
    assert numbers == set()


def test_the_range_of_an_encoder_holds_for_each_input_stream():
    recipe = Recipe(inputs={"regions": EncoderConfig(), "scene": EncoderConfig(grid=65)})
    with pytest.raises(UserError, match=r"^inputs\.scene\.grid must be at most 64, not 65\.$"):
        checks.check(recipe)


def test_a_metric_that_decides_is_one_that_validation_reports(uninterrupted):
    reported = {name for line in log_of(uninterrupted) for name in line if name.startswith("val/")}
    assert reported == {f"val/{name}" for name in METRICS}


# --- run folders ------------------------------------------------------------------------------------------------------


def test_a_model_folder_of_a_later_format_is_refused(uninterrupted, tmp_path):
    out = tmp_path / "model"
    shutil.copytree(uninterrupted, out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"format": config["format"] + 1}))
    with pytest.raises(UserError, match=r"config\.json is damaged, or of a version that this one cannot read"):
        models.load(out, torch.device("cpu"))


# --- runs -------------------------------------------------------------------------------------------------------------


def test_the_best_checkpoint_is_the_best_one(begin, small_world, tmp_path):
    """Trained in such haste that it gets worse: what was best is kept, and is as good as the log says."""
    position = begin(*HASTY, "--max_steps=12")
    losses = {line["step"]: line["val/loss"] for line in log_of(tmp_path / "run") if "val/loss" in line}
    assert position.best == min(losses.values())
    assert losses[position.best_step] == position.best
    assert position.best_step < position.step  # or the test shows nothing

    recipe, _, _ = parse([str(small_world / "recipe.yaml")])
    model = models.load(tmp_path / "run", torch.device("cpu"))
    sources, _ = gather(recipe, Sources({"regions": Encoded(models.encoder_of(model, torch.device("cpu")))}))
    held_out = CaptionedPhotos(split(sources, "val", 0), model.tokenizer, recipe.data.max_words)
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
    for name in ("last.safetensors", "best.safetensors"):
        expected, found = (load_file(tmp_path / folder / name) for folder in ("whole", "pieces"))
        assert [key for key in expected if not expected[key].equal(found[key])] == []


def test_a_disk_that_fills_up_costs_no_more_than_the_steps_since_the_last_checkpoint(
    tellapart, small_world, uninterrupted, tmp_path, monkeypatch
):
    arguments = ("train", small_world / "recipe.yaml", "--out", tmp_path / "run", "--resume")
    save, hard = run_folder.save_checkpoint, resource.getrlimit(resource.RLIMIT_FSIZE)

    def save_until_full(file, model, optimizer, position, *more):
        if position["step"] == 7:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard[1]))  # as good as a full disk
        save(file, model, optimizer, position, *more)

    monkeypatch.setattr("tellapart.training.loop.save_checkpoint", save_until_full)
    try:
        code, _, err = tellapart(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, hard)
    assert code == 2
    assert "last.safetensors: the file cannot be written" in err.splitlines()[-1]
    assert not list((tmp_path / "run").glob(".tellapart-*"))

    monkeypatch.setattr("tellapart.training.loop.save_checkpoint", save)
    assert tellapart(*arguments)[0] == 0
    for name in ("last.safetensors", "best.safetensors"):
        expected, found = load_file(uninterrupted / name), load_file(tmp_path / "run" / name)
        assert [key for key in expected if not expected[key].equal(found[key])] == []


# --- views ------------------------------------------------------------------------------------------------------------


def test_a_run_with_views_looks_at_them_once_and_learns_from_them(begin, small_world, uninterrupted, tmp_path):
    """Of training photos alone: a run is judged by whole photos."""
    cache = tmp_path / "features"
    whole = Encoded(Encoder(EncoderConfig(image_size=64, grid=2))).folder(small_world / "features", "toy_world")
    shutil.copytree(whole, cache / whole.name)  # without what other tests have made
    arguments = (f"--data.features={cache}", "--data.views=2", "--epochs=1")
    position = begin(*arguments)
    found = sorted(set(cache.iterdir()) - {cache / whole.name})
    views_made = [json.loads((folder / "manifest.json").read_text())["encoder"]["view"] for folder in found]
    assert sorted(views_made) == [1, 2]
    for folder in found:
        assert len((folder / "rows.jsonl").read_text().splitlines()) == 30
    assert position.finished
    assert log_of(tmp_path / "run")[0]["loss"] != log_of(uninterrupted)[0]["loss"]

    written = {file: file.stat().st_mtime_ns for folder in found for file in folder.iterdir()}
    begin(*arguments, out=tmp_path / "again")
    assert {file: file.stat().st_mtime_ns for file in written} == written
    assert_same_weights(tmp_path / "run", tmp_path / "again")


def assert_same_weights(run, other):
    weights, others = (load_file(folder / "best.safetensors") for folder in (run, other))
    assert all(weights[name].equal(others[name]) for name in weights)


def test_features_from_elsewhere_have_no_views(tmp_path):
    with pytest.raises(UserError, match=r"data\.views: features of bottom_up were imported; there is no encoder"):
        views(1, Sources({"regions": Imported("bottom_up", 2048)}), tmp_path, [], [])


def test_the_number_type_of_a_run_is_stated_and_stays(tellapart, small_world, tmp_path):
    """On a CPU "auto" is fp32, however quick bf16 may be; a run that was asked for bf16 goes on in it."""
    short = ("--max_steps=2", "--validation.metric=last")
    one, other = tmp_path / "auto", tmp_path / "bf16"
    for folder, dtype, came_to in ((one, "auto", "fp32"), (other, "bf16", "bf16")):
        code, out, err = tellapart("train", small_world / "recipe.yaml", f"--out={folder}", f"--dtype={dtype}", *short)
        assert code == 0, err
        assert f"in {came_to}" in out
        assert f"training on cpu in {came_to}" in err
    for folder, came_to in ((one, "fp32"), (other, "bf16")):
        longer = ("--dtype=auto", "--max_steps=3", "--validation.metric=last", "--resume")
        code, _, err = tellapart("train", small_world / "recipe.yaml", f"--out={folder}", *longer)
        assert code == 0, err
        assert recipe_files.read_yaml(folder / "recipe.yaml")["dtype"] == came_to
        lines = log_of(folder)
        assert lines[-1]["step"] == 3
        assert {line["dtype"] for line in lines} == {came_to}
    code, out, _ = tellapart("compare", one, other)
    (line,) = (line for line in out.splitlines() if line.startswith("dtype"))
    assert line.split() == ["dtype", "fp32", "bf16"]
    code, _, err = tellapart(
        "train", small_world / "recipe.yaml", f"--out={other}", "--dtype=fp32", "--max_steps=3", "--resume"
    )
    assert code == 2
    assert "dtype was bf16 and is fp32 now" in err
