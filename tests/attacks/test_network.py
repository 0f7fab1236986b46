"""Nothing is sent anywhere, and no library that we stand on keeps a file about the user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tellapart import album

GUARD = Path(__file__).with_name("network_guard.c")
SWITCHES = {  # as their makers' documentation names them
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "DO_NOT_TRACK": "1",
}

Run = Callable[..., tuple[subprocess.CompletedProcess[str], str]]


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the guard is compiled: it needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("guard") / "guard.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, GUARD, "-ldl"], check=True, timeout=60)
    return library


@pytest.fixture
def guarded(guard: Path, tmp_path: Path) -> Run:
    """Run Python with an empty home under the guard: what it printed, and what it asked of the network."""
    home, log = tmp_path / "home", tmp_path / "network.log"
    home.mkdir()

    def run(*arguments: object, **more: str) -> tuple[subprocess.CompletedProcess[str], str]:
        ours = {"HOME": str(home), "LD_PRELOAD": str(guard), "NETWORK_LOG": str(log)} | more
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "TELLAPART_"))}
        for name in SWITCHES:  # as on a user's machine
            kept.pop(name, None)
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, env=kept | ours, capture_output=True, text=True, timeout=120)
        return done, log.read_text() if log.exists() else ""

    return run


BY_PYTHON = "import socket; s = socket.socket(); s.settimeout(1); s.connect(('192.0.2.1', 443))"
BY_NAME = "import socket; socket.create_connection(('telemetry.invalid', 443), timeout=1)"
BY_DATAGRAM = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'.', ('192.0.2.1', 53))"
BY_C = """
import ctypes, socket, struct
libc = ctypes.CDLL(None)
address = struct.pack("=HHI8s", socket.AF_INET, socket.htons(443), 0x010200C0, bytes(8))
libc.connect(libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0), address, len(address))
"""


@pytest.mark.parametrize(
    ("code", "noticed"),
    [
        pytest.param(BY_PYTHON, "connect family 2", id="Python"),
        pytest.param(BY_NAME, "getaddrinfo telemetry.invalid", id="a name"),
        pytest.param(BY_C, "connect family 2", id="C"),
        pytest.param(BY_DATAGRAM, "sendto family 2", id="a datagram"),
    ],
)
def test_the_guard_sees_and_refuses_a_connection_that_was_planted(code: str, noticed: str, guarded: Run) -> None:
    """Otherwise the silence below would say little.  192.0.2.1 is an address that belongs to nobody."""
    _, asked = guarded("-c", code)
    assert noticed in asked.splitlines()


@pytest.mark.slow
def test_captioning_asks_nothing_of_the_network_and_leaves_nobody_elses_file_in_the_home(
    guarded: Run, tmp_path: Path
) -> None:
    photos = sorted(Path(album.__file__).with_name("photos").glob("*.webp"))[:3]
    (tmp_path / "holiday").mkdir()
    for photo in photos:
        shutil.copy(photo, tmp_path / "holiday")
    folder, out = tmp_path / "holiday", tmp_path / "captions.jsonl"
    done, asked = guarded("-m", "tellapart", "caption", folder, "--among", folder, "--out", out)
    assert (done.returncode, len(out.read_text().splitlines())) == (0, 3), done.stderr
    assert asked == ""
    home = tmp_path / "home"
    foreign = [str(file.relative_to(home)) for file in home.rglob("*") if file.is_file()]
    assert [file for file in foreign if not file.startswith(".cache/tellapart/")] == []


@pytest.mark.slow
@pytest.mark.parametrize("module", ["tellapart", "tellapart.onnx", "tellapart.captioning.cluster"])
def test_telemetry_is_off_before_anything_else_is_imported_whatever_the_environment_says(
    module: str, tmp_path: Path
) -> None:
    """As C code sees it, and a process that is started from here; workers of a cluster import us first, too."""
    shown = "; ".join(f"print(os.environ.get({name!r}), libc.getenv({name.encode()!r}).decode())" for name in SWITCHES)
    code = (
        "import ctypes, os, subprocess, sys; libc = ctypes.CDLL(None); libc.getenv.restype = ctypes.c_char_p\n"
        f"sys.modules['onnxruntime'] = sys.modules['ray'] = None; import {module}\n{shown}"
    )
    opposite = {"ORT_DISABLE_TELEMETRY": "0", "RAY_USAGE_STATS_ENABLED": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | opposite, capture_output=True, text=True)
    assert done.stdout.split() == [value for switch in SWITCHES.values() for value in (switch, switch)], done.stderr
