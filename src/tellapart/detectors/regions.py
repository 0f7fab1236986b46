"""What is in a box: pooled from an encoder's map by RoI-align (He et al., 2017, section 3).

The box is cut into 7 x 7 bins, a bin is the mean of 2 x 2 points between the cells of the map, and the region the mean,
or the largest, of its bins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tellapart.recipe import Pooling

BINS, POINTS = 7, 2  # of a box's side, and of a bin's


def region_features(feature_map: Tensor, boxes: Tensor, pooling: Pooling) -> Tensor:
    """feature_map (D, H, W), boxes (N, 4) as fractions of its sides -> (N, D)"""
    bins = roi_align(feature_map, boxes.to(feature_map.device)).flatten(2)
    return bins.amax(2) if pooling == "max" else bins.mean(2)


def roi_align(feature_map: Tensor, boxes: Tensor, bins: int = BINS, points: int = POINTS) -> Tensor:
    """feature_map (D, H, W), boxes (N, 4) as fractions of its sides -> (N, D, bins, bins)

    A value of the map stands in the middle of its cell.  Between two cells points are mixed from both, and beyond the
    middle of the outermost ones they are as these.  Points lie in rows and columns, so that a bin is the product of how
    much of each row and of each column of the map is in it.
    """
    left, top, right, bottom = boxes.unbind(1)
    rows = _shares(top, bottom, feature_map.shape[1], bins, points)
    columns = _shares(left, right, feature_map.shape[2], bins, points)
    return torch.einsum("nyh,dhw,nxw->ndyx", rows, feature_map, columns)


def _shares(start: Tensor, end: Tensor, cells: int, bins: int, points: int) -> Tensor:
    """(N, bins, cells): of a side of a box (N,), how much of each cell of the map is in each bin"""
    along = (torch.arange(bins * points, device=start.device) + 0.5) / (bins * points)
    place = (start[:, None] + (end - start)[:, None] * along) * cells - 0.5  # of the points, in cells
    distance = (place.clamp(0, cells - 1)[..., None] - torch.arange(cells, device=start.device)).abs()
    return (1 - distance).clamp(min=0).view(-1, bins, points, cells).mean(2)
