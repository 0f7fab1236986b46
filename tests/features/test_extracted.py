"""The feature cache: what was computed is found again, and nothing that happens to its files goes unnoticed."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from attacks import photos as attacks
from tellapart import files
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.encoders.encoder import Encoder
from tellapart.errors import UserError
from tellapart.features.extracted import FeatureStore, extract, store_folder
from tellapart.recipe import EncoderConfig

HALF = {"rtol": 1e-3, "atol": 2e-3}  # features are below 6, where numbers of half precision lie 0.004 apart


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(EncoderConfig(image_size=64, grid=2))


def draw(file: Path, seed: int, side: int = 6) -> Path:
    """A few coloured squares, different for each seed.  As BMP, so that all photos have one size in bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    Image.fromarray(pixels).save(file, "BMP")
    return file


def album(folder: Path, count: int) -> list[Example]:
    folder.mkdir(exist_ok=True)
    return [Example(f"photo {i}", draw(folder / f"{i}.bmp", seed=i)) for i in range(count)]


def assert_holds(store: FeatureStore, examples: list[Example], encoder: Encoder) -> None:
    """Every photo is in the store, with the features that the encoder gives it alone."""
    rows = [store.row(example) for example in examples]
    assert len(set(rows)) == len(rows)
    for example, grid, pooled in zip(examples, store.grid(rows), store.pooled(rows), strict=True):
        expected = encoder(photos.read(example.file, encoder.config.image_size).pixels[None])
        torch.testing.assert_close(grid, expected.grid[0], **HALF)
        torch.testing.assert_close(pooled, expected.pooled[0], **HALF)


# What is kept


def test_what_is_read_from_the_store_is_what_the_encoder_gave(tmp_path, encoder):
    """Twenty photos: more than go through the encoder at once."""
    examples = album(tmp_path / "photos", 20)
    result = extract(examples, encoder, tmp_path / "store")
    assert (result.computed, result.failed) == (20, {})
    assert_holds(result.store, examples, encoder)
    assert_holds(FeatureStore(tmp_path / "store", encoder), examples, encoder)


def test_rows_come_in_the_order_of_the_photos_and_are_given_in_the_order_asked_for(tmp_path, encoder):
    examples = album(tmp_path / "photos", 4)
    store = extract(examples, encoder, tmp_path / "store").store
    assert [store.row(example) for example in examples] == [0, 1, 2, 3]
    assert store.grid([2, 0, 2]).shape == (3, 4, 1280)
    torch.testing.assert_close(store.pooled([2, 0, 2]), store.pooled(np.arange(4))[[2, 0, 2]])


def test_features_can_be_changed_by_who_asked_for_them_without_changing_the_store(tmp_path, encoder):
    store = extract(album(tmp_path / "photos", 1), encoder, tmp_path / "store").store
    before = store.grid([0]).clone()
    store.grid([0]).zero_()
    torch.testing.assert_close(store.grid([0]), before)


def test_photos_that_are_there_cost_nothing_and_new_ones_are_added(tmp_path, encoder):
    extract(album(tmp_path / "photos", 3), encoder, tmp_path / "store")
    examples = album(tmp_path / "photos", 5)
    result = extract(examples, encoder, tmp_path / "store")
    assert result.computed == 2
    assert_holds(result.store, examples, encoder)
    assert extract(examples, encoder, tmp_path / "store").computed == 0


def test_a_bad_photo_is_named_and_left_out_and_the_others_are_kept(tmp_path, encoder, capfd):
    examples = album(tmp_path / "photos", 3)
    broken = [
        Example("pipe", attacks.a_pipe(tmp_path)),
        Example("gone", attacks.missing(tmp_path)),
        Example("text", attacks.text_named_png(tmp_path)),
    ]
    result = extract([broken[0], *examples, *broken[1:]], encoder, tmp_path / "store")
    assert result.failed["gone"] == "there is no such file"
    assert set(result.failed) == {"pipe", "gone", "text"}
    assert result.computed == 3
    assert not any(example in result.store for example in broken)
    assert_holds(result.store, examples, encoder)
    assert f"{broken[1].file}: there is no such file" in capfd.readouterr().err


