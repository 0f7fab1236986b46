"""Greedy and sampled captions: one loop over time, which differs only in how the next word is chosen.

One pass gives the captions and their log-probabilities, with gradients where they are enabled, so a policy gradient
needs no second one.  Which log p that is depends on the choice:

greedy    the captioner's own, over the whole vocabulary; words that `Rules` rule out just cannot be chosen.
sample    the distribution drawn from: tempered, truncated, what rules rule out removed, renormalised.  It is the
          policy whose expected reward REINFORCE climbs; the captioner's own log p would weight words by a chance they
          never had.  Without any of these the two are the same, and `score` gives either the captioner's own.

Captions of a photo with the same prefix are one row of a step until they part: their words so far, and so what
they may say next, is the same.  (Not while dropout makes every caption another's.)  Rows whose captions have ended ride
along, fed with padding, until they are more than an eighth; then they leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from tellapart.captioners import Captioner, select
from tellapart.decoding.rules import Rules
from tellapart.decoding.score import caption_mask, log_probabilities, opening

# logits (rows, V), the words so far (rows, t), and of each unfinished caption its row (n,) and which it is (n,)
# -> its next word (n,) and log p (n,)
Choose = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass
class Rollout:
    """N = B*K captions grouped by photo.  A caption cut at `max_words` has no EOS, and all its tokens count."""

    tokens: Tensor  # (N, T) without BOS, padding after the first EOS
    logp: Tensor  # (N, T) of each chosen word, 0 after the first EOS
    mask: Tensor  # (N, T) True up to and including the first EOS


def greedy(captioner: Captioner, memory: Any, rules: Rules) -> Rollout:
    """The likeliest next word, again and again: one caption per photo."""
    start = opening(memory, rules.bos)

    def choose(logits: Tensor, prefix: Tensor, row: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        word = rules.rule_out_(logits.detach().clone(), prefix).argmax(dim=1)[row]
        return word, _of(word, row, log_probabilities(logits))

    return _roll_out(captioner, memory, rules, choose, start, samples=1)


def sample(
    captioner: Captioner,
    memory: Any,
    rules: Rules,
    *,
    samples: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
    uniform: Tensor | None = None,
    forced: Tensor | None = None,
) -> Rollout:
    """Independent random captions, `samples` per photo, grouped by photo.

    temperature  divides the logits, before truncation
    top_k        draw among the k likeliest words only; 0 is all
    top_p        draw among the fewest likeliest words that together reach this probability (of what top_k left);
                 alone it sorts the whole vocabulary at every step: top_k=1000 beside it is 5 times faster
    uniform      (N, max_words) in (0, 1]: the random numbers, one a word, for who must know what each caption got
    forced       (N, any) the first words of each caption, which are not drawn
    """
    if samples < 1 or not temperature > 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(f"these cannot be: {samples} samples, {temperature=}, {top_k=}, {top_p=}")
    start = opening(memory, rules.bos)
    numbers = None if uniform is None else uniform.to(start.device)

    def choose(logits: Tensor, prefix: Tensor, row: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
        allowed = rules.rule_out_(logits.clone(), prefix)
        policy = tempered(allowed, temperature, top_k, top_p)
        probability = policy.detach().exp()
        if numbers is not None:
            word = _invert(probability, row, numbers[captions, prefix.shape[1]])
        else:
            word = _draw(probability, row, captions, samples * len(start), generator)
        if forced is not None and prefix.shape[1] < forced.shape[1]:
            word = forced[captions, prefix.shape[1]]
        return word, _of(word, row, policy)

    with DeferredWeightGradients():
        return _roll_out(captioner, memory, rules, choose, start, samples=samples)


def _roll_out(
    captioner: Captioner, memory: Any, rules: Rules, choose: Choose, token: Tensor, *, samples: int
) -> Rollout:
    eos, pad, max_words = rules.eos, rules.pad, rules.max_words
    photos = len(token)
    share = samples > 1 and not getattr(captioner, "training", False)  # with dropout no caption is as another
    logits, state = captioner.step(token, captioner.start(memory), memory)  # (B, V): all samples share the first step
    captions = torch.arange(photos * samples, device=token.device)  # (n,) those that are unfinished
    row = captions // samples  # (n,) of the step
    photo = torch.arange(photos, device=token.device)  # (rows,)
    tokens = token.new_full((photos * samples, max_words), pad)
    logps: list[Tensor] = []
    memory_of_rows = memory
    while True:
        length = len(logps)
        representative = row.new_zeros(len(photo)).index_copy_(0, row, captions)  # (rows,) a caption of each row
        word, logp = choose(logits, tokens[representative, :length], row, captions)
        tokens[captions, length] = word
        logps.append(logp.new_zeros(len(tokens)).index_copy(0, captions, logp))
        going_on = (word != eos).nonzero().squeeze(1)
        if length + 1 == max_words or not len(going_on):
            tokens = tokens[:, : length + 1].contiguous()
            return Rollout(tokens, torch.stack(logps, 1), caption_mask(tokens, eos))
        captions, row, word = captions[going_on], row[going_on], word[going_on]
        beginning = row * logits.shape[1] + word if share else captions
        distinct, place = torch.unique(beginning, return_inverse=True)
        parent = row.new_zeros(len(distinct)).index_copy_(0, place, row)  # (rows of the next step,) row of this step
        alone = len(torch.unique(parent)) == len(parent)
        if alone and 8 * len(parent) >= 7 * len(photo):  # steps of finished captions cost less than copying the others
            token = word.new_full((len(photo),), pad).index_copy_(0, row, word)
        else:
            token = word.new_zeros(len(distinct)).index_copy_(0, place, word)
            row, photo, state = place, photo[parent], select(state, parent)
            each, rest = divmod(len(photo), photos)
            grouped = not rest and bool((photo == torch.arange(len(photo), device=photo.device) // each).all())
            memory_of_rows = memory if grouped else select(memory, photo)
        logits, state = captioner.step(token, state, memory_of_rows)


def tempered(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """The log-probabilities (N, V) that `sample` draws from."""
    return log_probabilities(_truncate(logits / temperature, top_k, top_p))


def _of(word: Tensor, row: Tensor, logp: Tensor) -> Tensor:
    """word (n,), row (n,), logp (rows, V) -> (n,)"""
    return logp.flatten().index_select(0, row * logp.shape[1] + word)


def _truncate(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits (N, V) with -inf outside the `top_k` likeliest words and, among those, outside the nucleus of `top_p`."""
    if not top_k and top_p == 1.0:
        return logits
    kept, word = logits.topk(min(top_k or logits.shape[1], logits.shape[1]), dim=1)  # likeliest first
    reached = log_probabilities(kept.detach()).exp().cumsum(dim=1)
    likelier = F.pad(reached[:, :-1], (1, 0))  # of all likelier words; 0 for the first, so at least one word is left
    outside = likelier >= top_p if top_p < 1.0 else torch.zeros_like(kept, dtype=torch.bool)
    return torch.full_like(logits, -torch.inf).scatter(1, word, kept.masked_fill(outside, -torch.inf))


