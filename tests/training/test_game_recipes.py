"""The recipes of DiscriTune's game, each for two steps on photos without captions."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from tellapart import models, numerics
from tellapart.commands.train import parse
from tellapart.data.readers import folder
from tellapart.recipe import EncoderConfig, LoraConfig
from tellapart.recipe_files import shipped
from tellapart.training.build import run
from tellapart.training.data import learns_without_captions

GAME = [name for name in shipped() if name.startswith("discritune/") and not name.endswith(("_xe", "/adapt"))]


@pytest.fixture
def small(own_cache, photo_folder, small_model, small_retriever, tmp_path):
    """The same choices with a captioner, a retriever and photos that take no time."""
    files = sorted(example.file for example in folder.read(photo_folder).examples)
    images = [{"id": i, "file": str(file), "split": "val" if i > 3 else "train"} for i, file in enumerate(files)]
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "six", "images": images}))
    made = json.loads((small_model / "config.json").read_text())
    settings = {key: value for key, value in made["settings"].items() if not key.endswith("_size")}

    def read(name):
        recipe, _, _ = parse([name])
        given = {
            "captioner": "transformer",
            "model": settings,
            "encoder": {"name": "efficientnet_lite2", "image_size": 64, "grid": 2, "pooling": "avg"},
            "init_from": str(small_model),
            "data.files": [str(tmp_path / "data.json")],
            "data.features": str(tmp_path / "features"),
            "data.train_split": "train",
            "objective.rewards.image_retriever": str(small_retriever),
            "objective.rewards.other_retrievers": [str(small_retriever)]
            * len(recipe.objective.rewards.other_retrievers),
            "objective.policy.chunk": min(2, recipe.objective.policy.chunk),
            "batch_size": 3,
            "max_steps": 2,
            "log_steps": 1,
            "dtype": "fp32",
        }
        arguments = [
            f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in given.items()
        ]
        return parse([name, *arguments])[0]

    return read


@pytest.mark.parametrize("name", GAME)
def test_a_recipe_of_the_game_learns_from_photos_alone(name, small, tmp_path):
    recipe = small(name)
    assert learns_without_captions(recipe)
    assert run(recipe, tmp_path / "run").position.step == 2
    *_, last = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    assert "val/unique" in last
    assert not any("CIDEr" in key for key in last)


def test_conceptual_captions_train_as_documented(small, photo_folder, tmp_path, tellapart):
    """The documented commands ended with "no data file has a photo in the split 'val'"."""
    photos = sorted(example.file for example in folder.read(photo_folder).examples)
    sources = [tmp_path / "Train_GCC-training.tsv", tmp_path / "Validation_GCC-1.1.0-Validation.tsv"]
    for source, name, chosen in zip(sources, ("training", "validation"), (photos[:4], photos[4:]), strict=True):
        (tmp_path / "cc" / name).mkdir(parents=True)
        source.write_text("".join(f"caption {n}\thttp://a.example/{n}.jpg\n" for n in range(len(chosen))))
        for n, file in enumerate(chosen):
            shutil.copy(file, tmp_path / "cc" / name / f"{n:09}.jpg")
    data = tmp_path / "concap.json"
    code, _, err = tellapart("prepare", "conceptual", *sources, "--photos", tmp_path / "cc", "--out", data)
    assert code == 0, err
    recipe = small("discritune/clipcap_concap")
    recipe = replace(recipe, data=replace(recipe.data, files=[str(data)]))
    assert run(recipe, tmp_path / "run").position.step == 2


def test_a_run_ends_when_its_time_is_over_and_may_get_more(small, tmp_path):
    recipe = small("discritune/kl")
    ended = run(replace(recipe, max_minutes=1e-6), tmp_path / "run").position
    assert (ended.step, ended.finished) == (1, "the time is over")
    longer = run(replace(recipe, max_minutes=60.0), tmp_path / "run", resume=True).position
    assert (longer.step, longer.finished) == (2, "all epochs done")


def test_every_row_and_choice_of_the_paper_has_a_recipe():
    rows = {"clipcap_coco", "clipcap_concap", "camel", "blip"}
    choices = {"reward_accuracy", "reward_cosine", "baseline_none"}
    assert {f"discritune/{name}" for name in rows | choices} <= set(GAME)


def test_the_games_settings_are_those_of_the_paper():
    recipe, _, _ = parse(["discritune/clipcap_coco"])
    policy, rewards = recipe.objective.policy, recipe.objective.rewards
    assert (recipe.batch_size, recipe.epochs, recipe.optim.lr, recipe.optim.schedule) == (100, 20, 1e-7, "constant")
    assert (policy.sampler, policy.baseline, policy.reduction, policy.kl) == (
        "greedy",
        "running_mean",
        "sentence_mean",
        0,
    )
    assert (rewards.weights, rewards.scale) == ({"log_probability": 1.0}, 0)  # the retriever's own scale
    accuracy, _, _ = parse(["discritune/reward_accuracy"])
    assert {name for name, weight in accuracy.objective.rewards.weights.items() if weight} == {"accuracy"}
    hard, _, _ = parse(["discritune/hard_distractors"])
    assert (hard.objective.rewards.group_size, hard.objective.rewards.near_duplicates) == (99, 0.8)


@pytest.mark.parametrize("rank", [0, 2])
def test_blip_learns_over_its_tower_and_the_run_is_a_model(small, tmp_path, photo_folder, tellapart, rank):
    pytest.importorskip("transformers", reason="BLIP is loaded with transformers")
    from support import tiny_vlms

    blip, out = tiny_vlms.blip(tmp_path / "blip"), tmp_path / "run"
    given = replace(small("discritune/blip"), captioner="vision_language", model={}, encoder=EncoderConfig())
    recipe = replace(given, init_from=str(blip), lora=LoraConfig(rank))
    recipe = replace(recipe, epochs=10, optim=replace(recipe.optim, lr=1e-4))
    assert run(recipe, out).position.step == 2
    saved = load_file(out / "best.safetensors")
    assert saved
    assert all(name.startswith("network.text_decoder.") for name in saved)  # no tower
    assert all(name.endswith(("lora_a", "lora_b")) for name in saved) == bool(rank)
    assert run(replace(recipe, max_steps=3), out, resume=True).position.step == 3
    code, said, err = tellapart("caption", photo_folder / "0.png", "--model", out)  # its base lies beside it
    assert code == 0, err
    assert said.startswith(str(photo_folder / "0.png"))


@pytest.mark.parametrize("rank", [0, 2])
def test_blip_learns_by_small_steps_in_bf16_too(small, tmp_path, monkeypatch, rank):
    """A step of 1e-7 is nothing to a weight that is kept in bf16.  As on a graphics card, where that is the default."""
    pytest.importorskip("transformers", reason="BLIP is loaded with transformers")
    from support import tiny_vlms

    blip, cpu = tiny_vlms.blip(tmp_path / "blip"), torch.device("cpu")
    given = replace(small("discritune/blip"), captioner="vision_language", model={}, encoder=EncoderConfig())
    recipe = replace(given, init_from=str(blip), lora=LoraConfig(rank), dtype="auto", epochs=10, max_steps=3)
    began = dict(models.load_trainable(str(blip), cpu).captioner.named_parameters())
    with monkeypatch.context() as card:
        choose = numerics.choose_dtype
        card.setattr(
            numerics, "choose_dtype", lambda device, wanted="auto": choose(device, wanted.replace("auto", "bf16"))
        )
        assert run(recipe, tmp_path / "run").recipe.dtype == "bf16"
        in_bf16 = models.load(blip, cpu)
    learned = load_file(tmp_path / "run" / "best.safetensors")
    assert {tensor.dtype for tensor in learned.values()} == {torch.float32}
    zero = torch.zeros(())  # where B of LoRA begins; A only follows it
    moved = [
        (tensor != (zero if rank else began[name])).float().mean()
        for name, tensor in learned.items()
        if tensor.numel() > 1 and not name.endswith("lora_a")
    ]
    assert sum(moved) / len(moved) > 0.8
    in_fp32 = models.load(blip, cpu)  # and so the cache of its features is the same, and the run opens here
    assert in_bf16.captioner.network.dtype != in_fp32.captioner.network.dtype
    assert in_bf16.sha256 == in_fp32.sha256
    assert in_bf16.encoder.identity == in_fp32.encoder.identity
    assert models.load(tmp_path / "run", cpu).captioner.network.dtype == torch.float32
