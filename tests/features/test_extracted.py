"""The feature cache: what was computed is found again, and nothing that happens to its files goes unnoticed."""

import json
import os
import resource
import threading
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from attacks import photos as attacks
from capscore import files
from capscore.errors import UserError
from support.killed import run_killed
from support.stores import feature_store, store_folder
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.encoders.encoder import Encoder, FrameEncoder, InView
from tellapart.features.extracted import encode_items

# What is kept


def test_what_is_read_from_the_store_is_what_the_encoder_gave(cache):
    """Twenty photos: more than go through the encoder at once.  Those that are there cost nothing."""
    assert cache.fill(cache.album(3)).computed == 3
    examples = cache.album(20)
    result = cache.fill(examples)
    assert (result.computed, result.failed) == (17, {})
    assert cache.holds(examples, result.store)
    assert cache.holds(examples)
    assert cache.fill(examples).computed == 0
    rows = result.store.grid([2, 0, 2])  # in the order asked for, and free to be changed
    expected = result.store.grid(np.arange(4))[[2, 0, 2]]
    torch.testing.assert_close(rows, expected)
    rows.zero_()
    torch.testing.assert_close(result.store.grid([2, 0, 2]), expected)


def test_a_bad_photo_is_named_and_left_out_and_the_others_are_kept(cache, tmp_path, capfd):
    bad = {
        "pipe": attacks.a_pipe(tmp_path),
        "gone": attacks.BROKEN["missing"](tmp_path),
        "text": attacks.BROKEN["text named png"](tmp_path),
    }
    broken, examples = [Example(id, file) for id, file in bad.items()], cache.album(3)
    assert cache.fill([]).computed == 0
    assert cache.fill(broken[1:2]).store.grid([]).shape == (0, 4, 1280)  # no good photos make an empty store
    result = cache.fill([broken[0], *examples, *broken[1:]])
    assert (set(result.failed), result.computed) == (set(bad), 3)
    assert result.failed["gone"] == "there is no such file"
    assert not any(example in result.store for example in broken)
    assert cache.holds(examples)
    assert f"{bad['gone']}: there is no such file" in capfd.readouterr().err


def test_a_photo_may_have_two_ids_or_a_name_that_is_not_utf_8(cache, tmp_path):
    photo = cache.draw("photo.bmp", seed=0)
    examples = [Example(1, photo), Example("one", photo), Example("café", attacks.name_that_is_not_utf_8(tmp_path))]
    cache.fill(examples)
    assert cache.holds(examples[:2])
    assert cache.fill(examples).computed == 0


# Photos that change


def test_a_photo_is_computed_again_where_its_bytes_have_changed(cache, tmp_path):
    """And not with a new date, moved, or gone."""
    examples = cache.album(2)
    cache.fill(examples)
    cache.draw("photos/1.bmp", seed=99)
    os.utime(examples[1].file, (1, 2))  # the size is the same, so the date has to give it away
    assert cache.fill(examples).computed == 1
    assert cache.holds(examples)
    expected = cache.fill(examples).store.grid([0, 1])
    os.utime(examples[1].file, (1, 1))
    assert cache.fill(examples).computed == 0
    (tmp_path / "photos").rename(tmp_path / "there")
    moved = [Example(example.id, tmp_path / "there" / example.file.name) for example in examples]
    assert cache.fill(moved).computed == 0
    result = cache.fill(examples)
    assert (result.computed, result.failed) == (0, {})
    torch.testing.assert_close(result.store.grid([0, 1]), expected)


def test_a_photo_that_became_broken_is_named_and_its_old_features_are_not_given_for_it(cache):
    examples = cache.album(2)
    cache.fill(examples)
    examples[0].file.write_bytes(b"this was a photo once")
    result = cache.fill(examples)
    assert set(result.failed) == {"photo 0"}
    assert [example in result.store for example in examples] == [False, True]


def test_an_id_that_now_means_another_photo_never_gets_the_first_ones_features(cache, tmp_path):
    """Same size, same date, as of photos from one archive: only the name tells that it is not the same photo."""
    first, second = cache.draw("first.bmp", seed=1), cache.draw("second.bmp", seed=2)
    for file in (first, second):
        os.utime(file, (1, 1))
    cache.fill([Example(7, first)])
    result = cache.fill([missing := Example(7, tmp_path / "third.bmp")])
    assert result.failed == {"7": "there is no such file"}
    assert missing not in result.store
    cache.fill([Example(7, second)])
    assert cache.holds([Example(7, second)])


def test_a_photo_that_changes_or_goes_while_it_is_read_does_no_harm(cache, monkeypatch):
    examples, read = cache.album(2), photos.read

    def read_and_change(file, size, fit):
        photo = read(file, size, fit)
        file.unlink()
        if file == examples[0].file:
            os.utime(cache.draw(f"photos/{file.name}", seed=99), (1, 1))
        return photo

    monkeypatch.setattr(photos, "read", read_and_change)
    result = cache.fill(examples)
    assert (result.computed, result.failed) == (2, {})
    monkeypatch.undo()
    assert cache.fill(examples).computed == 1
    assert cache.holds(examples[:1])


