"""`--ray`: the same results as without it, made by the two workers of a cluster."""

import json
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("ray")

pytest_plugins = ["support.ray_cluster"]


@pytest.fixture(scope="module")
def many_photos(tmp_path_factory):
    """Sixty small photos, one of them cut short and one with a name that is not UTF-8, in a folder with a space."""
    folder = tmp_path_factory.mktemp("many photos")
    draw = np.random.default_rng(0)
    for i in range(60):
        pixels = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        name = os.fsdecode(b"\xff.png") if i == 59 else f"{i:02}.png"
        Image.fromarray(pixels).resize((40 + i, 32), Image.Resampling.NEAREST).save(folder / name)
    (folder / "37.png").write_bytes((folder / "37.png").read_bytes()[:60])
    return folder


@pytest.fixture
def kill_a_worker(two_workers):
    """Kill one of the processes that are at work, as soon as something has been written to a file."""
    killed, over = [], threading.Event()

    def watch(file):
        while not over.wait(0.01):
            if file.exists() and file.stat().st_size and (busy := two_workers.busy()):
                os.kill(busy[0], signal.SIGKILL)
                killed.append(busy[0])
                return

    threads = []

    def start(file):
        threads.append(threading.Thread(target=watch, args=(file,)))
        threads[0].start()
        return killed

    yield start
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.slow
def test_captions_are_those_of_one_process_although_a_worker_is_killed(
    tellapart, two_workers, kill_a_worker, small_model, many_photos, tmp_path, monkeypatch
):
    monkeypatch.chdir(many_photos.parent)  # relative names, which the workers would not find
    request = ("caption", many_photos.name, "--model", os.path.relpath(small_model), "--out")
    assert tellapart(*request, tmp_path / "one.jsonl")[0] == 1
    killed = kill_a_worker(tmp_path / "two.jsonl")
    code, out, err = tellapart(*request, tmp_path / "two.jsonl", "--ray", two_workers.address)
    assert (code, out) == (1, "")
    assert len(killed) == 1
    assert (tmp_path / "two.jsonl").read_text() == (tmp_path / "one.jsonl").read_text()
    assert len((tmp_path / "two.jsonl").read_text().splitlines()) == 60
    assert "37.png: " in err


@pytest.mark.slow
def test_features_are_those_of_one_process(tellapart, two_workers, many_photos, tmp_path):
    request = ("features", many_photos, "--image-size", 64, "--grid", 2, "--device", "cpu", "--out")
    assert tellapart(*request, tmp_path / "one")[0] == 1
    code, _, err = tellapart(*request, tmp_path / "two", "--ray", two_workers.address)
    assert code == 1
    assert "37.png: " in err
    (one,), (two,) = (list((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert (one / "manifest.json").read_text() == (two / "manifest.json").read_text()
    assert rows_of(one) == rows_of(two)
    assert len(rows_of(two)) == 59


def rows_of(store):
    """The numbers of each photo and its line of the journal, but for the row: that is the order of arrival."""
    grid = np.fromfile(store / "grid.f16", np.float16).reshape(-1, 4 * 1280)
    pooled = np.fromfile(store / "pooled.f16", np.float16).reshape(-1, 1280)
    rows = {}
    for line in (store / "rows.jsonl").read_text().splitlines():
        entry = json.loads(line)
        row = entry.pop("row")
        rows[entry["id"]] = entry, grid[row].tobytes(), pooled[row].tobytes()
    return rows


@pytest.mark.parametrize("command", [("caption",), ("features", "--out", "features")])
def test_an_address_that_does_not_answer_is_one_sentence(tellapart, photo_folder, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    began = time.monotonic()
    code, out, err = tellapart(*command, photo_folder, "--ray", address)
    assert time.monotonic() - began < 20
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"--ray {address}: no Ray cluster answers at this address" in err
    assert list(tmp_path.iterdir()) == [photo_folder]
