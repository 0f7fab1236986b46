"""The linear layers of a language model in 8 bits: decoding word by word is bound by reading them from memory.

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
_TINY = torch.finfo(torch.float32).tiny
_REST = 2 * _LEVELS  # what is left over of a number is at most half a level


class Rows:
    """Activations as integers.  Layers that share their input, such as queries, keys and values, find it made ready."""

    def __init__(self) -> None:
        self._made: tuple[Tensor, Tensor, Tensor] | None = None

    def of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (..., D), which nobody changes in place -> (2 * rows, D) and the scales (rows, 1)"""
        if self._made is None or self._made[0] is not x:
            rows = x.reshape(-1, x.shape[-1])
            largest = torch.linalg.vector_norm(rows, torch.inf, dim=1, keepdim=True).clamp_(min=_TINY)
            scaled = rows / largest
            first = torch.fake_quantize_per_tensor_affine(scaled, 1 / _LEVELS, 0, -_LEVELS, _LEVELS)
            self._made = x, torch.cat([first, scaled.sub_(first).mul_(_REST)]), largest
        return self._made[1:]


class Int8Linear(nn.Module):
    """Only for inference, on a CPU."""

    def __init__(self, layer: nn.Linear, rows: Rows):
        super().__init__()
        weight = layer.weight.detach().float().contiguous()
        scales = (weight.abs().amax(1) / _LEVELS).clamp(min=_TINY).double()
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the type will go one day; the kernels that take it are the quickest
            whole = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(whole, None)
        self.bias = None if layer.bias is None else layer.bias.detach().float()
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        both, largest = self.rows.of(x)
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            both, 1 / _LEVELS, _ZERO, self.packed
        )
        first, rest = product.chunk(2)
        out: Tensor = torch.add(first, rest, alpha=1 / _REST).mul_(largest).view(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias


def to_int8(network: nn.Module) -> None:
    """Every linear layer, also GPT-2's transposed ones; embeddings and all that is no matrix product stay."""
    rows = Rows()
    for name, layer in list(network.named_modules()):
        if type(layer).__name__ == "Conv1D":
            layer = _plain(layer)
        if isinstance(layer, nn.Linear):
            parent, _, own = name.rpartition(".")
            setattr(network.get_submodule(parent), own, Int8Linear(layer, rows))


def _plain(layer: nn.Module) -> nn.Linear:
    weight = cast(Tensor, layer.weight).T
    plain = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    plain.weight, plain.bias = nn.Parameter(weight, False), nn.Parameter(cast(Tensor, layer.bias), False)
    return plain
