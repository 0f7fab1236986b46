"""Decoding: from a captioner's next-word probabilities to captions, and back from captions to their log p.

Written once against the captioner protocol (`start`, `step`, `forward`); knows no vocabulary beyond a few word ids.
"""

from tellapart.decoding.beam import Hypotheses, beam_search
from tellapart.decoding.rules import Rules
from tellapart.decoding.sample import Rollout, greedy, sample
from tellapart.decoding.score import caption_mask, score

__all__ = ["Hypotheses", "Rollout", "Rules", "beam_search", "caption_mask", "greedy", "sample", "score"]
