"""Each captioner of the table at a tiny size: whoever adds one there is tested by itself."""

from importlib import import_module

import torch

from tellapart import models
from tellapart.captioners import CAPTIONERS
from tellapart.data.streams import Inputs, Stream, region_inputs

FEATURES, VOCABULARY = 8, 11
CLIPS = {"words": 6, "actions": 5, "classes": 4, "sound": 3}
SIZES = {
    "regions": FEATURES,
    "attributes": 2,
    "boxes": 4,
    "relations": 3,
    **CLIPS,
}  # of the streams that captioners take


def sizes_of(name):
    """Of the streams that a captioner takes."""
    return {stream: SIZES[stream] for stream in models.streams_of(name)}


def tiny(name, vocab_size=VOCABULARY, seed=0, **settings):
    torch.manual_seed(seed)
    settings = import_module(CAPTIONERS[name].module).TINY | {"dropout": 0.0} | settings
    return models.build_captioner(name, settings, vocab_size=vocab_size, feature_sizes=sizes_of(name)).eval()


def every_stream(features, mask=None):
    """All streams that any captioner takes: these regions, and further ones with a row for each region.

    The box of a region follows from its features, wherever it stands.  Each is related to the one behind it.

    features (B, R, FEATURES), mask (B, R)
    """
    inputs = region_inputs(features, mask)
    draw = torch.Generator().manual_seed(7)
    photos, rows = inputs["regions"].mask.shape
    ids = torch.rand(photos, VOCABULARY, generator=draw).argsort(1)[:, :rows]
    values = torch.stack([ids.float(), 0.05 + 0.9 * torch.rand(photos, rows, generator=draw)], 2)
    corner, size = features[..., :2].sigmoid() * 0.7, features[..., 2:4].sigmoid() * 0.5
    boxes = torch.cat([corner, corner + size], 2)
    mask = inputs["regions"].mask
    behind = torch.arange(rows).expand(photos, -1)
    relations = torch.stack([behind, (behind + 1) % rows, behind % 21], 2).float()
    of_clips = {name: Stream(features[..., -size:].sigmoid(), mask) for name, size in CLIPS.items()}
    ours = {"attributes": values, "boxes": boxes, "relations": relations}
    return Inputs(inputs | {name: Stream(own, mask.clone()) for name, own in ours.items()} | of_clips)


def padded(inputs, more, filler):
    """The same items in streams with more rows; whatever stands where no row is."""
    result = Inputs()
    for name, (values, mask) in inputs.items():
        behind = torch.full((len(values), more, values.shape[2]), filler)
        wider = torch.cat([mask, torch.zeros(len(values), more, dtype=torch.bool)], 1)
        result[name] = Stream(torch.cat([values.masked_fill(~mask[..., None], filler), behind], 1), wider)
    return result
