"""The bounded rank: at which place does a caption find its photo among all photos of the data set?

1 at the first place, less by the logarithm, 0 behind `base` others.  A log-softmax punishes a wrong detail more
than it pays for a right one, and captions go generic; a rank that cannot fall below 0 does not.

With a retriever of photos it is the image-to-text reward, with one of references the text-to-text reward.
"""

from __future__ import annotations

import math

from torch import Tensor

from tellapart.metrics.similarity import ranks
from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.frozen_retriever import FrozenRetriever


def bounded_rank(rank: Tensor, base: int = 200) -> Tensor:
    """max(0, 1 - ln(1 + rank) / ln(1 + base)): (N,) -> (N,) from 0 to 1"""
    return (1 - rank.float().log1p() / math.log1p(base)).clamp(min=0)


class BoundedRank:
    """The bounded rank of captions.

    Two get 0 for any caption: a photo of which the retriever knows nothing, and, in a data set of more than
    `base` photos, a caption without a word.
    """

    def __init__(self, retriever: FrozenRetriever, base: int = 200):
        if base < 1:
            raise ValueError(f"the base of a rank must be at least 1, not {base}")
        self.retriever, self.base = retriever, base

    def __call__(self, sampled: SampledCaptions) -> Reward:
        similarity, own = self.retriever.similarities(sampled), sampled.photos.to(sampled.words.device)
        fits = similarity.gather(1, own[:, None]).squeeze(1)
        return Reward(bounded_rank(ranks(similarity, fits), self.base))
