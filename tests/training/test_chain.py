"""Recipes with stages, as a user runs them: `tellapart train CHAIN.yaml --out DIR`."""

import hashlib
import json
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from safetensors.torch import load_file

from capscore.errors import UserError
from tellapart import models
from tellapart.commands.train import asked, parse
from tellapart.recipe import Recipe
from tellapart.training import chain

THREE = [
    {"name": "xe"},
    {"name": "more", "init_from": "xe", "seeds": [1, 2], "mean": True},
    {"name": "both", "mean": {"xe": 1, "more": 3}},
]


@pytest.fixture
def write(small_world, tmp_path):
    """A chain over the recipe of the small world, of two steps a run."""
    (tmp_path / "world.yaml").write_bytes((small_world / "recipe.yaml").read_bytes())

    def write(*given, **more):
        file = tmp_path / "chain.yaml"
        file.write_text(yaml.safe_dump({"base": "world", "max_steps": 2, **more, "stages": list(given)}))
        return file

    return write


@pytest.fixture
def train(tellapart, tmp_path):
    def run(file, *arguments):
        return tellapart("train", file, "--out", tmp_path / "runs", *arguments)

    return run


def digests(folder):
    """Of the weights that every run and mean ended with; where one was set aside, too."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*.safetensors")
        if file.name != "last.safetensors"  # which knows how long it took
    }


def titles(err):
    return [line for line in err.splitlines() if line.startswith("stage ")]


def test_a_chain_trains_each_stage_from_the_one_before_and_averages(write, train, tmp_path):
    code, out, err = train(write(*THREE))
    assert code == 0, err
    assert out == f"{tmp_path / 'runs'}: all 3 stages are done; 5 runs and means were made now\n"
    begun = [line.removesuffix(" ...") for line in titles(err) if line.endswith(" ...")]
    assert begun == [
        "stage 1 of 3, xe",
        "stage 2 of 3, more/seed1",
        "stage 2 of 3, more/seed2",
        "stage 2 of 3, more/mean",
        "stage 3 of 3, both",
    ]
    runs = tmp_path / "runs"
    recipes = {name: yaml.safe_load((runs / name / "recipe.yaml").read_text()) for name in ("xe", "more/seed2")}
    assert [recipes["xe"]["init_from"], recipes["more/seed2"]["init_from"]] == ["", str(runs / "xe")]
    assert [recipes["xe"]["seed"], recipes["more/seed2"]["seed"]] == [0, 2]

    weights = {name: load_file(runs / name / "best.safetensors") for name in ("xe", "more/seed1", "more/seed2")}
    mean, both = (load_file(runs / name / "model.safetensors") for name in ("more/mean", "both"))
    for name, tensor in mean.items():
        expected = (weights["more/seed1"][name] + weights["more/seed2"][name]) / 2
        torch.testing.assert_close(tensor, expected)
        torch.testing.assert_close(both[name], weights["xe"][name] / 4 + expected * 3 / 4)
    assert not torch.equal(weights["more/seed1"]["word_bias"], weights["more/seed2"]["word_bias"])
    models.load(runs / "both", torch.device("cpu"))


def test_what_is_done_is_not_done_again(write, train, tmp_path):
    file = write(*THREE)
    train(file)
    before = digests(tmp_path / "runs")
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("*.safetensors")}
    code, out, err = train(file, "--resume")
    assert (code, digests(tmp_path / "runs")) == (0, before)
    assert out.endswith("0 runs and means were made now\n")
    assert all(line.endswith(": done already.") for line in titles(err))
    assert {file: file.stat().st_mtime_ns for file in times} == times


def test_without_resume_a_folder_with_a_chain_is_left_alone(write, train, tmp_path):
    file = write({"name": "xe"})
    train(file)
    code, _, err = train(file)
    runs = tmp_path / "runs"
    assert (code, err) == (
        2,
        f"tellapart train: {runs} holds a chain already; --resume continues it, another --out starts a new one.\n",
    )


def test_a_folder_of_something_else_is_left_alone(write, train, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "letters.txt").write_text("dear")
    code, _, err = train(write({"name": "xe"}), "--resume")
    assert code == 2
    assert "is not empty and holds no chain; choose another --out." in err
    assert [file.name for file in (tmp_path / "runs").iterdir()] == ["letters.txt"]


def test_an_edited_stage_and_those_after_it_run_again_and_the_old_runs_stay(write, train, tmp_path):
    runs, (first, second, third) = tmp_path / "runs", THREE
    train(write(first, second, third))
    before = digests(runs)
    code, out, err = train(write(first, second | {"optim": {"lr": 0.001}}, third), "--resume")
    assert code == 0, err
    assert out.endswith("4 runs and means were made now\n")
    now = digests(runs)
    assert now["xe/best.safetensors"] == before["xe/best.safetensors"]
    for name in ("more/seed1", "more/seed2", "more/mean", "both"):
        weights = next(key for key in before if key.startswith(f"{name}/"))
        aside = weights.replace(name, f"{name}.before1")
        assert now[aside] == before[weights]
        assert now[weights] != before[weights]
    assert f"{runs / 'both'} is set aside as {runs / 'both.before1'}" in err


def test_another_seed_leaves_the_runs_of_the_others(write, train, tmp_path):
    first, second, _ = THREE
    train(write(first, second))
    before = digests(tmp_path / "runs")
    code, out, _ = train(write(first, second | {"seeds": [1, 2, 3]}), "--resume")
    assert (code, out.endswith("2 runs and means were made now\n")) == (0, True)  # the seed and the mean
    now = digests(tmp_path / "runs")
    assert all(now[name] == before[name] for name in before if "mean" not in name)


def test_comments_and_the_names_of_files_are_no_edit(write, train, tmp_path):
    file = write({"name": "xe"})
    train(file)
    moved = tmp_path / "other.yaml"
    moved.write_text("# the same\n" + file.read_text())
    code, out, _ = train(moved, "--resume")
    assert (code, out.endswith("0 runs and means were made now\n")) == (0, True)


def test_edited_data_make_a_run_again(write, train, small_world, tmp_path):
    content = json.loads((small_world / "toy" / "captions.json").read_text())
    photos = small_world / "toy"
    for one in content["images"]:
        one["file"] = str(photos / one["file"])
    data = tmp_path / "captions.json"
    data.write_text(json.dumps(content))
    file = write({"name": "xe"}, data={"files": [str(data)]})
    assert train(file)[0] == 0
    assert train(file, "--resume")[1].endswith("0 runs and means were made now\n")
    content["images"][0]["captions"][0] = "something else"
    data.write_text(json.dumps(content))
    code, out, err = train(file, "--resume")
    assert (code, out.endswith("1 runs and means were made now\n")) == (0, True), err
    assert (tmp_path / "runs" / "xe.before1").exists()


def test_another_model_in_the_place_of_the_one_that_a_stage_began_with_makes_it_again(write, train, tmp_path):
    assert train(write({"name": "xe"}), f"--out={tmp_path / 'start'}")[0] == 0
    file = write({"name": "more", "init_from": str(tmp_path / "start" / "xe")})
    assert train(file)[0] == 0
    weights = tmp_path / "start" / "xe" / "best.safetensors"
    captioner = models.load(weights.parent, torch.device("cpu")).captioner
    with torch.no_grad():
        captioner.word_bias += 1
    models.save_weights(weights, captioner)
    code, out, _ = train(file, "--resume")
    assert (code, out.endswith("1 runs and means were made now\n")) == (0, True)


def test_a_stage_that_gets_seeds_is_set_aside_as_a_whole(write, train, tmp_path):
    train(write({"name": "xe"}))
    code, _, err = train(write({"name": "xe", "seeds": [4]}), "--resume")
    assert code == 0, err
    runs = tmp_path / "runs"
    assert {file.name for file in runs.iterdir()} == {"chain.json", "xe", "xe.before1"}
    assert (runs / "xe" / "seed4" / "best.safetensors").exists()
    code, _, err = train(write({"name": "xe"}), "--resume")  # and back
    assert code == 0, err
    assert (runs / "xe.before2" / "seed4" / "best.safetensors").exists()
    assert (runs / "xe" / "best.safetensors").exists()


def test_a_run_that_somebody_deleted_is_made_again(write, train, tmp_path):
    file = write(*THREE)
    train(file)
    before = digests(tmp_path / "runs")
    for one in (tmp_path / "runs" / "more" / "seed1").iterdir():
        one.unlink()
    code, _, err = train(file, "--resume")
    assert code == 0, err
    assert digests(tmp_path / "runs") == before


def test_nothing_starts_after_a_failure_and_the_rest_goes_on_when_it_is_put_right(write, train, tmp_path):
    data = tmp_path / "empty.json"
    data.write_text(json.dumps({"images": []}))
    bad = {"name": "bad", "data": {"files": [str(data)]}}
    code, out, err = train(write({"name": "xe"}, bad, {"name": "last"}))
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("tellapart train: stage 2 of 3, bad: ")
    assert err.endswith("1 run of the chain did not start.\n")
    assert not (tmp_path / "runs" / "last").exists()
    code, out, err = train(write({"name": "xe"}, {"name": "bad"}, {"name": "last"}), "--resume")
    assert (code, out.endswith("2 runs and means were made now\n")) == (0, True), err


def test_data_that_are_missing_are_found_before_the_first_stage(write, train, tmp_path):
    code, _, err = train(write({"name": "xe"}, {"name": "more", "data": {"files": ["gone.json"]}}))
    assert (code, err) == (2, "tellapart train: gone.json: there is no such file.\n")
    assert not (tmp_path / "runs").exists()


def test_seeds_without_a_mean_go_on_each_by_itself(write):
    given = [{"name": "xe", "seeds": [1, 2]}, {"name": "more", "init_from": "xe", "seeds": [2, 1]}]
    found = chain.jobs(asked([str(write(*given))]).recipe)
    assert {job.name: dict(job.uses) for job in found if "more" in job.name} == {
        "more/seed2": {"xe": "xe/seed2"},
        "more/seed1": {"xe": "xe/seed1"},
    }


def test_retrievers_of_rewards_can_be_stages(write, train, tmp_path):
    listener = {
        "retriever": "word_tower",
        "model": {"size": 32, "word_size": 16, "channels": 16},
        "objective": {"name": "info_nce"},
        "validation": {"metric": "R@1"},
    }
    policy = {
        "name": "policy_gradient",
        "policy": {"samples": 2},
        "rewards": {"image_retriever": "ear", "weights": {"gd": 1}},
    }
    given = [
        {"name": "ear", **listener},
        {"name": "xe", "objective": {"rewards": {"image_retriever": "later"}}},  # which it has no use for
        {"name": "gd", "init_from": "xe", "objective": policy, "validation": {"judges": ["ear"]}},
        {"name": "later"},
    ]
    code, _, err = train(write(*given))
    assert code == 0, err
    recipe = yaml.safe_load((tmp_path / "runs" / "gd" / "recipe.yaml").read_text())
    assert recipe["objective"]["rewards"]["image_retriever"] == str(tmp_path / "runs" / "ear")
    assert recipe["validation"]["judges"] == [str(tmp_path / "runs" / "ear")]


def test_the_command_line_changes_every_stage(write):
    found = asked([str(write({"name": "a", "epochs": 9}, {"name": "b"})), "--epochs", "3"]).recipe
    assert [stage.recipe.epochs for stage in found] == [3, 3]


def test_where_a_stage_starts_the_command_line_does_not_say(write, train):
    code, _, err = train(write({"name": "a"}), "--init_from=plain")
    assert code == 2
    assert "stage a: --init_from: the stages of a chain say that themselves." in err


def test_a_seed_on_the_command_line_moves_all_seeds_of_a_chain(write):
    given = {"name": "a"}, {"name": "b", "seeds": [1, 2]}
    jobs = chain.jobs(asked([str(write(*given)), "--seed", "100"]).recipe)
    assert {job.name: job.recipe.seed for job in jobs} == {"a": 100, "b/seed1": 101, "b/seed2": 102}


def test_a_recipe_of_a_stage_stands_in_place_of_the_base_and_under_what_the_file_says(write, tmp_path):
    (tmp_path / "other.yaml").write_text("batch_size: 7\nmax_steps: 9\nlog_steps: 5\n")
    (stage,) = asked([str(write({"name": "a", "recipe": "other", "log_steps": 6}))]).recipe
    recipe = stage.recipe
    assert (recipe.batch_size, recipe.max_steps, recipe.log_steps) == (7, 2, 6)
    assert recipe.data == Recipe().data  # nothing of the file's base


def test_print_config_shows_every_stage_whole_and_can_be_run_again(write, capsys, tmp_path):
    file = write(*THREE)
    with pytest.raises(SystemExit) as stopped:
        asked([str(file), "--print_config"])
    assert not stopped.value.code
    out = capsys.readouterr().out
    shown = yaml.safe_load(out)["stages"]
    assert [stage["name"] for stage in shown] == ["xe", "more", "both"]
    assert set(Recipe.__dataclass_fields__) <= set(shown[0])
    (tmp_path / "shown.yaml").write_text(out)
    assert asked([str(tmp_path / "shown.yaml")]).recipe == asked([str(file)]).recipe


def test_a_tiny_chain_is_small_throughout_and_still_a_chain(write, train, tmp_path):
    given = [{"name": "xe", "model": {"width": 512, "heads": 8}}, {"name": "more", "init_from": "xe"}]
    code, _, err = train(write(*given, max_steps=0), "--tiny")
    assert code == 0, err
    recipe = yaml.safe_load((tmp_path / "runs" / "more" / "recipe.yaml").read_text())
    assert (recipe["max_steps"], recipe["model"]["width"]) == (10, 32)
    assert recipe["init_from"] == str(tmp_path / "runs" / "xe")


def test_jobs_are_for_chains(tellapart, small_world):
    code, _, err = tellapart("train", small_world / "recipe.yaml", "--jobs", 2)
    assert (code, err) == (2, "tellapart train: --jobs is for recipes with stages; this one is a single run.\n")


def test_processes_that_share_batches_train_one_recipe(write):
    with pytest.raises(UserError, match="this recipe has stages"):
        parse([str(write({"name": "a"}))])


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', '{"format": 1, "runs": {"xe": {"key": 3}}}'])
def test_a_damaged_record_is_named(write, train, tmp_path, content):
    file = write({"name": "xe"})
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "chain.json").write_text(content)
    code, _, err = train(file, "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert str(tmp_path / "runs" / "chain.json") in err


# --- several at once --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_at_once_make_what_runs_in_turn_make(write, train, tellapart, tmp_path):
    file = write(*THREE)
    assert train(file)[0] == 0
    code, out, err = tellapart("train", file, "--out", tmp_path / "two", "--jobs", 2)
    assert code == 0, err
    assert out.endswith("5 runs and means were made now\n")
    assert digests(tmp_path / "two") == digests(tmp_path / "runs")
    started, ended = (
        [number for number, line in enumerate(titles(err)) if "more/seed" in line and line.endswith(" ...") == begins]
        for begins in (True, False)
    )
    assert max(started) < min(ended)  # both seeds were under way together
    assert (tmp_path / "two" / "chain.logs" / "more-seed1.txt").exists()


@pytest.mark.slow
def test_a_failure_among_runs_at_once_ends_the_chain_and_names_the_run(write, train, tmp_path):
    data = tmp_path / "empty.json"
    data.write_text(json.dumps({"images": []}))
    bad = {"name": "bad", "data": {"files": [str(data)]}}
    code, _, err = train(write({"name": "xe"}, bad, {"name": "last", "init_from": "xe"}), "--jobs", 2)
    assert code == 2
    assert "tellapart train: stage 2 of 3, bad: " in err
    assert f"All that it printed is in {tmp_path / 'runs' / 'chain.logs' / 'bad.txt'}." in err
    assert (tmp_path / "runs" / "xe" / "best.safetensors").exists()  # it was under way, and ended well
    assert not (tmp_path / "runs" / "last").exists()


BRIEF = """
from tellapart.rewards import Reward
from tellapart.rewards.registry import REWARDS, RewardEntry

