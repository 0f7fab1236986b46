"""A collection of photos as vectors: kept between runs, and no more is lost to a bad photo than that photo."""

import fcntl
import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from retrievers.conftest import write_model
from tellapart.data.media import photos
from tellapart.encoders.encoder import Features
from tellapart.models import retrievers as loading
from tellapart.recipe import EncoderConfig
from tellapart.retrievers.retriever import embed_photos


@pytest.fixture
def computed(monkeypatch):
    """How many photos went through the network."""
    counted = []
    original = Eye.__call__

    def count(self, pixels):
        counted.append(len(pixels))
        return original(self, pixels)

    monkeypatch.setattr(Eye, "__call__", count)
    return lambda: sum(counted)


class Eye:
    """In an encoder's place, for speed: a photo's features are pixels spread over it."""

    fit, pooled_size = photos.SQUEEZE, 1280

    def __init__(self, size=64):
        self.config = EncoderConfig("eye", size)
        self.identity = {"name": "eye", "image_size": size, "sees": (1, 2), "weights_sha256": "0"}

    def __call__(self, pixels):
        flat = torch.as_tensor(pixels).flatten(1).float() / 255
        return Features(flat[:, None, :1280], flat[:, :: flat.shape[1] // 1280][:, :1280])


@pytest.fixture
def retriever(retrievers):
    return replace(retrievers["word_tower"], encoder=Eye())


@pytest.fixture
def files(photo_folder):
    return [str(file) for file in sorted(photo_folder.iterdir())]


def alone(retriever, file):
    return retriever.embed_pixels(photos.read(file, 64).pixels[None])[0].numpy()


def assert_seen(retriever, result, files):
    assert result.files == files
    assert result.vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(result.vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(result.vectors, [alone(retriever, file) for file in files], atol=1e-3)
    assert result.sha256 == [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files]


def test_no_photo_is_seen_twice(retriever, files, computed, own_cache):
    first = embed_photos(retriever, files[:4])
    assert computed() == 4
    assert first.failed == {}
    assert own_cache.is_dir()
    again = embed_photos(retriever, list(reversed(files)))
    assert computed() == 6
    np.testing.assert_array_equal(again.vectors[:1:-1], first.vectors)
    assert again.files == list(reversed(files))


def test_other_weights_and_another_way_to_look_have_vectors_of_their_own(retriever, files, tmp_path):
    other = replace(loading.load(write_model(tmp_path / "word_tower", "word_tower", seed=1)), encoder=Eye())
    for each in (retriever, other, replace(retriever, encoder=Eye(96)), retriever):
        result = embed_photos(each, files)
        assert result.files == files
        pixels = np.stack([photos.read(file, each.encoder.config.image_size).pixels for file in files])
        np.testing.assert_allclose(result.vectors, each.embed_pixels(pixels).numpy(), atol=1e-3)


def test_the_real_encoder_is_asked_for_pixels_of_its_size(retrievers, files):
    result = embed_photos(retrievers["vse"], files[:2])
    pixels = np.stack([photos.read(file, 64).pixels for file in files[:2]])
    np.testing.assert_allclose(result.vectors, retrievers["vse"].embed_pixels(pixels).numpy(), atol=1e-3)


def test_a_photo_that_changed_is_seen_anew_and_one_that_was_only_touched_is_not(retriever, files, computed):
    embed_photos(retriever, files)
    os.utime(files[2], (1, 1))
    embed_photos(retriever, files)
    assert computed() == 6
    Image.new("RGB", (30, 30), "red").save(files[2])
    result = embed_photos(retriever, files)
    assert computed() == 7
    assert_seen(retriever, result, files)


def test_unreadable_photos_are_named_with_their_reasons_and_the_rest_goes_on(retriever, files, tmp_path):
    (tmp_path / "notes.jpg").write_text("no photo")
    (tmp_path / "empty.jpg").touch()
    wrong = {
        str(tmp_path / "notes.jpg"): "is not a photo that we can open",
        str(tmp_path / "empty.jpg"): "the file is empty",
        str(tmp_path / "nowhere.jpg"): "there is no such file",
        str(tmp_path): "is a folder, not a photo",
        "a\0b.jpg": "is no file name",
        "x" * 5000: "cannot be read (File name too long)",
    }
    mixed = [*files[:3], *wrong, *files[3:]]
    for _ in range(2):  # with and without something in the cache
        result = embed_photos(retriever, mixed)
        assert_seen(retriever, result, files)
        assert result.failed.keys() == wrong.keys()
        assert all(reason.startswith(wrong[file]) for file, reason in result.failed.items())


def test_a_photo_that_went_bad_is_named_though_it_was_once_seen(retriever, files):
    embed_photos(retriever, files)
    Path(files[0]).write_text("no photo any more")
    Path(files[1]).unlink()
    result = embed_photos(retriever, files)
    assert result.files == files[2:]
    assert result.failed[files[0]].startswith("is not a photo that we can open")
    assert result.failed[files[1]] == "there is no such file"
    nothing = embed_photos(retriever, files[:2])
    assert (nothing.files, nothing.vectors.shape, nothing.sha256) == ([], (0, 8), [])
    assert embed_photos(retriever, []).vectors.shape == (0, 8)


def test_copies_and_a_photo_that_is_asked_for_twice(retriever, files, tmp_path, computed):
    copy = str(shutil.copy(files[0], tmp_path / "copy.png"))
    names = [files[0], copy, files[1], files[0]]
    result = embed_photos(retriever, names)
    assert_seen(retriever, result, names)
    np.testing.assert_array_equal(result.vectors[0], result.vectors[3])
    np.testing.assert_array_equal(result.vectors[0], result.vectors[1])
    assert result.sha256[0] == result.sha256[1]


def test_relative_names_are_given_back_as_they_came(retriever, photo_folder, monkeypatch, computed):
    monkeypatch.chdir(photo_folder)
    result = embed_photos(retriever, ["1.png", "./0.png", "../photos/0.png"])
    assert result.files == ["1.png", "./0.png", "../photos/0.png"]
    count = computed()
    monkeypatch.chdir(photo_folder.parent)
    assert_seen(retriever, embed_photos(retriever, ["photos/1.png"]), ["photos/1.png"])
    assert computed() == count + 1  # by the test itself


def test_a_cache_that_cannot_be_written_is_done_without(retriever, files, monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("a file where the cache should be")
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "taken"))
    assert_seen(retriever, embed_photos(retriever, files), files)
    assert (tmp_path / "taken").read_text() == "a file where the cache should be"


def test_a_cache_that_another_process_fills_is_done_without(retriever, files, own_cache):
    embed_photos(retriever, files[:2])
    (folder,) = (own_cache / "photos").iterdir()
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        journal = (folder / "rows.jsonl").read_bytes()
        assert_seen(retriever, embed_photos(retriever, files), files)
        assert (folder / "rows.jsonl").read_bytes() == journal
    finally:
        os.close(handle)


@pytest.mark.parametrize("name", ["rows.jsonl", "manifest.json", "pooled.f16"])
def test_a_damaged_cache_is_done_without(retriever, files, own_cache, name):
    embed_photos(retriever, files)
    (folder,) = (own_cache / "photos").iterdir()
    (folder / name).write_bytes(b"\x00\n")
    assert_seen(retriever, embed_photos(retriever, files), files)
