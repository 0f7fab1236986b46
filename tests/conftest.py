"""Shared by all tests."""

import os
import signal
import subprocess
import sys
from collections import Counter
from functools import partial

# Two threads in a test process cost more than they bring; set for child processes too, and before torch is loaded.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

from support import small_models
from tellapart import telemetry

if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # as in the background of a shell: children would ignore Ctrl-C, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
telemetry.turn_off()  # before a test imports onnxruntime by itself
torch.set_num_threads(1)

pytest_plugins = ["support.chat_server", "support.doc_pages", "support.postgresql"]

# A first call may compile a kernel, and the machine may be busy: time says nothing of what is tested.
settings.register_profile("tellapart", deadline=None)
settings.load_profile("tellapart")


def pytest_collection_modifyitems(items):
    """Files with slow tests come first, so that at the end no process is left with one while the others wait."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])  # otherwise the order stays


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    return small_models.captioner(tmp_path_factory.mktemp("model"))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of the test's own: nothing is read from or left in that of whoever runs the tests."""
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CAPSCORE_CACHE", str(tmp_path / "capscore"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def small_retriever(tmp_path_factory):
    return small_models.retriever(tmp_path_factory.mktemp("listener"))


@pytest.fixture
def photo_folder(tmp_path):
    """Six different small photos."""
    return small_models.photos(tmp_path / "photos")


@pytest.fixture(scope="session")
def six_photos(tmp_path_factory, small_retriever):
    """A pool of six photos, and what rewards must be by it."""
    from support import pools

    folder = tmp_path_factory.mktemp("pool")
    photos = small_models.photos(folder / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TELLAPART_CACHE", str(folder / "cache"))
        return pools.Expected(pools.make(folder, photos, small_retriever), photos, small_retriever)


@pytest.fixture
def tellapart(capfd):
    """Run a command in this process: exit code, stdout, stderr."""
    from tellapart.__main__ import main

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err, err
        return code, out, err

    return run


@pytest.fixture
def start_tellapart():
    """Start a command in a process of its own, to be killed."""
    running = []

    def start(*arguments, **options):
        command = [sys.executable, "-m", "tellapart", *map(str, arguments)]
        # A shell's background jobs ignore Ctrl-C, and so would what they start.
        heeds_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        options["preexec_fn"] = heeds_ctrl_c
        process = subprocess.Popen(command, **options)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()
