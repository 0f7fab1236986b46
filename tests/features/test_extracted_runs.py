"""The feature cache when runs are cut off or stand side by side, and the command that fills it."""

from __future__ import annotations

import json
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks import photos as broken_photos
from capscore import files
from capscore.errors import UserError
from features.stores import album, assert_holds, cut
from support.stores import extract, feature_store, store_folder
from tellapart.data.examples import Example
from tellapart.features.extracted import Extracted, encode_items

# Runs that were cut off


def test_what_a_kill_left_half_written_is_cut_off_and_computed_again(tmp_path, encoder):
    """Features without their lines, and a line without its end."""
    examples = album(tmp_path / "photos", 4)
    store = tmp_path / "store"
    extract(examples[:2], encoder, store)
    for name, rest in [("grid.f16", bytes(12_345)), ("pooled.f16", bytes(7)), ("rows.jsonl", b'{"id": "photo 2", "fi')]:
        with (store / name).open("ab") as file:
            file.write(rest)
    assert_holds(feature_store(store, encoder), examples[:2], encoder)
    assert extract(examples[:2], encoder, store).computed == 0
    result = extract(examples, encoder, store)
    assert result.computed == 2
    assert_holds(feature_store(store, encoder), examples, encoder)


def test_a_line_that_was_cut_off_means_that_the_photo_is_computed_again(tmp_path, encoder):
    examples = album(tmp_path / "photos", 3)
    extract(examples, encoder, tmp_path / "store")
    cut("rows.jsonl")(tmp_path / "store")
    result = extract(examples, encoder, tmp_path / "store")
    assert result.computed == 1
    assert_holds(feature_store(tmp_path / "store", encoder), examples, encoder)


def limited(most: int) -> Callable[[], None]:
    """No file may grow past this: as good as a full disk."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


@pytest.mark.parametrize(("most", "kept"), [(100, 0), (50_000, 0), (163_840, 16), (180_000, 16)])
def test_when_the_disk_is_full_what_is_there_stays_valid_and_the_next_run_goes_on(most, kept, tmp_path, encoder):
    """A photo takes 10,240 bytes (4 cells, 1,280 features, 2 bytes), and 16 go through the encoder at once."""
    examples = album(tmp_path / "photos", 20)
    feature_store(tmp_path / "store", encoder)
    restore = limited(most)
    try:
        with pytest.raises(UserError, match=r"cannot be written \(File too large\); what was written stays valid"):
            extract(examples, encoder, tmp_path / "store")
    finally:
        restore()
    assert [example in feature_store(tmp_path / "store", encoder) for example in examples] == [True] * kept + [
        False
    ] * (20 - kept)
    result = extract(examples, encoder, tmp_path / "store")
    assert result.computed == 20 - kept
    assert_holds(feature_store(tmp_path / "store", encoder), examples, encoder)


def test_when_the_disk_is_full_in_the_middle_of_the_lines_the_next_run_goes_on(tmp_path, encoder, monkeypatch):
    """Two lines and a half were written."""
    examples = album(tmp_path / "photos", 5)
    append = files.append

    def full(path: Path, data: bytes) -> None:
        if path.name != "rows.jsonl":
            return append(path, data)
        lines = data.splitlines(keepends=True)
        append(path, b"".join(lines[:2]) + lines[2][:20])
        raise UserError(f"{path}: the disk is full.")

    monkeypatch.setattr(files, "append", full)
    with pytest.raises(UserError, match="the disk is full"):
        extract(examples, encoder, tmp_path / "store")
    monkeypatch.undo()
    assert_holds(feature_store(tmp_path / "store", encoder), examples[:2], encoder)
    assert extract(examples, encoder, tmp_path / "store").computed == 3
    assert_holds(feature_store(tmp_path / "store", encoder), examples, encoder)


# Several processes


def test_of_two_that_fill_one_store_at_once_the_second_waits_and_computes_nothing_twice(tmp_path, encoder):
    examples = album(tmp_path / "photos", 2)
    store, second = feature_store(tmp_path / "store", encoder), list[Extracted]()
    with store.writing():
        waiting = threading.Thread(target=lambda: second.append(extract(examples, encoder, tmp_path / "store")))
        waiting.start()
        waiting.join(0.5)
        assert not second
        (batch,) = encode_items(encoder, encoder, examples[:1])
        store.append(batch.arrays, batch.entries)
    waiting.join(30)
    assert second[0].computed == 1
    assert_holds(feature_store(tmp_path / "store", encoder), examples, encoder)


def test_a_full_store_can_be_used_while_another_process_adds_to_it(tmp_path, encoder):
    examples = album(tmp_path / "photos", 2)
    extract(examples, encoder, tmp_path / "store")
    with feature_store(tmp_path / "store", encoder).writing():
        assert_holds(extract(examples, encoder, tmp_path / "store").store, examples, encoder)


def test_one_that_waited_with_an_old_view_does_not_cut_off_what_another_has_added(tmp_path, encoder):
    """Both open the empty store; the second to write finds the lock free, and the first's photos in place."""
    examples = album(tmp_path / "photos", 3)
    early = feature_store(tmp_path / "store", encoder)
    extract(examples, encoder, tmp_path / "store")
    with early.writing():
        assert_holds(early, examples, encoder)
    assert_holds(feature_store(tmp_path / "store", encoder), examples, encoder)


