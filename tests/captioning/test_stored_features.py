"""Features that were stored before spare a captioner the looking."""

from __future__ import annotations

import gc
import json
import shutil
import weakref

import numpy as np
import pytest
import torch

from support.stores import extract, store_folder
from tellapart import models
from tellapart.captioning.captioner import load
from tellapart.data.examples import read
from tellapart.data.readers import folder
from tellapart.encoders.encoder import Encoder
from tellapart.evaluation.evaluate import evaluate
from tellapart.features.importing import bring_in
from tellapart.features.sources import Sources, find_imported, import_folder
from tellapart.models import parts


@pytest.fixture
def seen(small_model, photo_folder, tmp_path):
    """A features folder, in which those of the first four photos are."""
    encoder = models.encoder_of(models.load(small_model, torch.device("cpu")), torch.device("cpu"))
    photos = folder.read(photo_folder)
    extract(photos.examples[:4], encoder, store_folder(tmp_path / "features", photos.name, encoder))
    return tmp_path / "features"


@pytest.fixture
def looked_at(monkeypatch):
    """How many photos went through an encoder."""
    counts = []
    look = Encoder.__call__
    monkeypatch.setattr(Encoder, "__call__", lambda self, pixels: counts.append(len(pixels)) or look(self, pixels))
    return counts


def captions(model, photo_folder, features=None):
    captioner = load(model, device="cpu", features=features, paths=[str(photo_folder)])
    return [(one.file, one.text, one.sha256) for one in captioner.caption(sorted(photo_folder.iterdir()))]


def test_a_photo_that_was_seen_before_is_not_looked_at_again(small_model, photo_folder, seen, looked_at):
    fresh = captions(small_model, photo_folder)
    assert sum(looked_at) == 6
    looked_at.clear()
    assert captions(small_model, photo_folder, seen) == fresh
    assert sum(looked_at) == 2


def test_captions_do_not_pass_for_those_of_an_encoder_that_looked(small_model, photo_folder, seen):
    """Features are stored in half precision, and a caption may hang on the difference."""
    stored = load(small_model, device="cpu", features=seen, paths=[str(photo_folder)])
    assert stored.streams.identity != load(small_model, device="cpu").streams.identity


def test_evaluate_takes_stored_features(small_model, photo_folder, seen, looked_at, tellapart, tmp_path, own_cache):
    arguments = ("--data", photo_folder, "--retriever", "word", "--features", seen, "--out", tmp_path / "evaluation")
    code, _, err = tellapart("evaluate", small_model, *arguments)
    assert code == 0, err
    # the captioner's; the page's, which shows what the words of those two rest on; the retriever's
    assert sorted(looked_at) == [1, 1, 2, 6]


def test_models_that_see_by_the_same_encoder_share_it(
    small_model, small_retriever, photo_folder, monkeypatch, tmp_path, own_cache
):
    made, make = weakref.WeakSet(), Encoder.__init__
    monkeypatch.setattr(Encoder, "__init__", lambda self, *given, **more: made.add(self) or make(self, *given, **more))
    monkeypatch.setattr(parts, "_alive", weakref.WeakValueDictionary())  # without those of other tests
    copies = [shutil.copytree(small_model, tmp_path / name) for name in ("one", "two", "coarse")]
    config = json.loads((copies[2] / "config.json").read_text())
    config["encoder"]["grid"] = 1
    (copies[2] / "config.json").write_text(json.dumps(config))
    alive = []
    evaluate(
        [small_model, *copies],
        photo_folder,
        retrievers=small_retriever,
        metrics="AvgLen",
        show=lambda _: alive.extend(encoder.config.grid for encoder in made),
        device="cpu",
    )
    assert sorted(alive) == [1, 2]
    gc.collect()
    assert len(made) == 0  # nobody sees by them any more


def test_a_folder_of_features_that_is_not_there_is_named(small_model, photo_folder, tmp_path, tellapart):
    code, _, err = tellapart("caption", photo_folder, "--model", small_model, "--features", tmp_path / "nowhere")
    assert (code, err.count("\n")) == (2, 1)
    assert f"--features {tmp_path / 'nowhere'}: there is no such folder." in err


@pytest.mark.parametrize("known", [True, False])
def test_the_boxes_of_imported_regions_are_those_that_came_with_them(photo_folder, tmp_path, known):
    boxes = np.array([[0.0, 0.0, 0.5, 1.0], [0.25, 0.5, 1.0, 0.75]], np.float32)
    (tmp_path / "found").mkdir()
    for file in photo_folder.iterdir():
        content = {"features": np.ones((2, 3), np.float32)} | ({"boxes": boxes} if known else {})
        np.savez(tmp_path / "found" / f"{file.stem}.npz", **content)
    images = [{"id": int(file.stem), "file": str(file), "captions": ["a dog"]} for file in photo_folder.iterdir()]
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"dataset": "six", "images": images}))
    examples = read(data).examples
    bring_in(examples, [tmp_path / "found"], import_folder(tmp_path / "f", "six", "found"), "found")
    items = [(str(example.file), str(example.id)) for example in examples]
    visual = Sources({"regions": find_imported(tmp_path / "f", "found").kept(tmp_path / "f", [("six", items)])})
    found = visual.region_boxes(visual.load(photo_folder / "3.png"))
    assert (found is not None) == known
    if known:
        torch.testing.assert_close(found, torch.from_numpy(boxes), atol=1e-3, rtol=0)
