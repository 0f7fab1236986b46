"""The bounded rank: at which place does a caption find its photo among all photos of the data set?

Worth 1 at the first place, less by the logarithm, 0 behind `base` others.  A log-softmax punishes a wrong detail more
than it pays for a right one, and captions go generic; a rank that cannot fall below 0 does not.

With a listener of photos it is the image-to-text reward, with one of references the text-to-text reward.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tellapart.metrics.retrieval import TIE
from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.listener import Listener


def ranks(similarity: Tensor, own: Tensor) -> Tensor:
    """How many others fit a caption at least as well as its own photo; 0 is best, and a tie counts against the caption.

    similarity  (N, P); -inf where a photo does not count
    own         (N,)
    """
    least = similarity.gather(1, own[:, None]) - TIE
    return (similarity >= least).sum(1, dtype=torch.int32) - 1  # the own photo is one of those


def bounded_rank(rank: Tensor, base: int = 200) -> Tensor:
    """max(0, 1 - ln(1 + rank) / ln(1 + base)): (N,) -> (N,) from 0 to 1"""
    return (1 - rank.float().log1p() / math.log1p(base)).clamp(min=0)


class BoundedRank:
    """The bounded rank of captions.

    Two that are worth 0 whatever is said: a photo of which the listener knows nothing, and, in a data set of more than
    `base` photos, a caption without a word.
    """

    def __init__(self, listener: Listener, base: int = 200):
        if base < 1:
            raise ValueError(f"the base of a rank must be at least 1, not {base}")
        self.listener, self.base = listener, base

    def __call__(self, sampled: SampledCaptions) -> Reward:
        similarity, own = self.listener.similarities(sampled), sampled.photos.to(sampled.words.device)
        return Reward(bounded_rank(ranks(similarity, own), self.base))