REWARDS["brief"] = RewardEntry(
    "minus the number of words", lambda context: lambda captions: Reward(-captions.mask.sum(1).float())
)
"""


@pytest.mark.slow
def test_processes_know_what_a_plugin_brings(write, tmp_path):
    (tmp_path / "brief.py").write_text(BRIEF)
    policy = {"name": "policy_gradient", "policy": {"samples": 2}, "rewards": {"weights": {"brief": 1}}}
    anyhow = {"metric": "last", "watch": {"action": "off"}}
    file = write({"name": "xe"}, {"name": "brief", "init_from": "xe", "objective": policy, "validation": anyhow})
    command = [sys.executable, "-m", "tellapart", "train", file, "--out", tmp_path / "runs", "--jobs", "2"]
    done = subprocess.run([*command, "--plugin", "brief.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "brief" / "best.safetensors").exists()


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
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_chain_that_was_stopped_goes_on_where_it_was(write, train, start_tellapart, tmp_path, how):
    """Whatever is stopped by Ctrl-C or a kill: the weights are those of a chain that nobody stopped."""
    given = [{"name": "xe"}, {"name": "more", "init_from": "xe", "seeds": [1, 2], "mean": True, "max_steps": 8}]
    assert train(write(*given))[0] == 0
    (tmp_path / "hold.py").write_text(HOLD)
    (tmp_path / "hold").touch()
    out, quiet = tmp_path / "stopped", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    own = ("--out", out, "--jobs", 2, "--plugin", tmp_path / "hold.py")
    process = start_tellapart("train", write(*given), *own, **quiet)
    deadline = time.monotonic() + 240
    log = out / "more" / "seed1" / "log.jsonl"
    while not (log.exists() and log.read_bytes().count(b"\n") >= 4):
        assert process.poll() is None
        assert time.monotonic() < deadline, "the first seed does not get to its fourth step"
        time.sleep(0.01)
    process.send_signal(how)
    if how == signal.SIGKILL:
        process.wait()
    (tmp_path / "hold").unlink()
    assert process.wait(120) == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert not (out / "more" / "mean").exists()
    while time.monotonic() < deadline:  # those that were left alone see it, and stop
        code, _, err = train(write(*given), "--out", out, "--resume", "--jobs", 1)
        if "another process is training" not in err:
            break
        time.sleep(0.1)
    assert code == 0, err
    assert "xe: done already." in err
    same = load_file(out / "more" / "mean" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "runs" / "more" / "mean" / "model.safetensors").items():
        assert torch.equal(tensor, same[name])


def test_the_record_has_every_job_with_its_key(write, train, tmp_path):
    train(write(*THREE))
    record = json.loads((tmp_path / "runs" / chain.RECORD).read_text())
    assert set(record["runs"]) == {"xe", "more/seed1", "more/seed2", "more/mean", "both"}
    assert all(one["done"] for one in record["runs"].values())
    assert len({one["key"] for one in record["runs"].values()}) == 5
