"""The log-probability that a listener picks the right photo of the batch (DiscriTune's reward).

Scores are multiplied by the retriever's own scale before the softmax, as in the authors' program; `scale=1` is the bare
formula of the paper.
"""

from __future__ import annotations

from torch import Tensor

from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.listener import Listener


def log_probability(similarity: Tensor, own: Tensor, scale: float) -> Tensor:
    """
    similarity  (N, B) of each caption to each photo of the batch
    own         (N,) which of those is the caption's own
    returns     (N,) at most 0; 0 where there is no other photo
    """
    return (scale * similarity).log_softmax(1).gather(1, own[:, None]).squeeze(1)


class InBatchLogProbability:
    """log softmax over the different photos of the batch; of a caption without a word, which is like nothing, -ln B."""

    def __init__(self, listener: Listener, scale: float | None = None):
        self.listener, self.scale = listener, listener.scale if scale is None else scale

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(log_probability(*self.listener.to_batch(sampled), self.scale))