def test_what_a_reader_has_open_stays_right_while_photos_are_added(tmp_path, encoder):
    examples = album(tmp_path / "photos", 20)
    reader = extract(examples[:2], encoder, tmp_path / "store").store
    before = reader.grid([0, 1])
    extract(examples, encoder, tmp_path / "store")
    torch.testing.assert_close(reader.grid([0, 1]), before)
    assert examples[2] not in reader


# Photos and stores that cannot be used, seen by the whole run


def test_a_photo_that_can_no_longer_be_read_does_not_stop_the_others(tmp_path, encoder, monkeypatch):
    """Its date and its permissions have changed, its size has not."""
    examples = album(tmp_path / "photos", 3)
    extract(examples[:2], encoder, tmp_path / "store")
    os.utime(examples[0].file, (1, 1))
    open_file = Path.open

    def refuse(path: Path, *mode: str, **more: str) -> Any:
        if path == examples[0].file:
            raise PermissionError(13, "Permission denied")
        return open_file(path, *mode, **more)

    monkeypatch.setattr(Path, "open", refuse)  # a test that runs as root may read everything
    result = extract(examples, encoder, tmp_path / "store")
    assert result.failed == {"photo 0": "cannot be read (Permission denied)"}
    assert result.computed == 1


def test_data_sets_whose_long_names_differ_at_the_end_have_a_store_each(tmp_path, encoder):
    first, second = (store_folder(tmp_path, "x" * 300 + end, encoder) for end in "ab")
    assert first != second
    feature_store(first, encoder)
    feature_store(second, encoder)


# The command

SETTINGS = ("--image-size", "64", "--grid", "2")


def test_the_command_adds_each_photo_once(tellapart, photo_folder, tmp_path, encoder):
    store = store_folder(tmp_path / "out", "photos", encoder)
    for added, there in ((6, 0), (0, 6)):
        code, printed, _ = tellapart("features", photo_folder, *SETTINGS, "--out", tmp_path / "out")
        assert (code, printed) == (0, f"{store}: {added} photos added, {there} were there\n")
    examples = [Example(f"{i}.png", photo_folder / f"{i}.png") for i in range(6)]
    assert_holds(feature_store(store, encoder), examples, encoder)


def test_the_command_names_a_bad_photo_each_time_and_exits_with_1(tellapart, photo_folder, tmp_path):
    bad = broken_photos.empty(photo_folder)
    for added, there in ((6, 0), (0, 6)):
        code, printed, said = tellapart("features", photo_folder, *SETTINGS, "--out", tmp_path / "out")
        assert code == 1
        assert printed.endswith(f": {added} photos added, {there} were there, 1 could not be used\n")
        assert said.splitlines().count(f"{bad}: the file is empty") == 1


def test_the_command_names_a_bad_record_and_exits_with_1(tellapart, photo_folder, tmp_path, encoder):
    data = photo_folder / "data.json"
    data.write_text(json.dumps({"dataset": "a/b", "images": [{"id": 1, "file": "1.png"}, {"id": 2}]}))
    code, printed, said = tellapart("features", data, *SETTINGS, "--out", tmp_path / "out")
    store = store_folder(tmp_path / "out", "a/b", encoder)
    assert (code, printed) == (1, f"{store}: 1 photos added, 0 were there\n")
    assert f'{data}: image 2: "file" is missing.' in said.splitlines()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "DATA"),
        (["nowhere.json"], "nowhere.json: there is no such file."),
        (["x" * 300], "File name too long"),
        (["photos", "--image-size", "31"], "image_size must be from 32"),
        (["photos", "--image-size", "big"], "'big'"),
        (["photos", "--grid", "0"], "'0'"),
        (["photos", "--encoder", "resnet"], "resnet"),
        (["photos", "--device", "toaster"], "device 'toaster' cannot be used here"),
        (["photos", *SETTINGS, "--out", "photos/0.png"], "photos/0.png"),
        (["photos", *SETTINGS, "--out", "x" * 300], "cannot be written (File name too long)"),
        (["empty"], "there are no photos in this folder"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value)[:40],
)
def test_a_wrong_request_is_answered_with_one_sentence_and_exit_code_2(
    arguments, sentence, tellapart, photo_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    code, printed, said = tellapart("features", *arguments)
    assert (code, printed) == (2, "")
    assert said.startswith("tellapart features: ")
    assert sentence in said
    assert said.count("\n") == 1
