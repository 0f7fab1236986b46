"""Weights in a byte each, as the package carries them: a quarter of the size, unpacked when they are loaded.

A matrix has one scale for each of its rows, so that a row with small numbers keeps its precision; what is no matrix, or
a small one, is kept in half precision.  Products are then made in single precision: this is about size, not
speed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE = ".scale"  # behind the name of a packed tensor: the name of its scales
SMALLEST = 4096  # numbers in a tensor; below it there is nothing to gain
_LEVELS = 127  # on either side of 0


def packed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in 8 bits (rows, ...) beside their scales (rows,), or in 16."""
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.ndim < 2 or weight.numel() < SMALLEST or not weight.is_floating_point():
            found[name] = (weight.half() if weight.is_floating_point() else weight).contiguous()
            continue
        rows = weight.detach().float().flatten(1)
        scale = rows.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / _LEVELS
        found[name] = (rows / scale[:, None]).round().to(torch.int8).view(weight.shape).contiguous()
        found[name + SCALE] = scale
    return found


def unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `packed` made, as it was but for rounding; other tensors as they are."""
    scales = {name for name in tensors if name.endswith(SCALE) and _is_packed(tensors, name.removesuffix(SCALE))}
    found = {}
    for name, tensor in tensors.items():
        if name + SCALE in scales:
            rows = tensor.flatten(1).float() * tensors[name + SCALE].float()[:, None]
            found[name] = rows.view(tensor.shape)
        elif name not in scales:
            found[name] = tensor
    return found


def _is_packed(tensors: Mapping[str, Tensor], name: str) -> bool:
    weight, scale = tensors.get(name), tensors[name + SCALE]
    return weight is not None and weight.dtype == torch.int8 and weight.ndim >= 2 and scale.shape == weight.shape[:1]