def test_a_photo_that_can_no_longer_be_read_does_not_stop_the_others(cache, monkeypatch):
    """Its date and its permissions have changed, its size has not."""
    examples = cache.album(3)
    cache.fill(examples[:2])
    os.utime(examples[0].file, (1, 1))
    open_file = Path.open

    def refuse(path, *mode, **more):
        if path == examples[0].file:
            raise PermissionError(13, "Permission denied")
        return open_file(path, *mode, **more)

    monkeypatch.setattr(Path, "open", refuse)  # a test that runs as root may read everything
    result = cache.fill(examples)
    assert (result.computed, result.failed) == (1, {"photo 0": "cannot be read (Permission denied)"})


# Runs that were cut off


def test_of_what_a_kill_cut_off_the_photos_are_computed_again(cache):
    """Two lines and a half were written.  What else may be half written: tests/data/test_store.py."""
    examples, journal = cache.album(5), cache.store / "rows.jsonl"
    cache.fill(examples)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]) + lines[2][:20])
    assert cache.holds(examples[:2])
    assert cache.fill(examples).computed == 3
    assert cache.holds(examples)


@pytest.mark.parametrize(("most", "kept"), [(100, 0), (50_000, 0), (163_840, 16), (180_000, 16)])
def test_when_the_disk_is_full_what_is_there_stays_valid_and_the_next_run_goes_on(most, kept, cache):
    """No file may grow past `most`.  A photo takes 10,240 bytes (4 cells, 1,280 features, 2 bytes), 16 go through the
    encoder at once."""
    examples = cache.album(20)
    cache.open()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot be written \(File too large\); what was written stays valid"):
            cache.fill(examples)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    store = cache.open()
    assert [example in store for example in examples] == [True] * kept + [False] * (20 - kept)
    assert cache.fill(examples).computed == 20 - kept
    assert cache.holds(examples)


# Several processes


def test_of_two_that_fill_one_store_at_once_the_second_waits_and_computes_nothing_twice(cache):
    examples = cache.album(2)
    store, second = cache.open(), []
    with store.writing():
        waiting = threading.Thread(target=lambda: second.append(cache.fill(examples)))
        waiting.start()
        waiting.join(0.5)
        assert not second
        (batch,) = encode_items(cache.encoder, cache.encoder, examples[:1])
        store.append(batch.arrays, batch.entries)
    waiting.join(30)
    assert second[0].computed == 1
    assert cache.holds(examples)


def test_a_store_can_be_used_while_another_process_adds_to_it(cache):
    examples = cache.album(3)
    reader = cache.fill(examples[:2]).store
    expected = reader.grid([0, 1])
    with cache.open().writing():
        assert cache.holds(examples[:2], cache.fill(examples[:2]).store)
    cache.fill(examples)
    torch.testing.assert_close(reader.grid([0, 1]), expected)
    assert examples[2] not in reader


# Stores that are not what they should be


def test_a_store_of_another_encoder_or_with_a_line_that_lacks_something_is_refused_in_one_sentence(cache):
    """What else can be wrong with a store: tests/data/test_store.py."""
    examples = cache.album(1)
    cache.fill(examples)
    other = Encoder(replace(cache.encoder.config, grid=1))
    with pytest.raises(UserError, match="store holds features of another source: grid is 2 there and 1"):
        feature_store(cache.store, other)
    entry = json.loads((cache.store / "rows.jsonl").read_text())
    for key in ("sha256", "file", "bytes", "mtime_ns"):
        lacking = {name: value for name, value in entry.items() if name != key}
        (cache.store / "rows.jsonl").write_text(json.dumps(lacking) + "\n")
        with pytest.raises(UserError, match=r"^[^\n]*rows\.jsonl: line 1 is damaged; delete the folder [^\n]*$"):
            cache.fill(examples)


NAMES = ["flickr/8k", "../../etc", "..", ".", "", "a\0b", "a b\n", "写真" * 200, "\udce9"]
NAMES += ["x" * 300 + "a", "x" * 300 + "b"]


def test_whatever_a_data_set_is_called_its_store_lies_in_a_folder_of_its_own_below_the_features(tmp_path, encoder):
    folders = [store_folder(tmp_path / "features", name, encoder) for name in NAMES]
    assert len(set(folders)) == len(NAMES)
    for folder in folders:
        assert files.real(folder).parent == files.real(tmp_path / "features")
        feature_store(folder, encoder)
        assert (folder / "manifest.json").is_file()


