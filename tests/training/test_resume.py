"""A run that was stopped or killed, and goes on, ends exactly where an undisturbed one does."""

import json
import random
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


@pytest.mark.slow
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


LONGER = ("--validation.every", 1, "--optim.decay", 0.5, "--optim.decay_epochs", 2)  # 4 steps an epoch


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["constant", "step"])
def test_a_run_that_gets_more_epochs_is_the_run_that_had_them_from_the_start(
    tmp_path, small_world, tellapart, logged, schedule
):
    """Bit for bit, where the learning rate does not depend on how long a run is."""
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    given = (small_world / "recipe.yaml", "--optim.schedule", schedule, *LONGER)
    assert tellapart("train", *given, "--out", whole, "--epochs", 5)[0] == 0
    assert tellapart("train", *given, "--out", longer, "--epochs", 2)[0] == 0
    assert position_of(longer)["step"] == 8
    code, out, err = tellapart("train", *given, "--out", longer, "--epochs", 5, "--resume")
    assert code == 0, err
    assert "all epochs done after 20 steps" in out
    assert "step 8: the run has 20 steps now, not 8.\n" in err
    assert_same_tensors(longer, whole)
    assert logged(longer) == logged(whole)
    assert (longer / "recipe.yaml").read_text() == (whole / "recipe.yaml").read_text()


def test_a_run_that_was_stopped_can_get_more_epochs(tmp_path, small_world, tellapart, logged, stopped_after):
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    given = (small_world / "recipe.yaml", "--optim.schedule", "constant", *LONGER)
    assert tellapart("train", *given, "--out", whole, "--epochs", 3)[0] == 0
    stopped_after(lambda step: step == 5)
    assert tellapart("train", *given, "--out", longer, "--epochs", 2)[0] == 130
    assert tellapart("train", *given, "--out", longer, "--epochs", 3, "--resume")[0] == 0
    assert_same_tensors(longer, whole)
    assert logged(longer) == logged(whole)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_rate_that_falls_towards_the_end_is_that_of_the_longer_run_from_there_on(
    tmp_path, small_world, tellapart, logged, schedule
):
    """And the step where it rises is said."""
    rates = {}
    for name, epochs in (("whole", [4]), ("longer", [2, 4])):
        given = (small_world / "recipe.yaml", "--out", tmp_path / name, "--optim.schedule", schedule, *LONGER)
        for number in epochs:
            code, _, err = tellapart(
                "train", *given, "--epochs", number, *(["--resume"] if number != epochs[0] else [])
            )
            assert code == 0, err
        rates[name] = {line["step"]: line["lr"] for line in logged(tmp_path / name) if "lr" in line}
    assert "step 8: the run has 16 steps now, not 8; the learning rate continues from 0.00" in err
    assert [step for step, rate in rates["whole"].items() if rate != rates["longer"][step]] == [7, 8]  # 5 of warm-up
    assert rates["longer"][8] < rates["longer"][9]


def test_another_seed_is_another_run(tmp_path, small_world, uninterrupted, tellapart, logged):
    """The comparison above can fail."""
    code, _, err = tellapart("train", small_world / "recipe.yaml", "--out", tmp_path / "run", "--seed", 1)
    assert code == 0, err
    assert logged(tmp_path / "run")[0]["loss"] != logged(uninterrupted)[0]["loss"]


STEPS = 24


def lines_of(run):
    log = run / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def is_saving(run):
    return run.exists() and any(file.name.endswith(".tmp") for file in run.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_a_run_that_is_killed_again_and_again_ends_with_the_weights_of_one_that_was_not(
    tmp_path, small_world, uninterrupted, logged, start_tellapart, seed
):
    draw = random.Random(seed)
    run = tmp_path / "run"
    # When to kill, in order: as the folder appears, at a random moment between steps, and while a file is written.
    moments = ["at once", draw.uniform(0, 0.05), "saving"]
    kills = 0
    for attempt in range(20):
        process = start_tellapart("train", small_world / "recipe.yaml", "--out", run, "--resume")
        moment = moments[attempt] if attempt < len(moments) else None
        before = lines_of(run)
        while process.poll() is None and moment is not None:
            started = run.exists() if moment == "at once" else lines_of(run) > before and lines_of(run) < STEPS
            if started and (moment != "saving" or is_saving(run)):
                if isinstance(moment, float):
                    time.sleep(moment)
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.0005)
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in err
        if process.returncode == 0:
            assert f"all epochs done after {STEPS} steps" in out
            break
        assert process.returncode == -signal.SIGKILL, err
        kills += 1
    assert process.returncode == 0
    assert kills >= 3
    for name in ("last.safetensors", "best.safetensors"):
        tensors, others = load_file(run / name), load_file(uninterrupted / name)
        assert [key for key in others if not tensors[key].equal(others[key])] == []
    assert logged(run) == logged(uninterrupted)
    assert sorted(file.name for file in run.iterdir()) == sorted(file.name for file in uninterrupted.iterdir())