def test_no_photos_and_no_good_photos_make_an_empty_store(tmp_path, encoder):
    assert extract([], encoder, tmp_path / "empty").computed == 0
    store = extract([Example(1, tmp_path / "gone.jpg")], encoder, tmp_path / "bad").store
    assert store.grid([]).shape == (0, 4, 1280)
    assert store.pooled([]).shape == (0, 1280)


def test_a_photo_whose_name_is_not_utf_8_is_found_again(tmp_path, encoder):
    examples = [Example("café", attacks.name_that_is_not_utf_8(tmp_path))]
    extract(examples, encoder, tmp_path / "store")
    assert extract(examples, encoder, tmp_path / "store").computed == 0


def test_two_ids_may_name_one_photo(tmp_path, encoder):
    photo = draw(tmp_path / "photo.bmp", seed=0)
    examples = [Example(1, photo), Example("one", photo)]
    assert_holds(extract(examples, encoder, tmp_path / "store").store, examples, encoder)


# Photos that change


def test_a_photo_that_has_changed_is_computed_again(tmp_path, encoder):
    examples = album(tmp_path / "photos", 3)
    extract(examples, encoder, tmp_path / "store")
    draw(examples[1].file, seed=99)
    os.utime(examples[1].file, (1, 1))  # the size is the same, so the date has to give it away
    result = extract(examples, encoder, tmp_path / "store")
    assert result.computed == 1
    assert_holds(result.store, examples, encoder)
    assert extract(examples, encoder, tmp_path / "store").computed == 0


def test_a_photo_with_a_new_date_and_the_old_bytes_is_not_computed_again(tmp_path, encoder):
    examples = album(tmp_path / "photos", 3)
    extract(examples, encoder, tmp_path / "store")
    os.utime(examples[1].file, (1, 1))
    assert extract(examples, encoder, tmp_path / "store").computed == 0


def test_the_features_of_a_photo_that_has_gone_can_still_be_used(tmp_path, encoder):
    examples = album(tmp_path / "photos", 2)
    before = extract(examples, encoder, tmp_path / "store").store.grid([0, 1])
    examples[0].file.unlink()
    result = extract(examples, encoder, tmp_path / "store")
    assert (result.computed, result.failed) == (0, {})
    torch.testing.assert_close(result.store.grid([0, 1]), before)


def test_photos_that_were_moved_are_not_computed_again(tmp_path, encoder):
    extract(album(tmp_path / "here", 2), encoder, tmp_path / "store")
    (tmp_path / "here").rename(tmp_path / "there")
    moved = [Example(f"photo {i}", tmp_path / "there" / f"{i}.bmp") for i in range(2)]
    assert extract(moved, encoder, tmp_path / "store").computed == 0


def test_a_photo_that_became_broken_is_named_and_its_old_features_are_not_given_for_it(tmp_path, encoder):
    examples = album(tmp_path / "photos", 2)
    extract(examples, encoder, tmp_path / "store")
    examples[0].file.write_bytes(b"this was a photo once")
    result = extract(examples, encoder, tmp_path / "store")
    assert set(result.failed) == {"photo 0"}
    assert examples[0] not in result.store
    assert examples[1] in result.store


def test_an_id_that_now_means_another_photo_gets_that_photos_features(tmp_path, encoder):
    """Same size, same date, as of photos from one archive: only the name tells that it is not the same photo."""
    first, second = draw(tmp_path / "first.bmp", seed=1), draw(tmp_path / "second.bmp", seed=2)
    for file in (first, second):
        os.utime(file, (1, 1))
    extract([Example(7, first)], encoder, tmp_path / "store")
    result = extract([Example(7, second)], encoder, tmp_path / "store")
    assert_holds(result.store, [Example(7, second)], encoder)


def test_an_id_that_now_means_a_photo_that_is_missing_does_not_get_another_photos_features(tmp_path, encoder):
    extract([Example(7, draw(tmp_path / "first.bmp", seed=1))], encoder, tmp_path / "store")
    result = extract([Example(7, tmp_path / "second.bmp")], encoder, tmp_path / "store")
    assert result.failed == {"7": "there is no such file"}
    assert Example(7, tmp_path / "second.bmp") not in result.store


