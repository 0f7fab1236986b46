"""From a network's rows to boxes, against loops that do it one by one."""

import math

import numpy as np
import pytest

from tellapart.detectors import detector, yolox


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


def test_an_overlap_of_half_hides_the_weaker_box_of_a_class_and_no_box_of_another():
    found = np.array([[0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 5], [0, 5.6, 10, 10]], np.float32)
    scores = np.array([0.9, 0.8, 0.7, 0.6], np.float32)
    kept = detector.suppress(found, scores, np.array([1, 1, 2, 1]), iou=0.45, most=100)
    assert kept.tolist() == [0, 2, 3]  # .5 of the first; of another class; .44 of the first


def test_nothing_in_and_nothing_out():
    none = np.zeros(0, np.float32)
    assert detector.suppress(none.reshape(0, 4), none, none.astype(np.int64), iou=0.45, most=10).tolist() == []
    empty = np.zeros((2, 4), np.float32)
    assert detector.overlaps(empty[0], empty).tolist() == [0, 0]  # not NaN
