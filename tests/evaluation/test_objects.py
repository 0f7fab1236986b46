"""`evaluate --detector`: what a detector sees against what captions name."""

import json

import numpy as np
import pytest
from PIL import Image

from capscore.objects import CLASSES
from detectors import tiny_yolox

DOG, CAT, KITE = (CLASSES.index(name) for name in ("dog", "cat", "kite"))


@pytest.fixture
def detector(tmp_path):
    """A dog where a photo is red, a cat where it is green; a kite, weakly, everywhere."""
    answers = tiny_yolox.nothing(classes=80)
    by_colour = np.zeros((3, *answers.shape), np.float32)
    answers[[-1, -3, -6], 4] = 1
    by_colour[2, -1, 5 + DOG] = by_colour[1, -3, 5 + CAT] = 0.9
    answers[-6, 5 + KITE] = 0.2
    return tiny_yolox.write(tmp_path / "tiny yolox.onnx", answers, by_colour)


@pytest.fixture
def world(tmp_path, own_cache):
    """Three photos of a data set, and captions of a model."""
    told = [["a dog", "a dog and a kite"], ["a cat in the grass", "a cat"], ["a dog with a cat", "two animals"]]
    images = []
    for number, colour in enumerate([(255, 0, 0), (0, 255, 0), (255, 255, 0)]):
        Image.new("RGB", (96, 64), colour).save(tmp_path / f"{number}.png")
        images.append({"id": f"{number}", "file": f"{number}.png", "split": "test", "captions": told[number]})
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "colours", "images": images}))
    said = {"0": "a dog on a couch", "1": "a dog and a kite", "2": "a puppy"}
    (tmp_path / "said.json").write_text(json.dumps(said))
    return tmp_path


def evaluate(tellapart, world, *options):
    data, out = world / "data.json", world / "out"
    return tellapart(
        "evaluate", world / "said.json", "human", "--data", data, "--metrics", "Rep", "--out", out, *options
    )


def test_both_measures_are_columns_of_models_and_of_people(tellapart, world, detector, small_retriever):
    code, printed, _ = evaluate(tellapart, world, "--retriever", small_retriever, "--detector", detector)
    assert code == 0
    assert "ObjPrec" in printed
    assert "tiny_yolox" in printed
    scores = json.loads((world / "out" / "results.json").read_text())["colours"]
    # dog is seen and couch is not; a dog is not seen and a kite is, weakly; the puppy is seen
    assert scores["said"]["ObjPrec[tiny_yolox]"] == pytest.approx(3 / 5)
    # of a dog, of a cat, of a dog and a cat: a dog, nothing, a dog
    assert scores["said"]["ObjRec[tiny_yolox]"] == pytest.approx(2 / 4)
    # all words of people are right; they leave out both animals in one of two captions
    assert scores["human"]["ObjPrec[tiny_yolox]"] == 1
    assert scores["human"]["ObjRec[tiny_yolox]"] == pytest.approx(3 / 4)
    details = json.loads((world / "out" / "details.json").read_text())["colours"]["models"]
    for name in ("ObjPrec[tiny_yolox]", "ObjRec[tiny_yolox]"):
        low, high = details["said"]["interval"][name]
        assert 0 <= low <= scores["said"][name] <= high <= 1
        assert details["human"]["difference"][name]["difference"] > 0
    assert "|captions:6|weak:0.1|clear:0.35|iou:0.45|w:" in details["human"]["signature"]["ObjPrec[tiny_yolox]"]
    report = (world / "out" / "report.html").read_text()
    assert "sees in the photo, as a share" in report


def test_a_photo_that_cannot_be_read_is_named_and_has_no_part(tellapart, world, detector, small_retriever):
    (world / "1.png").write_bytes(b"no photo")
    code, _, errors = evaluate(tellapart, world, "--retriever", small_retriever, "--detector", detector)
    assert code == 1
    assert "1.png" in errors
    scores = json.loads((world / "out" / "results.json").read_text())["colours"]
    assert scores["said"]["ObjPrec[tiny_yolox]"] == pytest.approx(2 / 3)


def test_what_is_no_detector_is_refused_before_anything_is_captioned(tellapart, world, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    code, _, errors = evaluate(tellapart, world, "--detector", tmp_path / "bad.onnx")
    assert code == 2
    assert "bad.onnx: is damaged, or is no ONNX file" in errors
    code, _, errors = evaluate(
        tellapart, world, "--detector", tiny_yolox.write(tmp_path / "own.onnx", tiny_yolox.nothing())
    )
    assert code == 2
    assert "own.onnx: knows 3 classes, and objects are checked by 80." in errors
