"""The weights of a network as a safetensors file: saved, packed, found in a model folder, checked and loaded."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from capscore import files
from capscore.errors import UserError

Part = TypeVar("Part")
WEIGHTS = ("model.safetensors", "best.safetensors", "last.safetensors")  # the first that a folder has is used


def own_weights(network: nn.Module) -> dict[str, Tensor]:
    """The weights of a network that a checkpoint has, in the network's own number types.

    Without the weights of a frozen base, which the network names in `frozen_names`; and where two names share a
    tensor, as input and output words often do, under the first name alone.
    """
    frozen = set(getattr(network, "frozen_names", ()))
    names = {name for name, _ in network.named_parameters()} | {name for name, _ in network.named_buffers()}
    return {name: tensor for name, tensor in network.state_dict().items() if name in names and name not in frozen}


def save_weights(file: Path, network: nn.Module, dtype: torch.dtype | None = None) -> None:
    """dtype  of the file, if not the network's own"""
    weights = {name: tensor.detach().to(dtype=dtype).contiguous() for name, tensor in own_weights(network).items()}
    files.replace(file, save_tensors(weights))


def load_weights(folder: Path, captioner: nn.Module) -> str:
    """The best weights that a folder has, into a captioner of the same shape; returns the hash of their file."""
    file = weights_file(folder)
    tensors, _ = read_tensors(file)
    put_weights(file, captioner, unpacked(_of_model(file, tensors)))
    return weights_sha256(folder)


def weights_sha256(folder: Path) -> str:
    """Of the file that `load_weights` reads."""
    return hashlib.sha256(files.read_bytes(weights_file(folder))).hexdigest()


def weights_file(folder: Path) -> Path:
    for name in WEIGHTS:
        if os.path.lexists(folder / name):
            return files.inside(folder, name)
    raise UserError(f"{folder} has no weights: none of {', '.join(WEIGHTS)}.")


def _of_model(file: Path, parts: dict[str, Part]) -> dict[str, Part]:
    """Without the state of the training, which a run's last checkpoint has beside the weights."""
    if file.name != "last.safetensors":
        return parts
    return {key.removeprefix("model/"): part for key, part in parts.items() if key.startswith("model/")}


def shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    """Of the weights in a file, of which the header alone is read."""
    try:
        with safe_open(file, "pt") as opened:
            shapes = {key: tuple(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError):
        raise UserError(f"{file} is not a safetensors file, or is damaged.") from None
    shapes = _of_model(file, shapes)
    packed = {key for key in shapes if key.endswith(SCALE) and key.removesuffix(SCALE) in shapes}
    return {key: shape for key, shape in shapes.items() if key not in packed}


def put_weights(file: Path, captioner: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Refuses the weights of another model, and says where they differ."""
    refuse_others(file, captioner, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    captioner.load_state_dict(tensors, strict=False)  # names that are left out share a tensor, or are of a frozen base


def refuse_others(file: Path, captioner: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in own_weights(captioner).items()}
    for name in sorted(wanted.keys() | shapes.keys()):
        if wanted.get(name) != shapes.get(name):
            raise UserError(
                f"{file} is a checkpoint of another model: {name} is {shapes.get(name, 'absent')} there "
                f"and {wanted.get(name, 'absent')} here."
            )


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    data = files.read_bytes(file)
    try:
        tensors = load_tensors(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return tensors, header.get("__metadata__", {})
    except (SafetensorError, ValueError):
        raise UserError(f"{file} is not a safetensors file, or is damaged.") from None


# Weights in a byte each, as the package carries them: a quarter of the size, unpacked when they are loaded.  A matrix
# has one scale for each of its rows, so that a row with small numbers keeps its precision; what is no matrix, or a
# small one, is kept in half precision.  Products are then made in single precision: this is about size, not speed.

SCALE = ".scale"  # behind the name of a packed tensor: the name of its scales
SMALLEST = 4096  # numbers in a tensor; below it there is nothing to gain
_LEVELS = 127  # on either side of 0


def packed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in 8 bits (rows, ...) beside their scales (rows,), or in 16."""
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.ndim < 2 or weight.numel() < SMALLEST or not weight.is_floating_point():
            tensors[name] = (weight.half() if weight.is_floating_point() else weight).contiguous()
            continue
        rows = weight.detach().float().flatten(1)
        scale = rows.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / _LEVELS
        tensors[name] = (rows / scale[:, None]).round().to(torch.int8).view(weight.shape).contiguous()
        tensors[name + SCALE] = scale
    return tensors


def unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors before `packed`, but for rounding; others as they are."""
    scales = set()
    for name, weight in tensors.items():
        scale = tensors.get(name + SCALE)
        if scale is not None and weight.dtype == torch.int8 and weight.ndim >= 2 and scale.shape == weight.shape[:1]:
            scales.add(name + SCALE)
    weights = {}
    for name, tensor in tensors.items():
        if name + SCALE in scales:
            rows = tensor.flatten(1).float() * tensors[name + SCALE].float()[:, None]
            weights[name] = rows.view(tensor.shape)
        elif name not in scales:
            weights[name] = tensor
    return weights
