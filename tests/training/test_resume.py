"""A run that was stopped and goes on ends exactly where an undisturbed one does."""

import json
import signal
import time

import pytest
from safetensors import safe_open
from safetensors.torch import load_file


def wait_for_steps(process, run, steps):
    """Until the log of a run that is under way has so many lines."""
    deadline = time.monotonic() + 60
    while not (run / "log.jsonl").exists() or (run / "log.jsonl").read_bytes().count(b"\n") < steps:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def position_of(run):
    with safe_open(run / "last.safetensors", "pt") as file:
        return json.loads(file.metadata()["position"])


def assert_same_tensors(run, other):
    """Weights, optimiser and random state, bit for bit."""
    for name in ("last.safetensors", "best.safetensors"):
        tensors, others = load_file(run / name), load_file(other / name)
        assert tensors.keys() == others.keys()
        assert [key for key in tensors if not tensors[key].equal(others[key])] == []


def test_the_undisturbed_run_has_own_words_dropout_and_validations_in_between(uninterrupted, logged):
    """What makes the other tests mean something: all that could go wrong between a stop and a resume takes place."""
    lines = logged(uninterrupted)
    validated = [line["step"] for line in lines if "val/loss" in line]
    assert validated == [6, 12, 18, 24]  # 30 photos in batches of 4 are 8; two of those per step are 4 steps an epoch
    assert len({line["lr"] for line in lines if "lr" in line}) > 10
    assert position_of(uninterrupted)["finished"] == "all epochs done"


@pytest.mark.parametrize(("number", "steps"), [(signal.SIGINT, 3), (signal.SIGTERM, 8)])
def test_a_run_that_was_stopped_and_resumed_is_the_run_that_was_never_stopped(
    tmp_path, small_world, uninterrupted, logged, start_tellapart, tellapart, number, steps
):
    run = tmp_path / "run"
    recipe = small_world / "recipe.yaml"
    process = start_tellapart("train", recipe, "--out", run)
    wait_for_steps(process, run, steps)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "--resume" in err.splitlines()[-1]
    assert "Traceback" not in err
    reached = position_of(run)["step"]
    assert steps - 1 <= reached < 24
    assert max(line["step"] for line in logged(run)) == reached

    code, out, err = tellapart("train", recipe, "--out", run, "--resume")
    assert code == 0, err
    assert "all epochs done after 24 steps" in out
    assert_same_tensors(run, uninterrupted)
    assert logged(run) == logged(uninterrupted)
    assert position_of(run) | {"seconds": 0} == position_of(uninterrupted) | {"seconds": 0}


def test_resuming_a_finished_run_changes_nothing(small_world, uninterrupted, tellapart):
    before = {file.name: file.read_bytes() for file in uninterrupted.iterdir()}
    code, out, _ = tellapart("train", small_world / "recipe.yaml", "--out", uninterrupted, "--resume")
    assert code == 0
    assert "all epochs done after 24 steps" in out
    assert {file.name: file.read_bytes() for file in uninterrupted.iterdir()} == before


def test_another_seed_is_another_run(tmp_path, small_world, uninterrupted, tellapart, logged):
    """The comparison above can fail."""
    code, _, err = tellapart("train", small_world / "recipe.yaml", "--out", tmp_path / "run", "--seed", 1)
    assert code == 0, err
    assert logged(tmp_path / "run")[0]["loss"] != logged(uninterrupted)[0]["loss"]
