"""A run that is killed without warning, again and again, loses at most the step under way."""

import random
import signal
import time

import pytest
from safetensors.torch import load_file

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