def test_a_photo_that_changes_while_it_is_read_is_computed_again_the_next_time(tmp_path, encoder, monkeypatch):
    examples = album(tmp_path / "photos", 1)
    read = photos.read

    def read_and_change(file: Path, size: int, fit: photos.Fit) -> photos.Photo:
        photo = read(file, size, fit)
        draw(file, seed=99)
        os.utime(file, (1, 1))
        return photo

    monkeypatch.setattr(photos, "read", read_and_change)
    extract(examples, encoder, tmp_path / "store")
    monkeypatch.undo()
    assert_holds(extract(examples, encoder, tmp_path / "store").store, examples, encoder)


def test_a_photo_that_is_deleted_while_it_is_read_does_no_harm(tmp_path, encoder, monkeypatch):
    examples = album(tmp_path / "photos", 2)
    read = photos.read

    def read_and_delete(file: Path, size: int, fit: photos.Fit) -> photos.Photo:
        photo = read(file, size, fit)
        file.unlink()
        return photo

    monkeypatch.setattr(photos, "read", read_and_delete)
    result = extract(examples, encoder, tmp_path / "store")
    assert (result.computed, result.failed) == (2, {})


# Stores that are not what they should be


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (EncoderConfig(image_size=64, grid=1), "efficientnet_lite2, 64 pixels, grid 1, weights"),
        (EncoderConfig(image_size=96, grid=2), "efficientnet_lite2, 96 pixels, grid 2, weights"),
    ],
)
def test_a_store_of_another_encoder_is_refused_and_both_are_named(other, said, tmp_path, encoder):
    extract(album(tmp_path / "photos", 1), encoder, tmp_path / "store")
    with pytest.raises(UserError) as caught:
        FeatureStore(tmp_path / "store", Encoder(other))
    sentence = str(caught.value)
    assert sentence.startswith(f"{tmp_path / 'store'} holds features of another encoder")
    assert "(efficientnet_lite2, 64 pixels, grid 2, weights" in sentence
    assert f"this one is {said}" in sentence
    assert encoder.weights_sha256[:8] in sentence


