"""The eleven relations of boxes, drawn by hand and against plain loops."""

import math

import pytest
import torch

from tellapart.captioners.gcn_lstm import spatial_relations

MIDDLE = (0.4, 0.4, 0.6, 0.6)


def between(first, second):
    """The relation of the first to the second, and of the second to the first."""
    (none, forth), (back, nothing) = spatial_relations(torch.tensor([[first, second]]))[0].tolist()
    assert none == nothing == 0
    return forth, back


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0.45, 0.45, 0.5, 0.5), MIDDLE, (1, 2)),  # inside, covers
        ((0.4, 0.4, 0.5, 0.6), MIDDLE, (1, 2)),  # three sides shared
        (MIDDLE, MIDDLE, (3, 3)),  # equal boxes overlap: neither is inside
        (MIDDLE, (0.4, 0.45, 0.6, 0.65), (3, 3)),  # 3/4 of each is shared: 0.6 of the union
        (MIDDLE, (0.5, 0.4, 0.7, 0.6), (11, 7)),  # half of each: a third of the union; straight right, straight left
        (MIDDLE, (0.61, 0.45, 0.81, 0.65), (4, 8)),  # right and a little down; back: left and a little up
        (MIDDLE, (0.45, 0.61, 0.65, 0.81), (5, 9)),  # down and a little to the right
        (MIDDLE, (0.35, 0.61, 0.55, 0.81), (6, 10)),  # down and a little to the left
        (MIDDLE, (0.19, 0.45, 0.39, 0.65), (7, 11)),  # left and a little down
        (MIDDLE, (0.4, 0.7, 0.6, 0.9), (5, 9)),  # straight down and up: the end of the turn before
        (MIDDLE, (0.7, 0.7, 0.9, 0.9), (4, 8)),  # 45 degrees: as well
        ((0.0, 0.0, 0.1, 0.1), (0.45, 0.45, 0.55, 0.55), (4, 8)),  # 0.45 of the diagonal apart
        ((0.0, 0.0, 0.1, 0.1), (0.55, 0.55, 0.65, 0.65), (0, 0)),  # 0.55 of it
        ((0.7, -0.5, 1.6, 0.3), (0.7, 0.0, 1.0, 0.3), (3, 3)),  # a box that reaches outside the photo ends at its edge
        ((0.7, -0.5, 1.6, 0.3), (0.75, 0.05, 0.9, 0.2), (2, 1)),
    ],
)
def test_boxes_drawn_by_hand(first, second, expected):
    assert between(first, second) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        (0.5, 0.5, 0.5, 0.7),  # a line
        (0.0, 0.0, 0.0, 0.0),  # unknown, as stores have it
        (0.6, 0.6, 0.4, 0.4),  # right of its right side
        (1.2, 0.2, 1.4, 0.4),  # outside the photo
        (math.nan, 0.1, 0.5, 0.5),
        (0.1, 0.1, math.inf, 0.5),
    ],
    ids=str,
)
def test_what_is_no_box_has_no_relation_and_changes_no_other(wrong):
    boxes = [MIDDLE, (0.45, 0.45, 0.5, 0.5), (0.61, 0.45, 0.81, 0.65), wrong]
    relations = spatial_relations(torch.tensor([boxes]))[0]
    assert not relations[3].any()
    assert not relations[:, 3].any()
    assert relations[:3, :3].equal(spatial_relations(torch.tensor([boxes[:3]]))[0])


def test_one_region_or_none_has_no_relations():
    assert spatial_relations(torch.tensor([[MIDDLE]])).tolist() == [[[0]]]
    assert spatial_relations(torch.zeros(2, 0, 4)).shape == (2, 0, 0)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("cells", [3, 7, 8])
def test_cells_of_a_grid_in_the_same_direction_have_the_same_relation(cells, half):
    """Whatever rounding does, in half precision too, as boxes are stored."""
    steps = torch.arange(cells) / cells
    top, left = torch.meshgrid(steps, steps, indexing="ij")
    boxes = torch.stack([left, top, left + 1 / cells, top + 1 / cells], -1).view(1, -1, 4)
    relations = spatial_relations(boxes.half() if half else boxes)[0].view(cells, cells, cells, cells)
    for down, right, expected in [(0, 1, 11), (1, 1, 4), (1, 0, 5), (1, -1, 6), (0, -1, 7), (-1, 0, 9), (-1, 1, 10)]:
        rows, columns = (range(max(0, -by), min(cells, cells - by)) for by in (down, right))
        assert {relations[y, x, y + down, x + right].item() for y in rows for x in columns} == {expected}


def relation_by_hand(a, b):
    """Section 3.2, for two usable boxes."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = width * height if width > 0 and height > 0 else 0.0
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    if a[0] >= b[0] and a[1] >= b[1] and a[2] <= b[2] and a[3] <= b[3]:
        return 1
    if b[0] >= a[0] and b[1] >= a[1] and b[2] <= a[2] and b[3] <= a[3]:
        return 2
    if shared / union >= 0.5:
        return 3
    x, y = (b[0] + b[2] - a[0] - a[2]) / 2, (b[1] + b[3] - a[1] - a[3]) / 2
    if math.hypot(x, y) / math.hypot(1, 1) >= 0.5:
        return 0
    degrees = (math.degrees(math.atan2(y, x)) - 0.5) % 360  # half a degree is rounding's
    return 3 + (math.ceil(degrees / 45) or 8)


def test_random_boxes_against_plain_loops():
    draw = torch.Generator().manual_seed(0)
    corner, size = torch.rand(6, 24, 2, generator=draw) * 0.6, torch.rand(6, 24, 2, generator=draw) * 0.4 + 0.01
    boxes, kinds = torch.cat([corner, corner + size], -1), set()
    for photo, rows in zip(boxes.tolist(), spatial_relations(boxes).tolist(), strict=True):
        for i, first in enumerate(photo):
            assert rows[i] == [0 if i == j else relation_by_hand(first, second) for j, second in enumerate(photo)]
            kinds |= {*rows[i]}
    assert kinds == set(range(12))
