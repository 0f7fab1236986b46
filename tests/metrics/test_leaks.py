"""The bundled language model has seen no photo that anything is measured on."""

import json
from pathlib import Path
from runpy import run_path

import numpy as np

from capscore import fluency

HERE = Path(__file__).parents[1]


def test_the_bundled_model_has_seen_no_validation_or_test_photo_and_odd_ids_alone():
    held_out = set(json.loads((HERE / "golden" / "coco_val_test_ids.json").read_text()))
    folder = Path(fluency.__file__).parent / "data"
    with np.load(folder / "coco_language_model.npz") as archive:
        photos = set(archive["photos"].cumsum().tolist())
    assert len(held_out) == 2500
    assert len(photos) == 4979
    assert len(photos & held_out) == 0
    assert all(photo % 2 for photo in photos)


def test_photos_are_chosen_by_odd_ids_splits_and_captions_that_they_share(tmp_path):
    def photo(id, split, *captions):
        return {"id": id, "split": split, "captions": list(captions)}

    text = [
        photo(1, "restval", "a dog", "a cat"),
        photo(2, "restval", "even"),
        photo(3, "val", "own validation"),
        photo(5, "train", "held out elsewhere"),
        photo(7, "train", "A red bus.", "the bus is red", "third"),  # the same photo as 100 under another id
        photo(9, "train", "a red bus", "something else"),  # one caption in common may be chance
    ]
    data = [
        photo(5, "test", "held out"),
        photo(100, "val", "a red bus", "The bus is red!"),
        photo(1, "train", "a dog", "a cat"),
    ]
    for name, photos in (("text", text), ("data", data)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"dataset": "coco", "images": photos}))
    script = run_path(str(HERE.parent / "scripts" / "build_language_model.py"))
    result = script["chosen"](tmp_path / "text.json", [tmp_path / "data.json"])
    assert [one.id for one in result] == [1, 9]
