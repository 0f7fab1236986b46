"""Cross-entropy: make the references likely, word by word."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor

from tellapart.captioners import Captioner, select
from tellapart.data.batches import Batch
from tellapart.data.streams import REGIONS, Inputs, Stream
from tellapart.objectives import StepResult


def cross_entropy_step(
    captioner: Captioner,
    batch: Batch,
    *,
    bos: int,
    label_smoothing: float = 0.0,
    own_words: float = 0.0,
    hide_regions: float = 0.0,
    distillation: float = 0.0,
    as_teacher: Callable[[], AbstractContextManager[None]] | None = None,
) -> StepResult:
    """The mean over all words, EOS included; their number is its weight.

    own_words: scheduled sampling (Bengio et al., 2015), the chance that a word is followed not by the reference's
    next word but by one that the captioner drew itself.
    hide_regions: the chance of a region that the captioner does not see it this time.
    distillation: weight of the mean squared difference from the logits of a teacher (Barraco et al., 2022).
    as_teacher: the captioner with the weights of its teacher, for a while.
    """
    if not len(batch.photos):
        nothing = {"loss": 0.0, "accuracy": 0.0, "words": 0} | ({"distillation": 0.0} if as_teacher else {})
        return StepResult(torch.zeros((), device=batch.tokens.device), 0.0, nothing)
    token_mask = batch.token_mask  # (N, T)
    previous = torch.cat([torch.full_like(batch.tokens[:, :1], bos), batch.tokens[:, :-1]], 1)
    taught = None
    if as_teacher is not None:  # before the graph of the captioner's own pass, which needs its weights as they were
        with as_teacher(), torch.no_grad():
            taught = captioner.forward(previous, captioner.encode(batch.inputs), token_mask)
    memory = captioner.encode(hide_some(batch.inputs, hide_regions))
    if own_words > 0:
        logits = _with_own_words(captioner, previous, memory, len(batch.photos), own_words)[token_mask]
    else:
        logits = captioner.forward(previous, memory, token_mask)  # (M, V): nothing is computed at padding
    words = batch.tokens[token_mask]  # (M,)
    if batch.weights is None:
        loss = F.cross_entropy(logits, words, label_smoothing=label_smoothing)
    else:  # the sum of weighted words by the number of words: by that of weights, all weights times two were the same
        each = F.cross_entropy(logits, words, label_smoothing=label_smoothing, reduction="none")
        loss = (each * batch.weights[:, None].expand_as(token_mask)[token_mask]).sum() / len(words)
    line = {}
    if taught is not None:
        apart = F.mse_loss(logits, taught)
        loss, line = loss + distillation * apart, {"distillation": apart.item()}
    right = (logits.detach().argmax(1) == words).float().mean()
    return StepResult(loss, len(words), {"loss": loss.item(), "accuracy": right.item(), "words": len(words)} | line)


def _with_own_words(captioner: Captioner, previous: Tensor, memory: object, photos: int, chance: float) -> Tensor:
    """Logits (N, T, V) after words of which each was, with this chance, drawn from the captioner's last answer."""
    rows = torch.arange(photos, device=previous.device).repeat_interleave(len(previous) // photos)
    state = select(captioner.start(memory), rows)
    logits: list[Tensor] = []
    for token in previous.unbind(1):
        if logits:
            drawn = torch.multinomial(logits[-1].detach().softmax(1), 1).squeeze(1)
            token = torch.where(torch.rand(len(token), device=token.device) < chance, drawn, token)
        out, state = captioner.step(token, state, memory)
        logits.append(out)
    return torch.stack(logits, 1)


def hide_some(inputs: Inputs, chance: float) -> Inputs:
    """Inputs without some of their regions, each hidden with this chance: captions must not depend on one."""
    if chance == 0 or REGIONS not in inputs:
        return inputs
    values, mask = inputs[REGIONS]
    return Inputs(inputs | {REGIONS: Stream(values, visible(mask, chance))})


def visible(mask: Tensor, hidden: float) -> Tensor:
    """mask (B, R) without the regions that chance hides; of each photo at least one stays.

    hidden  the chance of a region to be hidden
    """
    if hidden == 0:
        return mask
    chance = torch.rand(mask.shape, device=mask.device).masked_fill(~mask, -1)
    return mask & (chance >= chance.amax(1, keepdim=True).clamp(max=hidden))
