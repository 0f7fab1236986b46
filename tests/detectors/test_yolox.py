"""An ONNX file as a detector: its photos pixel by pixel, and from a network's rows to boxes, against loops."""

import hashlib
import math

import numpy as np
import pytest
from PIL import Image

from detectors import tiny_yolox
from tellapart.detectors import detector, yolox


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


SIZES = [(7, 5), (5, 7), (64, 96), (40, 300), (1, 9), (1, 1), (200, 3)]


def photo(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def one_pixel(pixels, row, column, height, width):
    """Between the four nearest pixels of the photo, by their distance."""
    y = (row + 0.5) * pixels.shape[0] / height - 0.5
    x = (column + 0.5) * pixels.shape[1] / width - 0.5
    y, x = min(max(y, 0), pixels.shape[0] - 1), min(max(x, 0), pixels.shape[1] - 1)
    total = np.zeros(3)
    for near_y in (int(y), int(y) + 1):
        for near_x in (int(x), int(x) + 1):
            share = (1 - abs(y - near_y)) * (1 - abs(x - near_x))
            if share > 0:
                total += share * pixels[near_y, near_x]
    return total


@pytest.mark.parametrize("size", SIZES)
def test_the_canvas_is_that_of_a_loop_over_pixels(size):
    pixels = photo(*size)
    canvas, ratio = yolox.letterbox(pixels, (32, 64))
    assert ratio == min(32 / size[0], 64 / size[1])
    height, width = max(1, int(size[0] * ratio)), max(1, int(size[1] * ratio))
    for row in range(32):
        for column in range(64):
            if row < height and column < width:
                expected = one_pixel(pixels, row, column, height, width)[::-1]  # blue first
                assert np.abs(canvas[row, column] - expected).max() <= 0.5001
            else:
                assert (canvas[row, column] == 114).all()


def test_a_photo_is_read_upright_with_its_size_and_hash(tmp_path):
    image = Image.new("RGB", (20, 10), (255, 0, 0))
    exif = image.getexif()
    exif[274] = 6  # lies on its side
    image.save(tmp_path / "lying.png", exif=exif)
    found = yolox.letterboxed(tmp_path / "lying.png", (64, 96))
    assert (found.photo_size, found.ratio) == ((20, 10), 3.2)
    assert (found.canvas[:, :32] == (0, 0, 255)).all()
    assert (found.canvas[:, 32:] == 114).all()
    assert found.sha256 == hashlib.sha256((tmp_path / "lying.png").read_bytes()).hexdigest()


def decoded_one_by_one(raw, size):
    """Rows go over the cells of 8 pixels from left to right and top to bottom, then of 16, then of 32."""
    found, number = [], 0
    for stride in (8, 16, 32):
        for row in range(size[0] // stride):
            for column in range(size[1] // stride):
                x, y, width, height, something, *classes = map(float, raw[number])
                middle_x, middle_y = (column + x) * stride, (row + y) * stride
                wide, high = math.exp(width) * stride, math.exp(height) * stride
                box = (middle_x - wide / 2, middle_y - high / 2, middle_x + wide / 2, middle_y + high / 2)
                found.append((box, something * max(classes), classes.index(max(classes))))
                number += 1
    assert number == len(raw)
    return found


@pytest.mark.parametrize(("size", "rows"), [((416, 416), 3549), ((640, 640), 8400), ((64, 96), 126), ((32, 32), 21)])
def test_decoding_is_that_of_a_loop_over_cells(size, rows):
    draw = np.random.default_rng(rows)
    raw = np.concatenate([draw.normal(size=(rows, 4)), draw.random((rows, 9))], 1).astype(np.float32)
    expected = decoded_one_by_one(raw, size)
    found, scores, classes = yolox.decode(raw, size)
    np.testing.assert_allclose(found, [box for box, _, _ in expected], rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(scores, [score for _, score, _ in expected], rtol=1e-6)
    assert classes.tolist() == [label for _, _, label in expected]


def overlap(one, other):
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    common = max(wide, 0) * max(high, 0)
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return common / (area - common)


def kept_one_by_one(found, scores, classes, iou, most):
    """Each box in turn, if no better one of its class that was kept hides it."""
    kept = []
    for this in sorted(range(len(found)), key=lambda number: -scores[number]):
        if all(classes[this] != classes[other] or overlap(found[this], found[other]) <= iou for other in kept):
            kept.append(this)
    return kept[:most]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [5, 1000])
def test_boxes_are_kept_as_by_a_loop_over_pairs(seed, most):
    draw = np.random.default_rng(seed)
    corner, sides = draw.uniform(0, 60, (200, 2)), draw.uniform(5, 40, (200, 2))
    found, scores = np.concatenate([corner, corner + sides], 1).astype(np.float32), draw.random(200).astype(np.float32)
    classes = draw.integers(0, 3, 200)
    kept = detector.suppress(found, scores, classes, iou=0.45, most=most)
    assert kept.tolist() == kept_one_by_one(found.astype(float), scores, classes, 0.45, most)
    assert len(kept) < 200


def test_nothing_in_and_nothing_out():
    none = np.zeros(0, np.float32)
    assert detector.suppress(none.reshape(0, 4), none, none.astype(np.int64), iou=0.45, most=10).tolist() == []
    empty = np.zeros((2, 4), np.float32)
    assert detector.overlaps(empty[0], empty).tolist() == [0, 0]  # not NaN