def _draw(probability: Tensor, row: Tensor, captions: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """A word for each caption from its row of probability (rows, V), by inverting the row's cumulative sum.

    One random number per caption; `torch.multinomial` draws one per word of the vocabulary and takes 20 times as long.
    All `count` captions get one, so that what a seed draws does not depend on when finished ones leave the batch.
    """
    if probability.device.type != "cpu":  # a parallel cumulative sum may rise by rounding at a word of probability 0
        return torch.multinomial(probability[row], 1, generator=generator).squeeze(1)
    return _invert(probability, row, 1.0 - torch.rand(count, generator=generator, dtype=probability.dtype)[captions])


def _invert(probability: Tensor, row: Tensor, uniform: Tensor) -> Tensor:
    """The word (n,) at which the cumulative sum of a row of probability (rows, V) reaches uniform (n,)."""
    reached = probability.cumsum(dim=1)
    # The numbers of a row's captions stand beside each other: one search in the row finds the words of all.
    order, several = row.argsort(stable=True), row.bincount(minlength=len(reached))
    place = torch.empty_like(row)
    place[order] = torch.arange(len(row), device=row.device) - (several.cumsum(0) - several)[row[order]]
    wanted = reached.new_ones(len(reached), int(several.max()))
    # uniform is in (0, 1], so the word found always exists and the sum rises there: its probability is above 0
    wanted[row, place] = uniform.to(reached.dtype) * reached[row, -1]
    return torch.searchsorted(reached, wanted)[row, place]


class DeferredWeightGradients(TorchFunctionMode):
    """While it is entered, linear layers and embeddings leave the gradients of their weights for the end.

    They are then made in one product over all words.  By itself autograd multiplies and adds up a whole weight matrix
    for each word of a caption, and for an embedding fills one with zeros first: on a CPU that is a sixth of what a
    policy gradient of a recurrent captioner costs.  (Teacher forcing multiplies most weights once as it is, and gains
    nothing.)  The gradients are what they would be, but for rounding.  Where a weight needs none, or under autocast,
    nothing changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._layers: dict[tuple[Callable[..., Tensor], int], _Layer] = {}  # a weight may be a layer's and of words

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear and not kwargs and _learns(args[1]):
            return self._use(F.linear, *args)
        if func is F.embedding and not any(kwargs[name] for name in _RARE) and _learns(args[1]):
            return self._use(F.embedding, args[0], args[1])
        return func(*args, **(kwargs or {}))

    def _use(self, function: Callable[..., Tensor], inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        if (function, id(weight)) not in self._layers:
            self._layers[function, id(weight)] = _Layer(function, weight, bias)
        layer = self._layers[function, id(weight)]
        return _Use.apply(inputs, layer.used, layer)  # type: ignore[no-untyped-call]


_RARE = ("padding_idx", "max_norm", "scale_grad_by_freq", "sparse")  # settings of embeddings that no captioner has


def _learns(weight: Tensor) -> bool:
    return weight.requires_grad and torch.is_grad_enabled() and not torch.is_autocast_enabled(weight.device.type)


class _Layer:
    """Weights, and at the words whose turn backward has come: what went in, and the gradient of what came out."""

    def __init__(self, function: Callable[..., Tensor], weight: Tensor, bias: Tensor | None):
        """function  F.linear or F.embedding"""
        self.function = function
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.inputs: list[Tensor] = []
        self.gradients: list[Tensor] = []
        # Every use depends on this tensor without a number, and so backward comes to the weights after all of them.
        self.used: Tensor = _Weights.apply(weight, bias, self)  # type: ignore[no-untyped-call]


class _Use(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, used: Tensor, layer: _Layer) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.layer = layer
        return layer.function(inputs, layer.weight, layer.bias)  # an embedding has no bias, which is its padding: none

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (inputs,) = ctx.saved_tensors
        ctx.layer.inputs.append(inputs.flatten(0, gradient.ndim - 2))
        ctx.layer.gradients.append(gradient.flatten(0, -2))
        return gradient @ ctx.layer.weight if ctx.needs_input_grad[0] else None, gradient.new_empty(0), None


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, layer: _Layer) -> Tensor:
        ctx.layer = layer
        return weight.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor | None, None]:
        layer = ctx.layer
        inputs, gradients = torch.cat(layer.inputs), torch.cat(layer.gradients)  # (M, ...), (M, outputs) of all words
        layer.inputs, layer.gradients = [], []
        if layer.function is F.embedding:
            return torch.zeros_like(layer.weight).index_add_(0, inputs, gradients), None, None
        return gradients.T @ inputs, None if layer.bias is None else gradients.sum(0), None
