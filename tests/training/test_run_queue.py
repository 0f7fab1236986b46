"""scripts/run_queue.py: long runs, one after another, that a kill does not lose."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

SCRIPT = Path(__file__).parents[2] / "scripts" / "run_queue.py"


@pytest.fixture
def queue(tmp_path, small_world):
    """Start the queue in a folder of its own, as a group of processes that can be killed together."""
    words = f'{sys.executable} -c \'import pathlib; pathlib.Path("${{WORD}}").open("a").write("said ")\''
    (tmp_path / "queue.txt").write_text(
        "# three commands, one of which cannot work\n"
        f"tellapart train {small_world}/recipe.yaml --out runs/one  # the long one\n"
        "tellapart train there_is_no_such_recipe.yaml --out runs/two\n"
        f"{words}\n"
    )
    started = []

    def start():
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "queue.txt", "WORD=said.txt"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_queue_that_was_killed_takes_up_its_run_and_does_nothing_twice(queue, tmp_path, uninterrupted):
    first, run = queue(), tmp_path / "runs" / "one"
    while not (run / "log.jsonl").exists() or (run / "log.jsonl").read_bytes().count(b"\n") < 3:
        assert first.poll() is None
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()

    said, _ = (second := queue()).communicate(timeout=120)
    assert second.returncode == 1  # one command of the three failed
    assert "failed: tellapart train there_is_no_such_recipe.yaml" in said
    assert (tmp_path / "said.txt").read_text() == "said "
    weights, expected = load_file(run / "last.safetensors"), load_file(uninterrupted / "last.safetensors")
    assert all(weights[name].equal(expected[name]) for name in expected if name.startswith("model/"))

    third = queue()
    said, _ = third.communicate(timeout=60)
    assert said.count(" tellapart train ") == 3  # the one that failed: begun, ended, and named again
    assert (tmp_path / "said.txt").read_text() == "said "
    assert third.returncode == 1


def test_a_name_that_was_not_given_is_asked_for(tmp_path):
    (tmp_path / "queue.txt").write_text("tellapart train ${DATA}/x.yaml\n")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "queue.txt"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "DATA=" in done.stderr
    assert "Traceback" not in done.stderr


def test_neighbours_that_do_not_need_each_other_run_at_once_and_what_follows_waits_for_them(tmp_path):
    (tmp_path / "meet.py").write_text(
        "import pathlib, sys, time\n"
        "here, there = map(pathlib.Path, sys.argv[1:])\n"
        "here.touch()\n"
        "until = time.monotonic() + 60\n"
        "while not there.exists() and time.monotonic() < until: time.sleep(0.01)\n"
        "time.sleep(0.2)\n"
        "sys.exit(not there.exists() or pathlib.Path('last').exists())\n"
    )
    together = ["python meet.py one two", "python meet.py two one"]
    last = f"{sys.executable} -c 'import pathlib; pathlib.Path(\"last\").touch()'"
    (tmp_path / "queue.txt").write_text("".join(f"{line} &\n" for line in together) + last)
    command = [sys.executable, str(SCRIPT), "queue.txt", "--jobs", "2"]
    assert subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, check=False).returncode == 0
    *first, final = (tmp_path / "runs" / "queue.done").read_text().splitlines()
    assert sorted(first) == together
    assert final == last
