"""The feature cache: what was computed is found again, and nothing that happens to its files goes unnoticed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from attacks import photos as attacks
from capscore import files
from capscore.errors import UserError
from features.stores import album, assert_holds, cut, draw
from support.stores import extract, feature_store, store_folder
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.encoders.encoder import Encoder
from tellapart.recipe import EncoderConfig

# What is kept


def test_what_is_read_from_the_store_is_what_the_encoder_gave(tmp_path, encoder):
    """Twenty photos: more than go through the encoder at once."""
    examples = album(tmp_path / "photos", 20)
    result = extract(examples, encoder, tmp_path / "store")
    assert (result.computed, result.failed) == (20, {})
    assert_holds(result.store, examples, encoder)
    assert_holds(feature_store(tmp_path / "store", encoder), examples, encoder)


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
        feature_store(tmp_path / "store", Encoder(other))
    sentence = str(caught.value)
    assert sentence.startswith(f"{tmp_path / 'store'} holds features of another encoder")
    assert "(efficientnet_lite2, 64 pixels, grid 2, weights" in sentence
    assert f"this one is {said}" in sentence
    assert encoder.weights_sha256[:8] in sentence


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
    assert ".efficientnet_lite2-" in folder.name
    feature_store(folder, encoder)
    assert (folder / "manifest.json").is_file()
