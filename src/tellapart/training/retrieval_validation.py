"""What a retriever is judged by while it trains: how often a held-out caption finds its photo."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tellapart.data.pairs import Pairs
from tellapart.metrics.retrieval import RECALLS, blocks, ranks, text_to_text
from tellapart.retrievers import Towers

METRICS = (*(f"R@{k}" for k in RECALLS), "recall")  # what `validate` reports; recall is the mean of the others

_BATCH = 1000


@torch.inference_mode()
def validate(retriever: Towers, data: Pairs, device: torch.device) -> dict[str, float]:
    """Caption -> photo among all photos of its data set.  All captions count alike, and so do the data sets."""
    found = []
    for source in np.unique(data.source):
        photos = np.flatnonzero(data.source == source)
        numbers = [caption for photo in photos for caption in data.captions[photo]]
        own = np.array([i for i, photo in enumerate(photos) for _ in data.captions[photo]], np.int64)
        captions = torch.cat([
            retriever.embed_captions(data.read(numbers[start : start + _BATCH]).to(device))
            for start in range(0, len(numbers), _BATCH)
        ])  # fmt: skip
        if data.images is None:
            places = _places_by_references(_numbers(captions), own, len(photos))
        else:
            images = _numbers(retriever.embed_images(data.images[photos].float().to(device)))
            places = np.concatenate([ranks(part, own[rows]) for rows, part in blocks(_numbers(captions), images)])
        found.append([(places < k).mean() for k in RECALLS])
    recalls = np.mean(found, axis=0).tolist()
    return dict(zip(METRICS, [*recalls, float(np.mean(recalls))], strict=True))


def _numbers(vectors: Tensor) -> NDArray[np.float32]:
    return vectors.float().cpu().numpy()


def _places_by_references(captions: NDArray[np.float32], own: NDArray[np.int64], photos: int) -> NDArray[np.int64]:
    """A photo is the mean of its captions; the caption that asks is not among its own photo's."""
    counts = np.bincount(own, minlength=photos)
    total = np.zeros((photos, captions.shape[1]), np.float32)
    np.add.at(total, own, captions)
    total /= counts[:, None]
    return text_to_text(captions, own, total, counts, of_people=True).ranks