def cut(name: str) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        data = (store / name).read_bytes()
        (store / name).write_bytes(data[:-1])

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda store: (store / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda store: (store / name).write_text(text)  # type: ignore[return-value]


def change_line(**changes: object) -> Callable[[Path], None]:
    """Another value for a key in the first line, or none."""

    def damage(store: Path) -> None:
        first, *others = (store / "rows.jsonl").read_text().splitlines()
        entry = {key: value for key, value in (json.loads(first) | changes).items() if value is not None}
        (store / "rows.jsonl").write_text("\n".join([json.dumps(entry), *others]) + "\n")

    return damage


DAMAGES = {
    "features cut short": ("grid.f16", cut("grid.f16")),
    "pooled features cut short": ("pooled.f16", cut("pooled.f16")),
    "features gone": ("grid.f16", remove("grid.f16")),
    "pooled features gone": ("pooled.f16", remove("pooled.f16")),
    "a line that is no JSON": ("rows.jsonl: line 1", write("rows.jsonl", '{"id": "pho\n{}\n')),
    "a line that is a list": ("rows.jsonl: line 1", write("rows.jsonl", "[1, 2]\n")),
    "a line of zeros": ("rows.jsonl: line 1", write("rows.jsonl", "\0\0\0\0\n")),
    "no id": ("rows.jsonl: line 1", change_line(id=None)),
    "no row": ("rows.jsonl: line 1", change_line(row=None)),
    "no hash": ("rows.jsonl: line 1", change_line(sha256=None)),
    "no file": ("rows.jsonl: line 1", change_line(file=None)),
    "no size": ("rows.jsonl: line 1", change_line(bytes=None)),
    "no date": ("rows.jsonl: line 1", change_line(mtime_ns=None)),
    "a row that is text": ("rows.jsonl: line 1", change_line(row="first")),
    "a row before the first": ("rows.jsonl: line 1", change_line(row=-1)),
    "a row after the last": ("grid.f16", change_line(row=3)),
    "a manifest cut short": ("manifest.json", cut("manifest.json")),
    "a manifest that is no JSON": ("manifest.json", write("manifest.json", "features of my photos")),
    "a manifest that is a list": ("manifest.json", write("manifest.json", "[]")),
    "a manifest of something else": (
        "holds features of another encoder",
        write("manifest.json", '{"encoder": "clip"}'),
    ),
    "an empty manifest": ("manifest.json", write("manifest.json", "")),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_store_is_refused_in_one_sentence_that_says_what_is_damaged(name, tmp_path, encoder):
    said, damage = DAMAGES[name]
    store = tmp_path / "store"
    examples = album(tmp_path / "photos", 3)
    extract(examples, encoder, store)
    (store / "manifest.json").write_text((store / "manifest.json").read_text().strip())  # so that a cut byte matters
    damage(store)
    with pytest.raises(UserError) as caught:
        extract(examples, encoder, store)
    assert said in str(caught.value)
    assert str(store) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_refused_in_one_sentence(tmp_path, encoder):
    """A file stands where the folder would be, or a folder where a file would be."""
    examples = album(tmp_path / "photos", 1)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match=r"file/store/manifest\.json: the file cannot be written \(.+\)"):
        extract(examples, encoder, tmp_path / "file" / "store")
    (tmp_path / "store" / "grid.f16").mkdir(parents=True)
    with pytest.raises(UserError, match=r"grid\.f16: .* \(Is a directory\)"):
        extract(examples, encoder, tmp_path / "store")


@pytest.mark.parametrize(
    "name", ["flickr/8k", "../../etc", "..", ".", "", "a\0b", "a b\n", "x" * 300, "写真" * 200, "\udce9"], ids=ascii
)
def test_whatever_a_data_set_is_called_its_store_lies_in_a_folder_of_its_own_below_the_features(
    name, tmp_path, encoder
):
    folder = store_folder(tmp_path / "features", name, encoder)
    assert files.real(folder).parent == files.real(tmp_path / "features")
    assert folder.name.endswith("efficientnet_lite2-64px-2x2")
    FeatureStore(folder, encoder)
    assert (folder / "manifest.json").is_file()


# Runs that were cut off


def test_what_a_kill_left_half_written_is_cut_off_and_computed_again(tmp_path, encoder):
    """Features without their lines, and a line without its end."""
    examples = album(tmp_path / "photos", 4)
    store = tmp_path / "store"
    extract(examples[:2], encoder, store)
    for name, rest in [("grid.f16", bytes(12_345)), ("pooled.f16", bytes(7)), ("rows.jsonl", b'{"id": "photo 2", "fi')]:
        with (store / name).open("ab") as file:
            file.write(rest)
    assert_holds(FeatureStore(store, encoder), examples[:2], encoder)
    assert extract(examples[:2], encoder, store).computed == 0
    result = extract(examples, encoder, store)
    assert result.computed == 2
    assert_holds(FeatureStore(store, encoder), examples, encoder)


def test_a_line_that_was_cut_off_means_that_the_photo_is_computed_again(tmp_path, encoder):
    examples = album(tmp_path / "photos", 3)
    extract(examples, encoder, tmp_path / "store")
    cut("rows.jsonl")(tmp_path / "store")
    result = extract(examples, encoder, tmp_path / "store")
    assert result.computed == 1
    assert_holds(FeatureStore(tmp_path / "store", encoder), examples, encoder)


def limited(most: int) -> Callable[[], None]:
    """No file may grow past this: as good as a full disk."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


@pytest.mark.parametrize(("most", "kept"), [(100, 0), (50_000, 0), (163_840, 16), (180_000, 16)])
def test_when_the_disk_is_full_what_is_there_stays_valid_and_the_next_run_goes_on(most, kept, tmp_path, encoder):
    """A photo takes 10,240 bytes (4 cells, 1,280 features, 2 bytes), and 16 go through the encoder at once."""
    examples = album(tmp_path / "photos", 20)
    FeatureStore(tmp_path / "store", encoder)
    restore = limited(most)
    try:
        with pytest.raises(UserError, match=r"cannot be written \(File too large\); what is there stays valid"):
            extract(examples, encoder, tmp_path / "store")
    finally:
        restore()
    assert [example in FeatureStore(tmp_path / "store", encoder) for example in examples] == [True] * kept + [False] * (
        20 - kept
    )
    result = extract(examples, encoder, tmp_path / "store")
    assert result.computed == 20 - kept
    assert_holds(FeatureStore(tmp_path / "store", encoder), examples, encoder)


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
    assert_holds(FeatureStore(tmp_path / "store", encoder), examples[:2], encoder)
    assert extract(examples, encoder, tmp_path / "store").computed == 3
    assert_holds(FeatureStore(tmp_path / "store", encoder), examples, encoder)


# Several processes


def test_two_cannot_fill_one_store_at_once_and_the_second_is_told_so(tmp_path, encoder):
    examples = album(tmp_path / "photos", 2)
    with (
        FeatureStore(tmp_path / "store", encoder).writing(),
        pytest.raises(UserError, match="store: another process is filling this store"),
    ):
        extract(examples, encoder, tmp_path / "store")
    assert extract(examples, encoder, tmp_path / "store").computed == 2


def test_a_full_store_can_be_used_while_another_process_adds_to_it(tmp_path, encoder):
    examples = album(tmp_path / "photos", 2)
    extract(examples, encoder, tmp_path / "store")
    with FeatureStore(tmp_path / "store", encoder).writing():
        assert_holds(extract(examples, encoder, tmp_path / "store").store, examples, encoder)


def test_one_that_waited_with_an_old_view_does_not_cut_off_what_another_has_added(tmp_path, encoder):
    """Both open the empty store; the second to write finds the lock free, and the first's photos in place."""
    examples = album(tmp_path / "photos", 3)
    early = FeatureStore(tmp_path / "store", encoder)
    extract(examples, encoder, tmp_path / "store")
    with early.writing():
        assert_holds(early, examples, encoder)
    assert_holds(FeatureStore(tmp_path / "store", encoder), examples, encoder)


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
    FeatureStore(first, encoder)
    FeatureStore(second, encoder)


# The command

SETTINGS = ("--image-size", "64", "--grid", "2")


def test_the_command_adds_each_photo_once(tellapart, photo_folder, tmp_path, encoder):
    store = tmp_path / "out" / "photos.efficientnet_lite2-64px-2x2"
    for added, there in ((6, 0), (0, 6)):
        code, printed, _ = tellapart("features", photo_folder, *SETTINGS, "--out", tmp_path / "out")
        assert (code, printed) == (0, f"{store}: {added} photos added, {there} were there\n")
    examples = [Example(f"{i}.png", photo_folder / f"{i}.png") for i in range(6)]
    assert_holds(FeatureStore(store, encoder), examples, encoder)


def test_the_command_names_a_bad_photo_each_time_and_exits_with_1(tellapart, photo_folder, tmp_path):
    bad = attacks.empty(photo_folder)
    for added, there in ((6, 0), (0, 6)):
        code, printed, said = tellapart("features", photo_folder, *SETTINGS, "--out", tmp_path / "out")
        assert code == 1
        assert printed.endswith(f": {added} photos added, {there} were there, 1 could not be used\n")
        assert said.splitlines().count(f"{bad}: the file is empty") == 1


def test_the_command_names_a_bad_record_and_exits_with_1(tellapart, photo_folder, tmp_path):
    data = photo_folder / "data.json"
    data.write_text(json.dumps({"dataset": "a/b", "images": [{"id": 1, "file": "1.png"}, {"id": 2}]}))
    code, printed, said = tellapart("features", data, *SETTINGS, "--out", tmp_path / "out")
    store = tmp_path / "out" / "a_b.efficientnet_lite2-64px-2x2"
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
        (["clips.json"], "clips.json: has videos; this command takes photos."),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value)[:40],
)
def test_a_wrong_request_is_answered_with_one_sentence_and_exit_code_2(
    arguments, sentence, tellapart, photo_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "clips.json").write_text('{"videos": [{"id": 1, "file": "clip.mp4"}]}')
    code, printed, said = tellapart("features", *arguments)
    assert (code, printed) == (2, "")
    assert said.startswith("tellapart features: ")
    assert sentence in said
    assert said.count("\n") == 1
