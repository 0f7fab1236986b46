"""`tellapart serve` against `tellapart caption --among`: photos per second, and how long the page waits meanwhile.

    python benchmarks/serving.py                          (the album, the default captioner)
    python benchmarks/serving.py --photos DIR --people 8

Both caption the same folder, told apart within itself, from the first photo that is captioned to the last; photos were
compared before, so that both read the same cache.  They take turns.  Then people ask for lists and photos and decide,
all at once, while the captioner works: the 50th and 95th percentile of an API call.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tellapart import album


def command_line(folder: Path, model: str, out: Path) -> float:
    """Seconds of captioning, loading left out: those of all photos less those of one."""

    def wait(path: Path, name: str) -> float:
        began = time.perf_counter()
        command = [sys.executable, "-m", "tellapart", "caption", str(path), "--among", str(folder), "--model", model]
        subprocess.run([*command, "--out", str(out / name)], check=True, capture_output=True)
        return time.perf_counter() - began

    one = next(path for path in sorted(folder.iterdir()) if path.suffix != ".db")
    return wait(folder, f"{time.time()}.jsonl") - wait(one, f"{time.time()}.jsonl")


class Served:
    def __init__(self, folder: Path, model: str):
        (folder / "tellapart.db").unlink(missing_ok=True)
        command = [sys.executable, "-m", "tellapart", "serve", str(folder), "--model", model, "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.host = self.process.stdout.readline().strip().removeprefix("http://").rstrip("/")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        content = json.loads(connection.getresponse().read())
        connection.close()
        return content

    def job(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", "/api/jobs/1")
        assert not found["error"], found["error"]
        return found

    def captioning(self) -> float:
        """Seconds from the first to the last caption."""
        while self.job()["state"] in ("starting", "comparing the photos"):
            time.sleep(0.02)
        began = time.perf_counter()
        while self.job()["state"] != "done":
            time.sleep(0.25)
        return time.perf_counter() - began

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def person(served: Served, number: int, took: list[float], until: float) -> None:
    draw = np.random.default_rng(number)
    while time.perf_counter() < until:
        began = time.perf_counter()
        found = served.ask("GET", "/api/photos?limit=60")["photos"]
        took.append(time.perf_counter() - began)
        if not found:
            continue
        id = found[draw.integers(len(found))]["id"]
        began = time.perf_counter()
        photo = served.ask("GET", f"/api/photos/{id}")["photo"]
        took.append(time.perf_counter() - began)
        began = time.perf_counter()
        decision = {"version": photo["version"], "review": "edited", "caption": f"caption {draw.integers(1 << 30)}"}
        served.ask("PATCH", f"/api/photos/{id}", decision)
        took.append(time.perf_counter() - began)
        time.sleep(0.2)  # nobody reviews faster


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=album.DEFAULT)
    parser.add_argument("--photos", type=Path, default=album.HERE / "photos")
    parser.add_argument("--people", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    request = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(shutil.copytree(request.photos, Path(place, "photos")))
        count = sum(path.is_file() for path in folder.iterdir())
        times: dict[str, list[float]] = {"caption --among": [], "serve": []}
        for _ in range(request.repeats):
            times["caption --among"].append(command_line(folder, request.model, Path(place)))
            served = Served(folder, request.model)
            try:
                times["serve"].append(served.captioning())
            finally:
                served.stop()
        speed = {name: count / statistics.median(seconds) for name, seconds in times.items()}
        for name, rate in speed.items():
            print(f"{name:<16} {rate:6.2f} photos/s   {rate / speed['caption --among']:.2f}")
        served, took = Served(folder, request.model), list[float]()
        try:
            until = time.perf_counter() + 20
            people = [threading.Thread(target=person, args=(served, n, took, until)) for n in range(request.people)]
            for one in people:
                one.start()
            for one in people:
                one.join()
        finally:
            served.stop()
        half, most = np.percentile(took, [50, 95]) * 1000
        print(f"{request.people} people, {len(took)} API calls while captioning: p50 {half:.0f} ms, p95 {most:.0f} ms")
