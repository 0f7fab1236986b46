"""What runs beside the page: its progress, its end, and files that it needs for a moment."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capscore.progress import Progress
from support.web import ask, in_a_thread
from tellapart.data.captions import Caption
from tellapart.desk.serve.api import app
from tellapart.desk.serve.job import Jobs


def wait_for(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_job_shows_the_steps_of_what_it_calls_and_ends_between_two_of_them():
    jobs, steps, goes_on = Jobs(), [], threading.Event()

    def work(job):
        job.begin("comparing", 0)
        with Progress("features", 1000) as bar:
            for step in range(1000):
                steps.append(step)
                bar.advance()
                goes_on.wait(60)

    job = jobs.start("caption", work)
    wait_for(lambda: job.done)
    assert (job.state, job.done, job.total) == ("comparing", 1, 1000)
    threading.Timer(0.1, goes_on.set).start()
    assert jobs.stop(30)
    assert (job.state, len(steps) < 1000) == ("failed", True)
    assert len(steps) == 2 == job.done + 1


def test_a_job_that_has_no_steps_is_waited_for_no_longer_than_is_said_and_the_last_of_a_kind_are_kept():
    jobs, goes_on = Jobs(), threading.Event()
    first = jobs.start("caption", lambda job: goes_on.wait(60))
    for _ in range(20):
        job = jobs.start("write", lambda job: None)
        wait_for(lambda job=job: not job.running)
    assert [job.id for job in jobs.all()] == [first.id, 18, 19, 20, 21]
    assert not jobs.stop(0.1)
    goes_on.set()
    assert jobs.stop(30)


class Stub:
    """A captioner that looks at the folder of temporary files meanwhile."""

    folder, model, photos = None, "stub", {}

    def __init__(self, folder):
        self.temporary = folder

    def caption(self, upload, *, among):
        names = " ".join(sorted(path.name for path in self.temporary.iterdir())) or "nothing"
        return Caption(str(upload), f"{len(upload.read_bytes())} bytes; {names}", 0.0)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="files without a name are named in /proc")
def test_an_upload_has_no_name_that_a_kill_could_leave(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with in_a_thread(app(Stub(tmp_path), None, Jobs())) as address:
        assert ask(address, "/api/caption", bytes(5000))[1]["caption"] == "5000 bytes; nothing"


def test_texts_to_be_scored_are_bounded(tmp_path):
    with in_a_thread(app(Stub(tmp_path), None, Jobs())) as address:
        for captions, references in (("a b " * 1000, ["a"]), ("a", ["a", "b c " * 1000])):
            body = {"captions": {"1": captions}, "references": {"1": references}, "metrics": ["ROUGE-L"]}
            status, answer = ask(address, "/api/score", body)
            assert (status, list(answer)) == (422, ["error"])
            assert "2000 characters" in answer["error"]


@pytest.mark.slow
def test_ctrl_c_while_it_captions_is_clean_and_the_next_start_goes_on(small_model, tmp_path):
    folder, draw = tmp_path / "photos", np.random.default_rng(1)
    folder.mkdir()
    for number in range(300):
        pixels = draw.integers(0, 256, (3, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((64, 48)).save(folder / f"{number}.png")
    command = [sys.executable, "-m", "tellapart", "serve", folder, "--model", small_model, "--port", "0"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "TELLAPART_CACHE": str(tmp_path / "cache")}
    for wait in (0.0, 0.7):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
        by_default = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        with subprocess.Popen(command, **pipes, preexec_fn=by_default) as process:
            address = process.stdout.readline().strip()
            wait_for(lambda address=address: ask(address, "/api/jobs/1")[1]["total"])
            time.sleep(wait)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "tellapart serve: stopped; the same command continues from here" in err
        assert "terminate called" not in err
        assert "Traceback" not in err
