"""Retrievers that give no reward, asked at each validation whether captions find their photos.

A captioner that learns to please one retriever can lose all others: that is seen here while it happens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tellapart.metrics.retrieval import ranks
from tellapart.retrievers.retriever import Retriever


class Judge:
    """A retriever that knows the photos of a validation.

    photos  (P, E) the photos as it sees them, or what it knows of them by their references
    source  (P,) the number of the data set that each is from: a caption is to be found among the photos of its own
    """

    def __init__(self, retriever: Retriever, photos: Tensor, source: NDArray[np.int64]):
        self.name, self._retriever, self._photos, self._source = retriever.name, retriever, photos, source

    @torch.inference_mode()
    def found(self, captions: Sequence[str]) -> float:
        """R@1: the share of captions, one for each photo, that fit no other photo as well as their own."""
        embedded = self._retriever.embed_captions(captions)
        right = np.zeros(len(captions), bool)
        for source in np.unique(self._source):
            here = torch.from_numpy(np.flatnonzero(self._source == source)).to(embedded.device)
            similarity = self._retriever.similarity(embedded[here], self._photos[here]).float().cpu().numpy()
            right[here.cpu().numpy()] = ranks(similarity, np.arange(len(here))) == 0
        return float(right.mean())
