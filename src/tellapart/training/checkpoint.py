"""Training checkpoints: one safetensors file with weights, optimiser state, random state and position.

One file, replaced in one step, so that its parts always belong together; and no pickle, so that reading one is safe.
Weights and optimiser are the same in all processes of a run; the random state is each one's own, `random/cpu` that of
the first and `random/1/cpu` that of the second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from capscore import files
from capscore.errors import UserError
from tellapart.distributed import SINGLE, ProcessGroup
from tellapart.models import own_weights, put_weights, read_tensors


class Stateful(Protocol):
    """What remembers something from step to step; the same in all processes of a run."""

    def state(self) -> dict[str, Tensor]: ...

    def restore(self, state: dict[str, Tensor]) -> None: ...


NOTHING: Mapping[str, Stateful] = MappingProxyType({})


def save(
    file: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: dict[str, Any],
    keeps: Mapping[str, Stateful] = NOTHING,
    world: ProcessGroup = SINGLE,
) -> None:
    """The first process writes; the others wait for it.

    keeps  what else there is to remember, by name; a name is the first part of its tensors' names
    """
    states = world.gather({name: state.numpy().tobytes().hex() for name, state in _random_states().items()})
    world.on_main(lambda: _write(file, model, optimizer, position, keeps, states))


def _write(
    file: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: dict[str, Any],
    keeps: Mapping[str, Stateful],
    states: list[dict[str, str]],
) -> None:
    tensors = {f"model/{name}": tensor for name, tensor in own_weights(model).items()}
    for part, kept in keeps.items():
        tensors |= {f"{part}/{name}": tensor for name, tensor in kept.state().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{key}": torch.as_tensor(value) for key, value in state.items()}
    for rank, own in enumerate(states):
        for name, state in own.items():
            tensors[_random_name(rank, name)] = torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    files.replace(file, save_tensors(contiguous, metadata={"position": json.dumps(position)}))


def load(
    file: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    keeps: Mapping[str, Stateful] = NOTHING,
    rank: int = 0,
) -> dict[str, Any]:
    """Puts everything back and returns the position.

    A process that the run did not have when it was saved keeps its random state.
    """
    tensors, metadata = read_tensors(file)
    try:
        position: dict[str, Any] = json.loads(metadata["position"])
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in ("model", "optimizer", "random", *keeps)}
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = tensor
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimizer"].items():
            index, _, key = name.partition("/")
            state.setdefault(int(index), {})[key] = tensor
        first = parts["random"]["cpu"]
        put_weights(file, model, parts["model"])  # before what else is kept, for it says what differs in another model
        for part, keeper in keeps.items():
            keeper.restore(parts[part])
    except (KeyError, ValueError):
        raise UserError(f"{file} is not a training checkpoint.") from None
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    torch.set_rng_state(tensors.get(_random_name(rank, "cpu"), torch.get_rng_state() if rank else first))
    if torch.cuda.is_available() and (cuda := tensors.get(_random_name(rank, "cuda"))) is not None:
        torch.cuda.set_rng_state(cuda)
    return position


def _random_states() -> dict[str, Tensor]:
    return {"cpu": torch.get_rng_state()} | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _random_name(rank: int, name: str) -> str:
    return f"random/{rank}/{name}" if rank else f"random/{name}"
