"""Each captioner of the table at a tiny size: whoever adds one there is tested by itself."""

from importlib import import_module

import torch

from tellapart import models
from tellapart.captioners import CAPTIONERS
from tellapart.data.streams import Stream, region_inputs

FEATURES = 8
SIZES = {"regions": FEATURES, "boxes": 4}  # D of each stream


def tiny(name, vocab_size=11, seed=0, **settings):
    torch.manual_seed(seed)
    settings = import_module(CAPTIONERS[name].module).TINY | {"dropout": 0.0} | settings
    return models.build_captioner(name, settings, vocab_size=vocab_size, feature_sizes=sizes_of(name)).eval()


def sizes_of(name):
    """D of each stream that a captioner takes."""
    return {stream: SIZES[stream] for stream in models.streams_of(name)}


def all_streams(features, mask=None):
    """Photos with regions (B, R, FEATURES), and a box of each that follows from its features, wherever it stands."""
    inputs = region_inputs(features, mask)
    corner, size = features[..., :2].sigmoid() * 0.7, features[..., 2:4].sigmoid() * 0.5
    inputs["boxes"] = Stream(torch.cat([corner, corner + size], -1), inputs["regions"].mask)
    return inputs
