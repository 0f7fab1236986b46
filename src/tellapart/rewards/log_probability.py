"""The game of DiscriTune: a retriever has to pick the caption's own photo among candidates.

Candidates are the photos of the batch, or the own photo and its look-alikes.  The reward is the log-probability of the
own photo, or whether it is picked (accuracy).  Scores are multiplied by the retriever's own scale before the softmax,
as in the authors' program; `scale=1` is the bare formula of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tellapart.metrics.similarity import TIE
from tellapart.rewards import Reward, SampledCaptions, Term
from tellapart.rewards.frozen_retriever import FrozenRetriever, look_up


def log_probability(similarity: Tensor, own: Tensor, scale: float) -> Tensor:
    """
    similarity  (N, C) of each caption to each candidate; -inf where there is none
    own         (N,) which of those is the caption's own photo
    returns     (N,) at most 0; 0 where there is no other photo
    """
    return (scale * similarity).log_softmax(1).gather(1, own[:, None]).squeeze(1)


def accuracy(similarity: Tensor, own: Tensor) -> Tensor:
    """(N,): 1 where the own photo is the best of (N, C) candidates, else 0; a tie is wrong."""
    others = similarity.scatter(1, own[:, None], -torch.inf).amax(1)
    return (similarity.gather(1, own[:, None]).squeeze(1) > others + TIE).float()


def candidates(
    retriever: FrozenRetriever, sampled: SampledCaptions, distractors: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Similarity (N, C) of each caption to its candidates, and (N,) which is its own photo.

    distractors  (P, k) look-alikes of each photo, -1 after the last; none: the different photos of the batch
    """
    if distractors is None:
        return retriever.to_batch(sampled)
    own = sampled.photos.to(sampled.words.device)[:, None]
    photos = torch.cat([own, look_up(distractors, own.squeeze(1))], 1)
    similarity = retriever.to_photos(sampled, photos.clamp(min=0)).masked_fill(photos < 0, -torch.inf)
    return similarity, torch.zeros_like(own.squeeze(1))


class InBatchLogProbability:
    """log softmax over the candidates; of a caption without a word, which is like nothing, -ln C."""

    def __init__(self, retriever: FrozenRetriever, scale: float | None = None, distractors: Tensor | None = None):
        self.retriever, self.scale = retriever, retriever.scale if scale is None else scale
        self.distractors = distractors

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(log_probability(*candidates(self.retriever, sampled, self.distractors), self.scale))


class Accuracy:
    """1 for a caption by which the retriever picks its photo, else 0."""

    def __init__(self, retriever: FrozenRetriever, distractors: Tensor | None = None):
        self.retriever, self.distractors = retriever, distractors

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(accuracy(*candidates(self.retriever, sampled, self.distractors)))


class HardPositives:
    """The log-probability of the view of the own photo that the caption fits least, in the place of the photo (RRG).

    views  (V, P, E) other views of each photo, as the retriever sees them: what a caption says must be true of them too
    """

    def __init__(self, retriever: FrozenRetriever, views: Tensor, scale: float | None = None):
        self.retriever, self.views = retriever, views
        self.scale = retriever.scale if scale is None else scale

    def __call__(self, sampled: SampledCaptions) -> Reward:
        similarity, own = self.retriever.to_batch(sampled)
        shown = look_up(self.views.transpose(0, 1), sampled.photos.to(similarity.device))  # (N, V, E)
        to_views = torch.einsum("ne,nve->nv", self.retriever.embed_sampled(sampled), shown)
        least = to_views.amin(
            1, keepdim=True
        )  # a softmax grows with its term: the least likely view is the least alike
        return Reward(log_probability(similarity.scatter(1, own[:, None], least), own, self.scale))


class InTurn:
    """Several retrievers, one for each batch.

    The photos of a batch decide whose turn it is, so that nothing need be remembered, and what a caption is compared
    with is embedded by the same retriever.
    """

    def __init__(self, terms: Sequence[Term]):
        self.terms = list(terms)

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return self.terms[int(torch.unique(sampled.batch.photos).sum()) % len(self.terms)](sampled)
