"""Training checkpoints: one safetensors file with weights, optimiser state, random state and position.

One file, replaced in one step, so that its parts always belong together; and no pickle, so that reading one is safe.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from tellapart import files
from tellapart.errors import UserError
from tellapart.models import put_weights, read_tensors


def save(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any]) -> None:
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{key}": torch.as_tensor(value) for key, value in state.items()}
    tensors["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    files.replace(file, save_tensors(contiguous, metadata={"position": json.dumps(position)}))


def load(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Puts everything back and returns the position."""
    tensors, metadata = read_tensors(file)
    try:
        position: dict[str, Any] = json.loads(metadata["position"])
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "random": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = tensor
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimizer"].items():
            index, _, key = name.partition("/")
            state.setdefault(int(index), {})[key] = tensor
        random_state = parts["random"]["cpu"]
    except (KeyError, ValueError):
        raise UserError(f"{file} is not a training checkpoint.") from None
    put_weights(file, model, parts["model"])
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    torch.set_rng_state(random_state)
    if "cuda" in parts["random"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(parts["random"]["cuda"])
    return position
