"""How two boxes of a photo lie to each other: the eleven relations of Yao et al. (2018), section 3.2.

0        none: the boxes are far apart, or one of them is no box
1        the first lies inside the second
2        the first covers the second
3        they overlap: intersection over union of at least 0.5
4 to 11  else, where their centres are closer than half the photo's diagonal: the direction from the first to the second
         in steps of 45 degrees, clockwise as seen: 4 is right and at most 45 degrees down, 11 the one before straight
         right, which it includes

Boxes are fractions of the photo's width and height.  So directions and distances are those of the photo stretched to a
square; inside, cover and overlap do not depend on that.  Two equal boxes overlap.

A box that reaches outside the photo ends at its edges.  What then has no area, or is not a number, is no box, and has
no relation to any other.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SPATIAL = 11  # kinds of relations
_OVERLAP, _NEAR = 0.5, 0.5
_TURN = 45.0  # degrees of a direction
_ROUNDING = 0.5  # degrees: the cells of a grid lie exactly on the borders of directions, but for rounding


def spatial_relations(boxes: Tensor) -> Tensor:
    """boxes (B, R, 4): left, top, right, bottom -> (B, R, R) of 0 to 11: how the first, by row, lies to the second"""
    numbers = boxes.isfinite().all(-1)
    boxes = boxes.float().nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 1.0)
    first, second = boxes[:, :, None], boxes[:, None]  # (B, R, 1, 4), (B, 1, R, 4)
    area = (boxes[..., 2] - boxes[..., 0]).clamp(min=0) * (boxes[..., 3] - boxes[..., 1]).clamp(min=0)
    usable = numbers & (area > 0)

    shared = torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])
    shared_area = shared.clamp(min=0).prod(-1)  # (B, R, R)
    overlap = shared_area / (area[:, :, None] + area[:, None] - shared_area).clamp(min=1e-12)

    equal = (first == second).all(-1)
    inside = (first[..., :2] >= second[..., :2]).all(-1) & (first[..., 2:] <= second[..., 2:]).all(-1) & ~equal
    covers = inside.transpose(1, 2)

    away = (second[..., :2] + second[..., 2:] - first[..., :2] - first[..., 2:]) / 2  # between the centres
    near = away.square().sum(-1).sqrt() < _NEAR * math.sqrt(2)
    angle = torch.rad2deg(torch.atan2(away[..., 1], away[..., 0])) % 360
    turns = torch.ceil((angle - _ROUNDING) / _TURN)  # 0 is a whole turn: straight to the right
    direction = torch.where(turns < 1, 8, turns) + 3

    relation = torch.where(near, direction, 0)
    relation = torch.where(overlap >= _OVERLAP, 3, relation)
    relation = torch.where(covers, 2, torch.where(inside, 1, relation))
    both = usable[:, :, None] & usable[:, None]
    itself = torch.eye(boxes.shape[1], dtype=torch.bool, device=boxes.device)
    return torch.where(both & ~itself, relation, 0).long()
