"""What a retriever is judged by while it trains: how often a held-out caption finds its photo."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tellapart.data.pairs import Pairs
from tellapart.retrievers import Towers

METRICS = ("R@1", "R@5", "R@10", "recall")  # what `validate` reports; recall is the mean of the three

_BATCH = 1000


@torch.inference_mode()
def validate(retriever: Towers, data: Pairs, device: torch.device) -> dict[str, float]:
    """Caption -> photo among all photos of its data set.  All captions count alike, and so do the data sets."""
    found = []
    for source in np.unique(data.source):
        photos = np.flatnonzero(data.source == source)
        numbers = [caption for photo in photos for caption in data.captions[photo]]
        own = torch.tensor([i for i, photo in enumerate(photos) for _ in data.captions[photo]], device=device)
        captions = torch.cat([
            retriever.embed_captions(data.read(numbers[start : start + _BATCH]).to(device))
            for start in range(0, len(numbers), _BATCH)
        ])  # fmt: skip
        if data.images is None:
            ranks = _ranks_by_references(captions, own, len(photos))
        else:
            images = retriever.embed_images(data.images[photos].float().to(device))
            ranks = _ranks(captions @ images.T, own)
        found.append([(ranks < k).double().mean().item() for k in (1, 5, 10)])
    recalls = np.mean(found, axis=0).tolist()
    return dict(zip(METRICS, [*recalls, float(np.mean(recalls))], strict=True))


def _ranks(similarity: Tensor, own: Tensor) -> Tensor:
    """How many other photos are at least as similar: similarity (N, P), own (N,) -> (N,)"""
    return (similarity >= similarity.gather(1, own[:, None])).sum(1) - 1


def _ranks_by_references(captions: Tensor, own: Tensor, photos: int) -> Tensor:
    """A photo is the mean of its captions; the caption that asks is not among its own photo's."""
    total = torch.zeros(photos, captions.shape[1], device=captions.device).index_add_(0, own, captions)
    count = torch.bincount(own, minlength=photos).to(total)
    similarity = captions @ (total / count[:, None]).T
    without = (total[own] - captions) / (count[own] - 1).clamp(min=1)[:, None]  # (N, E)
    own_similarity = (captions * without).sum(1, keepdim=True)
    return _ranks(similarity.scatter(1, own[:, None], own_similarity), own)
