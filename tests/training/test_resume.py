"""A run that was stopped or killed, and goes on, ends exactly where an undisturbed one does."""

import random
import signal
import time

import pytest

from training.runs import assert_same_tensors, curve, position_of

STEPS = 24


def lines_of(run):
    log = run / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def test_the_undisturbed_run_has_own_words_dropout_and_validations_in_between(begin, uninterrupted, logged, tmp_path):
    """What makes the other tests mean something: all that could go wrong between a stop and a resume takes place."""
    validated = list(curve(uninterrupted, "val/loss"))
    assert validated == [6, 12, 18, STEPS]  # 30 photos in batches of 4 are 8; two of those per step: 4 steps an epoch
    assert len(set(curve(uninterrupted, "lr").values())) > 10
    assert position_of(uninterrupted)["finished"] == "all epochs done"
    begin("--seed=1", "--max_steps=1")  # the comparison can fail
    assert logged(tmp_path / "run")[0]["loss"] != logged(uninterrupted)[0]["loss"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "steps"), [(signal.SIGINT, 3), (signal.SIGTERM, 8)])
def test_a_run_that_was_stopped_and_resumed_is_the_run_that_was_never_stopped(
    tmp_path, recipe, uninterrupted, logged, start_tellapart, tellapart, number, steps
):
    run = tmp_path / "run"
    process = start_tellapart("train", recipe, "--out", run)
    deadline = time.monotonic() + 60
    while lines_of(run) < steps:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "--resume" in err.splitlines()[-1]
    assert "Traceback" not in err
    reached = position_of(run)["step"]
    assert steps - 1 <= reached < STEPS
    assert max(line["step"] for line in logged(run)) == reached

    code, out, err = tellapart("train", recipe, "--out", run, "--resume")
    assert code == 0, err
    assert f"all epochs done after {STEPS} steps" in out
    assert_same_tensors(run, uninterrupted)
    assert logged(run) == logged(uninterrupted)
    assert position_of(run) | {"seconds": 0} == position_of(uninterrupted) | {"seconds": 0}


def test_resuming_a_finished_run_changes_nothing(recipe, uninterrupted, tellapart):
    before = {file.name: file.read_bytes() for file in uninterrupted.iterdir()}
    code, out, _ = tellapart("train", recipe, "--out", uninterrupted, "--resume")
    assert code == 0
    assert f"all epochs done after {STEPS} steps" in out
    assert {file.name: file.read_bytes() for file in uninterrupted.iterdir()} == before


LONGER = ("--validation.every=1", "--optim.decay=0.5", "--optim.decay_epochs=2")  # 4 steps an epoch


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "stopped"), [("constant", False), ("step", False), ("constant", True)])
def test_a_run_that_gets_more_epochs_is_the_run_that_had_them_from_the_start(
    tmp_path, begin, logged, stopped_after, capfd, schedule, stopped
):
    """Bit for bit, where the learning rate does not depend on how long a run is; also one that was stopped before."""
    whole, longer, given = tmp_path / "whole", tmp_path / "longer", (f"--optim.schedule={schedule}", *LONGER)
    begin(*given, "--epochs=4", out=whole)
    if stopped:
        stopped_after(lambda step: step == 5)
        with pytest.raises(KeyboardInterrupt):
            begin(*given, "--epochs=2", out=longer)
    else:
        begin(*given, "--epochs=2", out=longer)
        assert position_of(longer)["step"] == 8
        capfd.readouterr()
    assert begin(*given, "--epochs=4", out=longer, resume=True).finished == "all epochs done"
    assert stopped or "step 8: the run has 16 steps now, not 8.\n" in capfd.readouterr().err
    assert_same_tensors(longer, whole)
    assert logged(longer) == logged(whole)
    assert (longer / "recipe.yaml").read_text() == (whole / "recipe.yaml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_rate_that_falls_towards_the_end_is_that_of_the_longer_run_from_there_on(tmp_path, begin, capfd, schedule):
    """And the step where it rises is said."""
    whole, longer, given = tmp_path / "whole", tmp_path / "longer", (f"--optim.schedule={schedule}", *LONGER)
    begin(*given, "--epochs=4", out=whole)
    begin(*given, "--epochs=2", out=longer)
    begin(*given, "--epochs=4", out=longer, resume=True)
    said = "step 8: the run has 16 steps now, not 8; the learning rate continues from 0.00"
    assert said in capfd.readouterr().err
    rates, others = curve(whole, "lr"), curve(longer, "lr")
    assert [step for step, rate in rates.items() if rate != others[step]] == [7, 8]  # 5 of warm-up
    assert others[8] < others[9]


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_weights_of_one_that_was_not(
    tmp_path, recipe, uninterrupted, logged, start_tellapart
):
    run = tmp_path / "run"
    # When to kill, in order: as the folder appears, at a random moment between steps, and while a file is written.
    moments = ["at once", random.Random(0).uniform(0, 0.05), "saving"]
    kills = 0
    for attempt in range(20):
        process = start_tellapart("train", recipe, "--out", run, "--resume")
        moment = moments[attempt] if attempt < len(moments) else None
        before = lines_of(run)
        while process.poll() is None and moment is not None:
            started = run.exists() if moment == "at once" else before < lines_of(run) < STEPS
            if started and (moment != "saving" or any(file.name.endswith(".tmp") for file in run.iterdir())):
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
    assert_same_tensors(run, uninterrupted)
    assert logged(run) == logged(uninterrupted)
    assert sorted(file.name for file in run.iterdir()) == sorted(file.name for file in uninterrupted.iterdir())
