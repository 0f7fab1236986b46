"""Gradients of weights that are used at every word, made in one product over all words.

By itself autograd multiplies and adds up a whole weight matrix for each word of a caption, and for an embedding fills
one with zeros first: on a CPU that is a sixth of what a policy gradient of a recurrent captioner costs.  (Teacher
forcing multiplies most weights once as it is, and gains nothing.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode


class AtOnce(TorchFunctionMode):
    """While it is entered, linear layers and embeddings leave the gradients of their weights for the end.

    The gradients are what they would be, but for rounding.  Where a weight needs none, or under autocast, nothing
    changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._layers: dict[tuple[Any, int], _Layer] = {}  # by their weights, which may be both a layer's and words'

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear and not kwargs and _learns(args[1]):
            return self._layer(_LinearWeights, *args[1:])(_Linear, args[0])
        if func is F.embedding and not any(kwargs[name] for name in _RARE) and _learns(args[1]):
            return self._layer(_EmbeddingWeights, args[1])(_Embedding, args[0])
        return func(*args, **(kwargs or {}))

    def _layer(self, kind: Any, weight: Tensor, bias: Tensor | None = None) -> _Layer:
        if (kind, id(weight)) not in self._layers:
            self._layers[kind, id(weight)] = _Layer(kind, weight, bias)
        return self._layers[kind, id(weight)]


_RARE = ("padding_idx", "max_norm", "scale_grad_by_freq", "sparse")  # settings of embeddings that no captioner has


def _learns(weight: Tensor) -> bool:
    return weight.requires_grad and torch.is_grad_enabled() and not torch.is_autocast_enabled(weight.device.type)


class _Layer:
    """Weights, and at the words whose turn backward has come: what went in, and the gradient of what came out."""

    def __init__(self, kind: Any, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.given: list[Tensor] = []
        self.wanted: list[Tensor] = []
        # Every use depends on this tensor without a number, and so backward comes to the weights after all of them.
        self.used = kind.apply(weight, bias, self)

    def __call__(self, use: Any, given: Tensor) -> Tensor:
        return use.apply(given, self.used, self)  # type: ignore[no-any-return]

    def remember(self, given: Tensor, wanted: Tensor) -> None:
        self.given.append(given)
        self.wanted.append(wanted)

    def all_words(self) -> tuple[Tensor, Tensor]:
        together = torch.cat(self.given), torch.cat(self.wanted)
        self.given, self.wanted = [], []
        return together


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, used: Tensor, layer: _Layer) -> Tensor:
        ctx.save_for_backward(given)
        ctx.layer = layer
        return F.linear(given, layer.weight, layer.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, wanted: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (given,) = ctx.saved_tensors
        ctx.layer.remember(given.flatten(0, -2), wanted.flatten(0, -2))
        return wanted @ ctx.layer.weight if ctx.needs_input_grad[0] else None, wanted.new_empty(0), None


class _LinearWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, layer: _Layer) -> Tensor:
        ctx.layer, ctx.biased = layer, bias is not None
        return weight.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor | None, None]:
        given, wanted = ctx.layer.all_words()
        return wanted.T @ given, wanted.sum(0) if ctx.biased else None, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, used: Tensor, layer: _Layer) -> Tensor:
        ctx.token, ctx.layer = token, layer
        return F.embedding(token, layer.weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, wanted: Tensor) -> tuple[None, Tensor, None]:
        ctx.layer.remember(ctx.token.flatten(), wanted.flatten(0, -2))
        return None, wanted.new_empty(0), None


class _EmbeddingWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: None, layer: _Layer) -> Tensor:
        ctx.layer = layer
        return weight.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None, None]:
        token, wanted = ctx.layer.all_words()
        return torch.zeros_like(ctx.layer.weight).index_add_(0, token, wanted), None, None
