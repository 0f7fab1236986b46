"""scripts/run_queue.py: long runs, one after another, that a kill does not lose."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

SCRIPT = Path(__file__).parents[2] / "scripts" / "run_queue.py"


@pytest.fixture
def queue(tmp_path):
    """Start a queue in a folder of its own, as a group of processes that can be killed together."""
    started = []

    def start(*lines, jobs=1):
        if lines:
            (tmp_path / "queue.txt").write_text("\n".join(lines))
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "queue.txt", "--jobs", str(jobs), "WORD=said.txt"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
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


@pytest.fixture
def finish(queue):
    """The exit code and what a queue that nobody disturbs says."""

    def run(*lines, jobs=1):
        process = queue(*lines, jobs=jobs)
        said, _ = process.communicate(timeout=120)
        assert "Traceback" not in said
        return process.returncode, said

    return run


def says(word, file="${WORD}"):
    """A command that adds a word to a file."""
    return f'python -c \'import pathlib; pathlib.Path("{file}").open("a").write("{word} ")\''


FAILS = "python -c 'raise SystemExit(3)'"


def test_a_queue_that_was_killed_takes_up_its_run_and_does_nothing_twice(
    queue, finish, tmp_path, small_world, uninterrupted
):
    lines = (
        "# a comment",
        f"tellapart train {small_world}/recipe.yaml --out runs/one  # the long one",
        says("said"),
    )
    first, run = queue(*lines), tmp_path / "runs" / "one"
    while not (run / "log.jsonl").exists() or (run / "log.jsonl").read_bytes().count(b"\n") < 3:
        assert first.poll() is None
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()

    assert finish()[0] == 0
    assert (tmp_path / "said.txt").read_text() == "said "
    weights, expected = load_file(run / "last.safetensors"), load_file(uninterrupted / "last.safetensors")
    assert all(weights[name].equal(expected[name]) for name in expected if name.startswith("model/"))

    assert finish() == (0, "")
    assert (tmp_path / "said.txt").read_text() == "said "


def test_nothing_runs_after_a_stage_that_failed(finish, tmp_path):
    """What comes after it may need it: a mean of runs, of which one is missing, or a run that starts from another."""
    code, said = finish(says("before"), says("beside") + " &", FAILS + " &", says("after"), says("later"))
    assert code == 1
    assert (tmp_path / "said.txt").read_text() == "before beside "
    assert f"failed: {FAILS}" in said
    assert "2 commands after it were not run" in said

    code, said = finish(says("before"), says("beside") + " &", says("mended") + " &", says("after"), says("later"))
    assert code == 0, said
    assert (tmp_path / "said.txt").read_text() == "before beside mended after later "


def test_an_edited_recipe_is_run_again_and_so_is_what_began_with_it(finish, tmp_path):
    """Commands that name a recipe, or a folder that one of them makes; what has nothing to do with it is not."""
    (tmp_path / "a.yaml").write_text("epochs: 1\n")
    (tmp_path / "b.yaml").write_text("init_from: runs/a  # the first\n")
    (tmp_path / "c.yaml").write_text("init_from: runs/a_2\n")
    (tmp_path / "note.py").write_text("import pathlib, sys\npathlib.Path('noted').open('a').write(sys.argv[1][0])\n")
    lines = [
        "python note.py a.yaml --out runs/a",
        "python note.py b.yaml --out runs/b",
        "python note.py c.yaml --out runs/c",
        "python note.py d runs/b runs/c --out runs/d",
    ]

    def noted():
        assert finish(*lines)[0] == 0
        done = (tmp_path / "noted").read_text() if (tmp_path / "noted").exists() else ""
        (tmp_path / "noted").unlink(missing_ok=True)
        return done

    assert noted() == "abcd"
    assert noted() == ""
    (tmp_path / "a.yaml").write_text("# a comment changes nothing\nepochs:    1\n")
    assert noted() == ""
    (tmp_path / "a.yaml").write_text("epochs: 2\n")
    assert noted() == "abd"
    (tmp_path / "c.yaml").write_text("init_from: runs/b\n")
    assert noted() == "cd"
    assert noted() == ""
    (tmp_path / "a.yaml").write_text("epochs: 1\n")  # as it once was: what is there now was made otherwise
    assert noted() == "abcd"


def test_a_run_of_another_recipe_is_set_aside_and_made_anew(finish, tmp_path, small_world):
    recipe = tmp_path / "recipe.yaml"
    shutil.copy(small_world / "recipe.yaml", recipe)
    line = "tellapart train recipe.yaml --out runs/one --max_steps 2"
    assert finish(line)[0] == 0
    recipe.write_text(recipe.read_text().replace("batch_size: 4", "batch_size: 5"))
    code, said = finish(line)
    assert code == 0, said
    assert "runs/one is set aside as runs/one.before1" in said
    sizes = [
        yaml.safe_load((tmp_path / "runs" / name / "recipe.yaml").read_text())["batch_size"]
        for name in ("one", "one.before1")
    ]
    assert sizes == [5, 4]
    assert finish(line) == (0, "")

    recipe.write_text("captioner: parrot\n")
    assert finish(line)[0] == 1
    assert not (tmp_path / "runs" / "one").exists()  # set aside, and nothing in its place
    assert (tmp_path / "runs" / "one.before2" / "last.safetensors").exists()


def test_a_name_that_was_not_given_is_asked_for(tmp_path):
    (tmp_path / "queue.txt").write_text("tellapart train ${DATA}/x.yaml\n")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "queue.txt"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "DATA=" in done.stderr
    assert "Traceback" not in done.stderr


def test_neighbours_that_do_not_need_each_other_run_at_once_and_what_follows_waits_for_them(finish, tmp_path):
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
    assert finish(*(f"{line} &" for line in together), last, jobs=2)[0] == 0
    entries = map(json.loads, (tmp_path / "runs" / "queue.jsonl").read_text().splitlines())
    *first, final = [entry["command"] for entry in entries if entry["state"] == "done"]
    assert sorted(first) == together
    assert final == last


def test_a_journal_that_a_kill_cut_short_is_read_as_far_as_it_goes(finish, tmp_path):
    assert finish(says("one"), says("two"))[0] == 0
    journal = tmp_path / "runs" / "queue.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])
    assert finish()[0] == 0
    assert (tmp_path / "said.txt").read_text() == "one two two "
    assert finish() == (0, "")
