"""A reward without labels: are the photos that a caption retrieves like each other, and like its own photo?

CIM (arXiv 2603.01696) in our reading, for the paper's formula was not at hand: of all photos of the data set those k
that fit the caption best, the own one among them if it is found; half their mean cosine with each other, half their
mean cosine with the own photo.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.frozen_retriever import FrozenRetriever, look_up


def consistency(own: Tensor, retrieved: Tensor, present: Tensor) -> Tensor:
    """
    own        (N, E) unit norm
    retrieved  (N, k, E) unit norm
    there      (N, k) False where fewer were retrieved
    returns    (N,) from -1 to 1; one photo alone is entirely like itself; 0 where none was retrieved
    """
    retrieved, count = retrieved * present[..., None], present.sum(1)
    total = retrieved.sum(1)
    pairs = count * (count - 1)
    among = torch.where(pairs > 0, (total.square().sum(1) - count) / pairs.clamp(min=1), 1)  # |v|² = 1 is no pair
    with_own = (total * own).sum(1) / count.clamp(min=1)
    return ((among + with_own) / 2).masked_fill(count == 0, 0)


class Retrieved:
    """CIM of captions, by a retriever of photos; a caption without a word retrieves nothing."""

    def __init__(self, retriever: FrozenRetriever, k: int = 5):
        if retriever.references is not None:
            raise ValueError(f"{retriever.name} knows photos by their references: it cannot tell how alike photos are")
        if k < 1:
            raise ValueError(f"a caption must retrieve at least 1 photo, not {k}")
        self.retriever, self.k = retriever, k

    def __call__(self, sampled: SampledCaptions) -> Reward:
        best, photos = self.retriever.similarities(sampled).topk(min(self.k, len(self.retriever)), dim=1)
        says_something = self.retriever.embed_sampled(sampled).any(1, keepdim=True)
        own = look_up(self.retriever.images, sampled.photos.to(sampled.words.device))
        retrieved = look_up(self.retriever.images, photos)
        return Reward(consistency(own, retrieved, (best > -torch.inf) & says_something))
