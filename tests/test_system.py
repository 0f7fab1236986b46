"""Locks where there are locks, and work that goes on where there are none, as on Windows."""

import subprocess
import sys

import pytest

from capscore import files, system
from capscore.errors import UserError
from tellapart import journals

HOLD = """
import os, sys
from capscore import system
handle = os.open(sys.argv[1], os.O_RDONLY)
system.lock(handle, wait=True)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held_by_another(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield folder
        process.stdin.close()


def test_a_folder_that_another_process_holds_is_refused(held_by_another):
    assert system.HAS_LOCKS
    with (
        pytest.raises(UserError, match="a training runs here"),
        journals.held(held_by_another, "a training runs here."),
    ):
        pass


def test_without_locks_work_goes_on_and_nothing_of_others_is_removed(held_by_another, monkeypatch):
    """Who still writes cannot be known then."""
    monkeypatch.setattr(system, "HAS_LOCKS", False)
    monkeypatch.setattr(system, "lock", lambda handle, wait: None)
    unfinished = held_by_another / ".tellapart-0123456789ab.tmp"
    unfinished.write_bytes(b"half")
    with journals.held(held_by_another, "a training runs here."):
        files.replace(held_by_another / "log.txt", b"new")
    assert (held_by_another / "log.txt").read_bytes() == b"new"
    assert unfinished.read_bytes() == b"half"


def test_with_locks_what_a_killed_process_left_is_removed(tmp_path):
    unfinished = tmp_path / ".tellapart-0123456789ab.tmp"
    unfinished.write_bytes(b"half")
    with journals.held(tmp_path, "busy"):
        assert not unfinished.exists()


def test_only_one_module_knows_what_is_posix(pytestconfig):
    folders = (pytestconfig.rootpath / "src", pytestconfig.rootpath / "packages" / "capscore" / "src")
    sources = [file for folder in folders for file in folder.rglob("*.py")]
    users = {file.name for file in sources if "fcntl" in file.read_text(encoding="utf-8")}
    assert users == {"system.py"}
