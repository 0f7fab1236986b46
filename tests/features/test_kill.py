"""A run of `tellapart features` that is killed again and again ends with what an undisturbed one gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.killed import run_killed
from support.stores import store_folder

PHOTOS = 150
# Which write is the last one of each run, and how much of it reaches the disk.  A batch of photos is three writes:
# its cells, its means, its lines of the journal.
KILLS = [(5, 0.5), (4, 0.0), (3, 0.3), (6, 1.0)]
SETTINGS = ("--image-size", 64, "--grid", 2)
ROW = {"grid.f16": 2 * 2 * 1280 * 2, "pooled.f16": 1280 * 2}  # bytes of a photo: cells, features, two bytes each


@pytest.fixture
def many_photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for i in range(PHOTOS):
        pixels = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((48, 40), Image.Resampling.NEAREST).save(folder / f"{i:03}.png")
    return folder


def lines(store: Path) -> int:
    """Whole lines of the journal."""
    journal = store / "rows.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def rows(store: Path) -> dict[str, dict[str, bytes]]:
    """What each photo has in each array.  A photo that is named twice is an error, and so are two in one row."""
    entries = [json.loads(line) for line in (store / "rows.jsonl").read_text().splitlines()]
    assert len({entry["id"] for entry in entries}) == len(entries)
    assert sorted(entry["row"] for entry in entries) == list(range(len(entries)))
    found: dict[str, dict[str, bytes]] = {entry["id"]: {} for entry in entries}
    for name, size in ROW.items():
        data = (store / name).read_bytes()
        assert len(data) == len(entries) * size
        for entry in entries:
            found[entry["id"]][name] = data[entry["row"] * size : (entry["row"] + 1) * size]
    return found


@pytest.mark.slow
def test_a_killed_run_goes_on_until_every_photo_has_the_features_of_an_undisturbed_run(
    many_photos, tmp_path, tellapart, encoder
):
    """Only those that are killed have a process of their own; starting one takes longer than all the photos."""
    code, printed, _ = tellapart("features", many_photos, *SETTINGS, "--out", tmp_path / "undisturbed")
    assert code == 0
    assert printed.endswith(f": {PHOTOS} photos added, 0 were there\n")

    store, before = store_folder(tmp_path / "killed", "photos", encoder), 0
    for last, share in KILLS:
        run_killed(store, last, share, "features", many_photos, *SETTINGS, "--out", tmp_path / "killed")
        assert before < lines(store) < PHOTOS  # what was there stays there, and there is something left to do
        before = lines(store)

    code, printed, _ = tellapart("features", many_photos, *SETTINGS, "--out", tmp_path / "killed")
    assert code == 0
    assert printed.endswith(f": {PHOTOS - before} photos added, {before} were there\n")
    expected = rows(store_folder(tmp_path / "undisturbed", "photos", encoder))
    assert set(expected) == {f"{i:03}.png" for i in range(PHOTOS)}
    assert len({row["grid.f16"] for row in expected.values()}) == PHOTOS  # the photos do differ
    assert rows(store) == expected
