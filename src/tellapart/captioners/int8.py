"""The linear layers of a language model in 8 bits: at a word at a time it waits for its matrices to come from memory.

Weights      one scale for each output
Activations  two 8-bit numbers each, the second for what the first leaves over, with one scale for each row.  In 8 bits
             alone the few very large activations of a language model leave little for the others (SmolLM2: divergence
             from single precision 0.10; with two 0.007), and twice the rows cost little where matrices are waited for.
"""

from __future__ import annotations

import warnings
from typing import cast

import torch
from torch import Tensor, nn

_LEVELS, _ZERO = 127, 128  # either side of 0; 0 itself, of what is stored unsigned
_REST = 2 * _LEVELS  # what is left over of a number is at most half a level


class Int8Linear(nn.Module):
    """Only for inference, on a CPU."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        weight = layer.weight.detach().float().contiguous()
        scales = (weight.abs().amax(1) / _LEVELS).clamp(min=torch.finfo(torch.float32).tiny).double()
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the type will go one day; the kernels that take it are the quickest
            whole = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(whole, None)
        self.bias = None if layer.bias is None else layer.bias.detach().float()
        self.inputs = weight.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.inputs)
        largest = rows.abs().amax(1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny)
        scaled = rows / largest
        first = (scaled * _LEVELS).round_().div_(_LEVELS)
        both = torch.cat([first, (scaled - first) * _REST])
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            both, 1 / _LEVELS, _ZERO, self.packed
        )
        out = torch.add(product[: len(rows)], product[len(rows) :], alpha=1 / _REST)
        out = out.mul_(largest).view(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias


def to_int8(network: nn.Module) -> None:
    """Every linear layer, also GPT-2's transposed ones; embeddings and all that is no matrix product stay."""
    for name, layer in list(network.named_modules()):
        if type(layer).__name__ == "Conv1D":
            layer = _plain(layer)
        if isinstance(layer, nn.Linear):
            parent, _, own = name.rpartition(".")
            setattr(network.get_submodule(parent), own, Int8Linear(layer))


def _plain(layer: nn.Module) -> nn.Linear:
    weight = cast(Tensor, layer.weight).T
    plain = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    plain.weight, plain.bias = nn.Parameter(weight, False), nn.Parameter(cast(Tensor, layer.bias), False)
    return plain
