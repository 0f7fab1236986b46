"""The global discriminative reward GD (Wu et al., "Fine-grained image captioning with global-local discriminative
objective", Eqs. 6 to 8): does a caption fit its own photo better than others, by a margin?

R_H asks about the photo most like the own one in all of the data, R_B about the photos and captions of the minibatch.
Both are hinges: 0 if the caption is better by the margin, else what it lacks, negative.

The hardest caption of R_B is a *generated* one of another photo, as in the authors' program; Eq. 7 leaves that open.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.frozen_retriever import FrozenRetriever, look_up

MARGIN = 0.2


def hard_neighbour(own: Tensor, neighbour: Tensor, margin: float = MARGIN) -> Tensor:
    """R_H (Eq. 6).

    own        (N,) similarity of each caption to its photo
    neighbour  (N,) to the photo most like that; -inf where there is none
    returns    (N,) at most 0; 0 where there is no neighbour
    """
    return -(margin + neighbour - own).clamp(min=0)


def in_batch(similarity: Tensor, own: Tensor, margin: float = MARGIN, generated: Tensor | None = None) -> Tensor:
    """R_B (Eq. 7), the sum of two hinges: against the captions of other photos, and against other photos.

    similarity  (N, B) of each caption to each photo of the minibatch
    own         (N,) which of those is the caption's own
    generated   (N,) True at captions that may be the hardest one; default: all
    returns     (N,) at most 0; a hinge for which there is no other photo is 0
    """
    photos = torch.arange(similarity.shape[1], device=similarity.device)
    is_own = own[:, None] == photos  # (N, B)
    match = similarity.gather(1, own[:, None]).squeeze(1)
    no_rival = is_own if generated is None else is_own | ~generated[:, None]
    hardest_caption = similarity.masked_fill(no_rival, -torch.inf).amax(0)[own]
    hardest_photo = similarity.masked_fill(is_own, -torch.inf).amax(1)
    return -(margin + hardest_caption - match).clamp(min=0) - (margin + hardest_photo - match).clamp(min=0)


def closeness_weights(similarity_to_nearest: Tensor) -> Tensor:
    """A weight for each photo that grows with how close its nearest look-alike is: who has none needs less push.

    By rank, so that it does not depend on the scale of similarities: linear from 0.5 for the loneliest photo to 1.5 for
    the one with the closest look-alike.  Equal ones share the mean of their places, so the mean over photos is 1.

    similarity_to_nearest  (P,) larger is closer (give minus a distance); -inf where a photo has no look-alike
    """
    if similarity_to_nearest.isnan().any():
        raise ValueError("a similarity is not a number")
    _, place, count = torch.unique(similarity_to_nearest, return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count + 1) / 2)[place]  # from 0; the mean of those that are equal
    return 0.5 + rank / (len(rank) - 1) if len(rank) > 1 else torch.ones_like(rank)


class HardNeighbour:
    """R_H of captions; nearest (P,) is the position of the photo most like each one, -1 where there is none."""

    def __init__(self, retriever: FrozenRetriever, nearest: Tensor, margin: float = MARGIN):
        if nearest.shape != (len(retriever),):
            raise ValueError(f"{len(retriever)} photos and nearest of shape {tuple(nearest.shape)}")
        self.retriever, self.nearest, self.margin = retriever, nearest, margin

    def __call__(self, sampled: SampledCaptions) -> Reward:
        nearest = look_up(self.nearest, sampled.photos).to(sampled.words.device)
        neighbour = self.retriever.to_photos(sampled, nearest.clamp(min=0)[:, None]).squeeze(1)
        neighbour = neighbour.masked_fill(nearest < 0, -torch.inf)
        return Reward(hard_neighbour(self.retriever.to_own(sampled), neighbour, self.margin))


class InBatch:
    """R_B of captions, whose different photos are the minibatch."""

    def __init__(self, retriever: FrozenRetriever, margin: float = MARGIN):
        self.retriever, self.margin = retriever, margin

    def __call__(self, sampled: SampledCaptions) -> Reward:
        batch = sampled.batch  # the hardest caption may be another process's
        similarity, own = self.retriever.to_batch(batch)
        generated = None if batch.reference is None else (batch.reference < 0).to(own.device)
        return Reward(in_batch(similarity, own, self.margin, generated)[sampled.here])


class GlobalDiscriminative:
    """R_GD = R_H + R_B (Eq. 8).

    neighbour, batch  weights of the two; the paper's are 1
    per_photo         (P,) weight of each photo, such as `closeness_weights` gives; default: 1
    """

    def __init__(
        self,
        retriever: FrozenRetriever,
        nearest: Tensor,
        margin: float = MARGIN,
        *,
        neighbour: float = 1.0,
        batch: float = 1.0,
        per_photo: Tensor | None = None,
    ):
        if per_photo is not None and per_photo.shape != (len(retriever),):
            raise ValueError(f"{len(retriever)} photos and weights of shape {tuple(per_photo.shape)}")
        self.hard_neighbour, self.in_batch = HardNeighbour(retriever, nearest, margin), InBatch(retriever, margin)
        self.neighbour, self.batch, self.per_photo = neighbour, batch, per_photo

    def __call__(self, sampled: SampledCaptions) -> Reward:
        reward = self.hard_neighbour(sampled) * self.neighbour + self.in_batch(sampled) * self.batch
        if self.per_photo is None:
            return reward
        return reward * look_up(self.per_photo, sampled.photos).to(sampled.words.device, torch.float32)
