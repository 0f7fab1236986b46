"""Each captioner of the table at a tiny size: whoever adds one there is tested by itself."""

from importlib import import_module

import torch

from tellapart import models
from tellapart.captioners import CAPTIONERS

FEATURES = 8


def tiny(name, vocab_size=11, seed=0, **settings):
    torch.manual_seed(seed)
    settings = import_module(CAPTIONERS[name].module).TINY | {"dropout": 0.0} | settings
    return models.build_captioner(name, settings, vocab_size=vocab_size, feature_sizes={"regions": FEATURES}).eval()
