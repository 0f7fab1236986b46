"""Captions as rewards get them from a sampler, and what rewards are made of."""

from pathlib import Path

import torch

from tellapart.data.batches import CaptionedPhotos
from tellapart.rewards import SampledCaptions
from tellapart.rewards.context import RewardContext
from tellapart.rewards.words import WordView


def context(config, sources, words, max_words=20, **more):
    """Of photos with their features, data set by data set, and a vocabulary."""
    data, view = CaptionedPhotos(sources, words, max_words), WordView(words, words)
    return RewardContext(config, sources, data, view, **{"features": Path(), "device": torch.device("cpu")} | more)


def sampled(captions, photos=None, *, end, width=None, filler=0, reference=None, **more):
    """Captions as lists of ids: cut at `width`, else with their end, and behind it whatever was there."""
    width = width or max(map(len, captions), default=0) + 1
    words = torch.full((len(captions), width), filler)
    mask = torch.zeros(len(captions), width, dtype=torch.bool)
    for row, caption in enumerate(captions):
        ids = [*caption, end][:width]
        words[row, : len(ids)], mask[row, : len(ids)] = torch.tensor(ids), True
    photos = torch.tensor([0] * len(captions) if photos is None else photos)
    return SampledCaptions(words, mask, photos, None if reference is None else torch.tensor(reference), **more)
