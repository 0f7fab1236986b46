"""Whether a captioner's two ways to give words their logits agree: `step`, which decodes, and `forward`, which learns.

B photos, N = B*K captions grouped by photo, T words, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capscore.errors import UserError
from tellapart.captioners import Captioner, select
from tellapart.data.streams import Inputs

_WORDS = 3
_TOLERANCE = 1e-2  # of the spread of the logits; a GPU's short numbers are off by a tenth of this


def by_steps(captioner: Captioner, tokens: Tensor, memory: object, photos: int) -> Tensor:
    """tokens (N, T) of captions of so many photos -> logits (N, T, V), one word after another"""
    of_photo = torch.arange(photos, device=tokens.device).repeat_interleave(len(tokens) // photos)
    state = select(captioner.start(memory), of_photo)
    logits = []
    for token in tokens.unbind(1):
        out, state = captioner.step(token, state, memory)
        logits.append(out)
    return torch.stack(logits, 1)


@torch.no_grad()
def require_agreement(name: str, captioner: nn.Module, inputs: Inputs, tokens: Tensor) -> None:
    """Refuses a captioner that would learn one thing and say another, by the first words of some captions (N, T).

    name  for the message
    """
    tokens, training = tokens[:, :_WORDS], captioner.training
    captioner.eval()
    try:
        memory = captioner.encode(inputs)  # type: ignore[operator]
        whole = captioner.forward(tokens, memory)
        stepped = by_steps(captioner, tokens, memory, inputs.items_count)  # type: ignore[arg-type]
    finally:
        captioner.train(training)
    if whole.shape != stepped.shape:
        shapes = f"{tuple(stepped.shape)} and {tuple(whole.shape)}"
        raise UserError(f"{name}: `step` and `forward` give logits of different shapes, {shapes}.")
    off, spread = float((whole - stepped).abs().max()), float(whole.float().std())
    if not off <= _TOLERANCE * spread:
        raise UserError(
            f"{name}: `step` and `forward` give the same words different logits ({off:.2g} apart, where logits spread "
            f"by {spread:.2g}); it would learn one thing and say another."
        )
