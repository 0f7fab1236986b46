"""Contrastive losses of retrievers: captions should be near what they describe, and far from others.

B photos, N = B*K captions grouped by photo, E embedding size; all embeddings of unit norm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tellapart.data.pairs import PairBatch
from tellapart.objectives import StepResult
from tellapart.retrievers import Towers

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # captions (N, E), images (B, E), scale -> loss


def info_nce(captions: Tensor, images: Tensor, scale: Tensor) -> Tensor:
    """Mean of two cross-entropies: which photo is the caption's, and which captions are the photo's.

    A photo's K captions are equally right answers to the second question.
    """
    logits = scale * captions @ images.T  # (N, B)
    photo = photo_of_caption(captions, images)
    finds_photo = F.cross_entropy(logits, photo)
    finds_caption = -logits.log_softmax(0).gather(1, photo[:, None]).mean()
    return (finds_photo + finds_caption) / 2


def max_violation(
    captions: Tensor, images: Tensor, scale: Tensor, *, margin: float = 0.2, hardest: bool = True
) -> Tensor:
    """VSE++: a pair must beat its hardest other photo and its hardest other caption in the batch by a margin.

    hardest  False: it must beat every other one, and the shortfalls are averaged: a start from which the hardest are
             useful: at first they are hard by chance

    Mean over pairs, so that the learning rate need not follow the batch size; the authors' program has the sum.
    """
    similarity = captions @ images.T  # (N, B)
    photo = photo_of_caption(captions, images)
    match = similarity.gather(1, photo[:, None]).squeeze(1)  # (N,)
    others = similarity.scatter(1, photo[:, None], -torch.inf)
    if not hardest:
        by_photo = (margin + others - match[:, None]).clamp(min=0).mean()
        least = match.view(len(images), -1).mean(1)  # (B,) of a photo's captions together
        by_caption = (margin + others - least[None]).clamp(min=0).mean()
        return by_photo + by_caption
    hardest_photo, hardest_caption = others.amax(1), others.amax(0)[photo]
    shortfall = (margin + hardest_photo - match).clamp(min=0) + (margin + hardest_caption - match).clamp(min=0)
    return shortfall.mean()


def photo_of_caption(captions: Tensor, images: Tensor) -> Tensor:
    """The row of each caption's photo: (N,)"""
    return torch.arange(len(captions), device=captions.device) // (len(captions) // len(images))


def contrastive_step(
    retriever: Towers, batch: PairBatch, loss: Loss, join: Callable[[Tensor], Tensor] = lambda rows: rows
) -> StepResult:
    """The loss of the whole batch, of which this may be one process's share: `join` adds the others' embeddings.

    It is the same for all processes, and so is its weight.
    """
    if len(batch.photos):
        captions, images = map(join, retriever(batch.images, batch.captions))
    else:
        captions, images = (join(torch.zeros(0, 0, device=retriever.log_scale.device)) for _ in range(2))
    value = loss(captions, images, retriever.log_scale.exp())
    best = (captions.detach() @ images.detach().T).argmax(1)
    right = (best == photo_of_caption(captions, images)).float().mean()
    line = {"loss": value.item(), "accuracy": right.item(), "scale": retriever.log_scale.exp().item()}
    return StepResult(value, 1.0, line)