def test_whatever_features_depend_on_is_in_the_name_of_their_folder(encoder, tmp_path):
    """A network that was trained anew under the same name has a store of its own."""
    retrained = copy(encoder)
    retrained.weights_sha256 = "0" * 64
    sources = [encoder, retrained, InView(encoder, 1), InView(encoder, 2), FrameEncoder(encoder, 2)]
    sources += [Encoder(replace(encoder.config, **{field: 3})) for field in ("grid", "coarse")]
    sources += [Encoder(replace(encoder.config, pooling="max")), FrameEncoder(encoder, 2, around=1)]
    assert len({store_folder(tmp_path, "photos", source) for source in sources}) == len(sources)
    assert store_folder(tmp_path, "photos", Encoder(encoder.config)) == store_folder(tmp_path, "photos", encoder)


# The command

SETTINGS = ("--image-size", "64", "--grid", "2")


def test_the_command_adds_each_photo_once_and_names_bad_ones_each_time(tellapart, photo_folder, tmp_path, cache):
    store = store_folder(tmp_path / "out", "photos", cache.encoder)
    for added, there in ((6, 0), (0, 6)):
        code, printed, _ = tellapart("features", photo_folder, *SETTINGS, "--out", tmp_path / "out")
        assert (code, printed) == (0, f"{store}: {added} photos added, {there} were there\n")
    examples = [Example(f"{i}.png", photo_folder / f"{i}.png") for i in range(6)]
    assert cache.holds(examples, feature_store(store, cache.encoder))
    bad = attacks.BROKEN["empty"](photo_folder)
    for _ in range(2):
        code, printed, err = tellapart("features", photo_folder, *SETTINGS, "--out", tmp_path / "out")
        assert (code, err.splitlines().count(f"{bad}: the file is empty")) == (1, 1)
        assert printed.endswith(": 0 photos added, 6 were there, 1 could not be used\n")
    data = photo_folder / "data.json"
    data.write_text(json.dumps({"dataset": "a/b", "images": [{"id": 1, "file": "1.png"}, {"id": 2}]}))
    code, printed, err = tellapart("features", data, *SETTINGS, "--out", tmp_path / "out")
    store = store_folder(tmp_path / "out", "a/b", cache.encoder)
    assert (code, printed) == (1, f"{store}: 1 photos added, 0 were there\n")
    assert f'{data}: image 2: "file" is missing.' in err.splitlines()


# A run of the command that is killed again and again ends with what an undisturbed one gives

MANY = 150
# Which write is the last one of each run, and how much of it reaches the disk.  A batch of photos is three writes:
# its cells, its means, its lines of the journal.
KILLS = [(5, 0.5), (4, 0.0), (3, 0.3), (6, 1.0)]
ROW = {"grid.f16": 2 * 2 * 1280 * 2, "pooled.f16": 1280 * 2}  # bytes of a photo: cells, features, two bytes each


@pytest.fixture
def many_photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for i in range(MANY):
        pixels = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((48, 40), Image.Resampling.NEAREST).save(folder / f"{i:03}.png")
    return folder


def whole_lines(store: Path) -> int:
    """Whole lines of the journal."""
    journal = store / "rows.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def rows_of(store: Path) -> dict[str, dict[str, bytes]]:
    """What each photo has in each array.  A photo that is named twice is an error, and so are two in one row."""
    entries = [json.loads(line) for line in (store / "rows.jsonl").read_text().splitlines()]
    assert len({entry["id"] for entry in entries}) == len(entries)
    assert sorted(entry["row"] for entry in entries) == list(range(len(entries)))
    rows: dict[str, dict[str, bytes]] = {entry["id"]: {} for entry in entries}
    for name, size in ROW.items():
        data = (store / name).read_bytes()
        assert len(data) == len(entries) * size
        for entry in entries:
            rows[entry["id"]][name] = data[entry["row"] * size : (entry["row"] + 1) * size]
    return rows


@pytest.mark.slow
def test_a_killed_run_goes_on_until_every_photo_has_the_features_of_an_undisturbed_run(
    many_photos, tmp_path, tellapart, encoder
):
    """Only those that are killed have a process of their own; starting one takes longer than all the photos."""
    code, printed, _ = tellapart("features", many_photos, *SETTINGS, "--out", tmp_path / "undisturbed")
    assert code == 0
    assert printed.endswith(f": {MANY} photos added, 0 were there\n")

    store, before = store_folder(tmp_path / "killed", "photos", encoder), 0
    for last, share in KILLS:
        run_killed(store, last, share, "features", many_photos, *SETTINGS, "--out", tmp_path / "killed")
        assert before < whole_lines(store) < MANY  # what was there stays there, and there is something left to do
        before = whole_lines(store)

    code, printed, _ = tellapart("features", many_photos, *SETTINGS, "--out", tmp_path / "killed")
    assert code == 0
    assert printed.endswith(f": {MANY - before} photos added, {before} were there\n")
    expected = rows_of(store_folder(tmp_path / "undisturbed", "photos", encoder))
    assert set(expected) == {f"{i:03}.png" for i in range(MANY)}
    assert len({row["grid.f16"] for row in expected.values()}) == MANY  # the photos do differ
    assert rows_of(store) == expected
