"""Chains of recipes in which a stage is what a later one sees by: a tuned encoder, or a tagger."""

import json

import pytest
import torch
import yaml

from tellapart.__main__ import main
from tellapart.commands.train import asked
from tellapart.errors import UserError
from tellapart.models.parts import load_encoder, read_tagger
from tellapart.recipe import EncoderConfig

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
