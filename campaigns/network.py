"""Every command, with an empty home, in a process that cannot reach any other machine and says when it tries.

The guard (tests/attacks/network_guard.c) stands between the process and the C library, so that it sees compiled code
too.  Only this machine may be reached, as by the page of a study.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from campaigns import forked, world
from campaigns.report import Row, is_wanted

_OURS = (".cache/tellapart/",)  # of files in the home


def requests(w: Path, out: Path) -> dict[str, list[object]]:
    """A request of every command, in an order in which one may need what another made."""
    model, retriever = ("--model", w / "captioner"), ("--retriever", w / "retriever")
    data = w / "toy" / "captions.json"
    captions = [w / "colours" / name for name in ("plain.json", "rich.json")]
    return {
        "models": [],
        "doctor": [],
        "check": ["--plugin", w / "plugin.py"],
        "prepare": ["folder", w / "photos", "--out", out / "data.json"],
        "features": [w / "photos", "--image-size", 64, "--grid", 2, "--out", out / "features"],
        "train": [w / "recipe.yaml", "--out", out / "run", "--max_steps", 4],
        "caption": [w / "photos", *model, "--among", w / "photos", *retriever, "--out", out / "c.jsonl"],
        "lint": [out / "c.jsonl"],
        "score": [w / "colours" / "plain.json", w / "colours" / "data.json", "--metrics", "BLEU,CIDEr-D"],
        "evaluate": [w / "captioner", "--data", data, "--split", "val", *retriever, "--out", out / "table"],
        "compare": [out / "run", "--out", out / "comparison"],
        "lookalikes": [w / "photos", *retriever, "--out", out / "l.html"],
        "write": [w / "captions.jsonl"],
        "alt": [w / "site", *model, *retriever],
        "pool": [data, "--split", "val", *retriever, "--out", out / "pool"],
        "adapt": [w / "holiday", *model, *retriever, "--minutes", 0.5, "--out", out / "adapted"],
        "study": ["new", "compare", *captions, "--data", w / "colours" / "data.json", "--out", out / "study"],
        "demo": ["--out", out / "demo"],
        "serve": [w / "photos", *model],
    }


_FINE = {"lint": (0, 1), "alt": (0, 1)}  # exit codes: a model with random weights says nonsense


def run(folder: Path, count: int, seed: int, only: str = "") -> Iterator[Row]:
    """count  of the commands at most"""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        raise RuntimeError("the guard is compiled: it needs Linux and a C compiler")
    source = Path(__file__).parent.parent / "tests" / "attacks" / "network_guard.c"
    guard, home = folder / "guard.so", folder / "home"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", guard, source, "-ldl"], check=True, timeout=120)
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "TELLAPART_"))}
    ours = {"HOME": str(home), "LD_PRELOAD": str(guard), "NETWORK_LOG": str(folder / "log"), "NETWORK_LOOPBACK": "1"}
    command = [sys.executable, "-m", "campaigns.network", str(folder), str(count), only]
    with subprocess.Popen(command, env=kept | ours, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield Row(**json.loads(line))
    if process.returncode:
        raise RuntimeError(f"exit {process.returncode}")


def _guarded(folder: Path, count: int, only: str) -> Iterator[Row]:
    """In the process that the guard is loaded into."""
    from attacks import test_network as planted

    place, out = folder / "world", folder / "out"
    place.mkdir()
    out.mkdir()
    wanted = [name for name in requests(place, out) if is_wanted(name, only)][:count]
    world.preload(wanted)
    made = forked.run(lambda: world.make(place), folder / "text", seconds=900)
    if made.code:
        raise RuntimeError(made.text)
    for what, code in {
        "a connection by Python": planted.BY_PYTHON,
        "a name that is looked up": planted.BY_NAME,
        "a datagram": planted.BY_DATAGRAM,
        "a connection by C": planted.BY_C,
    }.items():
        row = Row("network", what, planted=True)
        _asked(folder, row, "models", [], lambda code=code: _quietly(code))
        row.failed = [sentence for sentence in row.failed if "asks the network" in sentence]
        yield row
    for name in wanted:
        row = Row("network", name)
        _asked(folder, row, name, requests(place, out)[name])
        yield row


def _quietly(code: str) -> None:
    with suppress(OSError):
        exec(code, {})


def _asked(folder: Path, row: Row, name: str, arguments: list[object], plant: world.Plant | None = None) -> None:
    home, log = folder / f"home-{name}", folder / "network.log"
    shutil.rmtree(home, ignore_errors=True)
    log.unlink(missing_ok=True)
    home.mkdir()

    if name == "serve":
        port = forked.free_port()
        arguments = [*arguments, "--port", port]

    def at_home() -> None:
        os.environ["HOME"], os.environ["NETWORK_LOG"] = str(home), str(log)
        if name == "serve":
            threading.Thread(target=_visit, args=(f"http://127.0.0.1:{port}", arguments[0]), daemon=True).start()
        if plant is not None:
            plant()

    done = forked.run(world.command(name, *arguments, plant=at_home), folder / "text", seconds=1800)
    row.tried += 1
    if done.code not in _FINE.get(name, (0,)):
        row.failed.append(f"{name}: exit {done.code}: {done.text[-300:]}")
    if log.exists():
        row.failed.append(f"{name}: asks the network: {log.read_text()[:200]}")
    for place in (home, folder / "home"):
        for file in place.rglob("*"):
            if file.is_file() and not str(file.relative_to(place)).startswith(_OURS):
                row.failed.append(f"{name}: leaves {file.relative_to(place)} in the home")
    row.note = f"{done.seconds:.0f} s"


def _visit(address: str, photos: Path) -> None:
    """Somebody who opens the page of `serve`, has a photo captioned, and stops the server."""
    from support.web import ask

    code, until = 70, time.monotonic() + 600
    try:
        while code and time.monotonic() < until:
            with suppress(OSError):  # not yet
                code = 0 if ask(address, "/api/jobs/1")[1]["state"] == "done" else 70
            time.sleep(0.1)
        upload = next(photos.glob("*.png")).read_bytes()
        answers = [ask(address, path)[0] for path in ("/", "/serve.js", "/docs", "/api/state", "/photos/1?size=large")]
        answers += [ask(address, path, upload)[0] for path in ("/api/caption", "/api/caption?among=true")]
        if answers != [200] * len(answers):
            print(f"answers {answers}", flush=True)
            code = 70
    finally:
        os._exit(code)


if __name__ == "__main__":
    for one in _guarded(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]):
        print(json.dumps(one.__dict__), flush=True)
