"""Runs in this process, and what they left: logs, weights, positions."""

import json
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file

from tellapart.commands.train import parse
from tellapart.training.build import run
from tellapart.training.preparation import select, with_features

# Retrievers of a few thousand weights
TOWER = ("--model={size: 32, word_size: 16, channels: 16}", "--objective.name=info_nce", "--validation.metric=R@1")
TWO_CAPTIONS = "--data.captions_per_photo=2"


def asked(recipe, *changes):
    """The recipe of a file or name, with changes."""
    return parse([str(recipe), *map(str, changes)])[0]


def train(recipe, out, *changes, resume=False):
    return run(asked(recipe, *changes), out, resume=resume)


def gathered(recipe, streams):
    """The examples that a recipe takes, with features, and what could not be used."""
    selections, problems = select(recipe, takes=streams.takes)
    sources, more = with_features(selections, streams, Path(recipe.data.features))
    return sources, problems + more


def towers(recipe, folder, *changes):
    """A retriever that sees photos and one that reads, by that recipe."""
    made = {"word_tower": folder / "listener", "text_tower": folder / "reader"}
    for name, out in made.items():
        train(recipe, out, f"--retriever={name}", *TOWER, *[TWO_CAPTIONS] * (name == "text_tower"), *changes)
    return made.values()


def log_of(run, name="step"):
    """The lines of a run's log that have a figure of this name."""
    return [line for line in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if name in line]


def curve(run, name):
    return {line["step"]: line[name] for line in log_of(run, name)}


def tensors_of(run, name="last"):
    return load_file(run / f"{name}.safetensors")


def position_of(run):
    with safe_open(run / "last.safetensors", "pt") as file:
        return json.loads(file.metadata()["position"])


def assert_same_tensors(run, other, names=("last", "best")):
    """Weights, optimiser and random state, bit for bit."""
    for name in names:
        tensors, others = tensors_of(run, name), tensors_of(other, name)
        assert tensors.keys() == others.keys()
        assert [key for key in tensors if not tensors[key].equal(others[key])] == []
