"""The whole way, once: draw a world, train the recipe that ships, caption scenes that it has never seen."""

from pathlib import Path

from tellapart import captioning
from tellapart.commands.train import parse
from tellapart.data import toy_world
from tellapart.training.build import run

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny" / "toy_xe.yaml"


def test_a_captioner_that_learnt_the_toy_world_names_the_object_of_new_scenes(tmp_path):
    world = toy_world.make(tmp_path / "toy")
    recipe, out, _ = parse(
        [
            str(RECIPE),
            f"--data={tmp_path / 'toy' / 'captions.json'}",
            f"--data.features={tmp_path / 'features'}",
            f"--out={tmp_path / 'run'}",
        ]
    )
    outcome = run(recipe, out)
    assert outcome.problems == []
    assert outcome.position.finished == "all epochs done"
    new = world.split("test")
    captions = [caption.text for caption in captioning.load(out).caption([example.file for example in new])]
    assert toy_world.measure(captions, new)["object"] >= 0.95
