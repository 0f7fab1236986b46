"""An ONNX file as a detector."""

import math

import numpy as np
import pytest
from PIL import Image

from detectors import tiny_yolox
from tellapart.detectors import yolox


def found_in(detector, tmp_path, size=(192, 128), colour=(0, 0, 0)):
    """In a photo of one colour, of this width and height."""
    Image.new("RGB", size, colour).save(tmp_path / "photo.png")
    return detector(yolox.letterboxed(tmp_path / "photo.png", detector.size))


def test_a_box_is_where_the_cell_says(tmp_path):
    answers = tiny_yolox.nothing()
    # the last of the 32-pixel cells: column 2, row 1; middle at 2.25 and 1.5 cells, one cell wide, half a cell high
    answers[-1] = [0.25, 0.5, 0, math.log(0.5), 0.8, 0.1, 0.2, 0.5]
    detector = yolox.load(tiny_yolox.write(tmp_path / "tiny.onnx", answers))
    assert (detector.name, detector.size, detector.classes) == ("tiny", (64, 96), 3)
    found = found_in(detector, tmp_path)  # twice the canvas
    np.testing.assert_allclose(found.boxes, [[56 / 96, 40 / 64, 88 / 96, 56 / 64]], rtol=1e-6)
    np.testing.assert_allclose(found.scores, [0.4], rtol=1e-6)
    assert found.classes.tolist() == [2]


def test_boxes_are_fractions_of_the_photo_and_end_at_its_edges(tmp_path):
    answers = tiny_yolox.nothing()
    # A photo of 96 x 32 is drawn in the upper half of the canvas.
    answers[-6] = [0.5, 0.5, math.log(3), math.log(3), 1, 0.9, 0, 0]  # middle at 16, 16, three cells a side
    answers[-1] = [0.5, 0.5, 0, 0, 1, 0, 0.9, 0]  # in the grey below the photo
    detector = yolox.load(tiny_yolox.write(tmp_path / "tiny.onnx", answers))
    found = found_in(detector, tmp_path, size=(96, 32))
    np.testing.assert_allclose(found.boxes, [[0, 0, 64 / 96, 1]], rtol=1e-6)
    assert found.classes.tolist() == [0]


def test_the_most_confident_comes_first_and_of_the_same_thing_one_is_left(tmp_path):
    answers = tiny_yolox.nothing()
    for number, score in ((-1, 0.3), (-2, 0.9), (-3, 0.04), (-4, 0.6)):
        answers[number, 4:6] = 1, score
    answers[1] = [0, 0, 0, 0, 0.5, 0, 1, 0]  # class 1, elsewhere
    same = tiny_yolox.nothing().shape[0] - 6 - 1  # the last 16-pixel cell: column 5, row 3
    answers[same] = [-3, -1, math.log(2), math.log(2), 0.5, 1, 0, 0]  # the box of the cell -2
    detector = yolox.load(tiny_yolox.write(tmp_path / "tiny.onnx", answers))
    found = found_in(detector, tmp_path)
    np.testing.assert_allclose(found.scores, [0.9, 0.6, 0.5, 0.3], rtol=1e-6)  # .04 is too little
    assert found.classes.tolist() == [0, 0, 1, 0]


def test_the_network_is_given_blue_first_from_0_to_255(tmp_path):
    answers, by_colour = tiny_yolox.nothing(), np.zeros((3, *tiny_yolox.nothing().shape), np.float32)
    answers[-1, 4] = 1
    by_colour[:, -1, 5:] = np.eye(3)  # class 0 is as likely as the photo is blue, 1 green, 2 red
    detector = yolox.load(tiny_yolox.write(tmp_path / "tiny.onnx", answers, by_colour))
    found = found_in(detector, tmp_path, colour=(204, 102, 51))
    assert found.classes.tolist() == [2]
    assert found.scores[0] == pytest.approx(204 / 255)


def test_there_are_never_more_boxes_than_a_store_has_room_for(tmp_path):
    answers = tiny_yolox.nothing()
    answers[:, 4:6] = 1, 0.5
    answers[:, 2:4] = -1  # so that none overlap much
    detector = yolox.load(tiny_yolox.write(tmp_path / "tiny.onnx", answers))
    assert len(found_in(detector, tmp_path).scores) == yolox.MOST


def test_an_export_for_any_number_of_photos_is_read_too(tmp_path):
    answers = tiny_yolox.nothing()
    answers[-1, 4:6] = 1, 0.5
    file = tiny_yolox.write(tmp_path / "tiny.onnx", answers, batch=1, shape=[1, *answers.shape])
    from onnx import load, save

    model = load(file)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    save(model, file)
    assert found_in(yolox.load(file), tmp_path).scores.tolist() == [0.5]


def test_detectors_are_known_by_their_weights_not_by_their_name(tmp_path):
    answers = tiny_yolox.nothing()
    one, same = (yolox.load(tiny_yolox.write(tmp_path / name, answers)) for name in ("a.onnx", "b.onnx"))
    answers[-1, 4:6] = 1, 0.5
    other = yolox.load(tiny_yolox.write(tmp_path / "a.onnx", answers))
    assert one.identity == same.identity != other.identity
