"""LoRA (Hu et al., 2022): a frozen matrix W learns as W + alpha / rank * B A, of which only A and B are trained.

Layers keep the names of their weights, so a checkpoint of the base fits with and without.  What we leave out on
purpose: dropout, and other forms than linear layers (GPT-2's transposed ones count as such).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import Parameter


class LoraLinear(nn.Module):
    """A linear layer with what it learns beside it."""

    def __init__(self, layer: nn.Module, rank: int, alpha: float):
        super().__init__()
        self._layer = (layer,)  # in a tuple: its weights are known by their names here
        self.weight, self.bias = cast(Parameter, layer.weight), cast(Parameter | None, layer.bias)
        self.transposed = not isinstance(layer, nn.Linear)  # GPT-2 keeps (inputs, outputs)
        outputs, inputs = reversed(self.weight.shape) if self.transposed else self.weight.shape
        self.lora_a = Parameter(torch.empty(rank, inputs, device=self.weight.device))
        self.lora_b = Parameter(torch.zeros(outputs, rank, device=self.weight.device))
        nn.init.kaiming_uniform_(self.lora_a, a=5**0.5)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        learned = nn.functional.linear(nn.functional.linear(x, self.lora_a), self.lora_b)
        return cast(Tensor, self._layer[0](x)) + self.scale * learned

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """The plain layer that computes the same."""
        change = self.scale * self.lora_b @ self.lora_a
        self.weight.add_(change.T if self.transposed else change)
        return self._layer[0]


def add_lora(module: nn.Module, rank: int, alpha: float, targets: Sequence[str] = ()) -> None:
    """Freeze a network but for a LoRA beside each linear layer with one of these names, such as q_proj.

    targets  last parts of the layers' names; none: all linear layers inside of a numbered block, so no output matrix
    """
    for weight in module.parameters():
        weight.requires_grad_(False)
    chosen = [
        (name, layer)
        for name, layer in module.named_modules()
        if (isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D")
        and (name.split(".")[-1] in targets if targets else any(part.isdigit() for part in name.split(".")))
    ]
    if not chosen:
        raise ValueError(f"there is no linear layer {' or '.join(targets) or 'in a block'} for LoRA")
    for name, layer in chosen:
        _put(module, name, LoraLinear(layer, rank, alpha))


def merge_lora(module: nn.Module) -> None:
    """Add what was learned to the weights: the same network, without LoRA and as quick as before it."""
    for name, layer in [pair for pair in module.named_modules() if isinstance(pair[1], LoraLinear)]:
        _put(module, name, cast(LoraLinear, layer).merged())


def lora_parameters(module: nn.Module) -> Iterator[tuple[str, Parameter]]:
    """The weights that LoRA trains, with their names."""
    return (pair for pair in module.named_parameters() if pair[0].rpartition(".")[2] in ("lora_a", "lora_b"))


def _put(module: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, layer)
