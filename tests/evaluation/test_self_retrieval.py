"""A captioner that looks for its own photos, against one pair of caption and photo at a time."""

import numpy as np
import torch

from tellapart.captioning.captioner import load
from tellapart.data.media import photos
from tellapart.data.streams import region_inputs
from tellapart.decoding import score
from tellapart.evaluation import grid as run


def test_ranks_are_those_of_each_captions_log_p_for_each_photo(data, grid, small_model):
    captioner = load(small_model)
    texts = ["a red bus", "the cat on the bed", "a man riding a wave", "", "a cat", "a bus on the street"] * 2
    found = grid(data, {"a": dict(enumerate(texts))}, reader=False)
    row = found.rows["a"]
    run.add_self_retrieval(row, captioner, found.split, found.measured)

    words, size = captioner.model.tokenizer, captioner.encoder.config.image_size
    logp = np.zeros((12, 12))
    for p, photo in enumerate(found.split.photos):
        pixels = photos.read(photo.file, size).pixels
        grid_features = captioner.encoder(pixels[None]).grid
        memory = captioner.model.captioner.encode(
            region_inputs(grid_features, torch.ones(grid_features.shape[:2], dtype=torch.bool))
        )
        for n, text in enumerate(texts):
            if ids := words.encode(text):
                tokens = torch.tensor([ids])
                mask = torch.ones_like(tokens, dtype=torch.bool)
                logp[n, p] = score(captioner.model.captioner, memory, tokens, mask, bos=words.bos).sum().item()
    ranks = (logp >= np.diag(logp)[:, None] - 1e-4).sum(1) - 1
    assert len(set(ranks.tolist())) > 3
    assert ranks[3] == 11  # nothing is as probable for every photo
    for k in (1, 5, 10):
        assert row.scores[f"self R@{k}"] == (ranks < k).mean()
    assert row.signature["self R@1"].startswith("self R@1|photos:12|captions:12|w:")
