"""Photos and captions for retrievers: B photos as a vector each, with K captions as the retriever reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tellapart.data.examples import Example
from tellapart.data.store import Stores

# Captions that are read once and taken many times: their numbers -> those captions as the network takes them
ReadCaptions = Callable[[Sequence[int]], Tensor]


@dataclass
class PairBatch:
    photos: NDArray[np.int64]  # (B,) positions in the data
    images: Tensor | None  # (B, D) pooled features; none for a retriever that sees only references
    captions: Tensor  # (B*K, ...) grouped by photo

    def to(self, device: torch.device) -> PairBatch:
        images = None if self.images is None else self.images.to(device)
        return PairBatch(self.photos, images, self.captions.to(device))


Source = tuple[Stores, Sequence[Example]]  # examples of a data set, with features if photos are seen


class Pairs:
    """Captioned photos of one or several data sets."""

    def __init__(self, sources: Sequence[Source], prepare: Callable[[Sequence[str]], ReadCaptions]):
        self.examples = [example for _, examples in sources for example in examples]
        self.source = np.repeat(np.arange(len(sources)), [len(examples) for _, examples in sources])  # (P,)
        self._prepared = prepare([text for example in self.examples for text in example.captions])
        ends = np.cumsum([0, *(len(example.captions) for example in self.examples)])
        self.captions = [list(range(ends[i], ends[i + 1])) for i in range(len(self.examples))]  # photo -> its captions
        self.images = _pooled(sources)  # (P, D)

    def __len__(self) -> int:
        return len(self.examples)

    def read(self, captions: Sequence[int]) -> Tensor:
        return self._prepared(captions)

    def batch(
        self,
        photos: NDArray[np.int64],
        chosen: Sequence[Sequence[int]],
        chance: NDArray[np.float64] | None = None,
    ) -> PairBatch:
        """The photos with the chosen ones of their captions; nothing else is left to chance."""
        captions = [self.captions[photo][k] for photo, ks in zip(photos, chosen, strict=True) for k in ks]
        return PairBatch(photos, None if self.images is None else self.images[photos].float(), self.read(captions))


def _pooled(sources: Sequence[Source]) -> Tensor | None:
    """All in memory, in half precision as on disk: 290 MB for the 113,287 photos of COCO"""
    parts = []
    for stores, examples in sources:
        if not stores:
            return None
        parts.append(stores.pooled(examples).half())
    return torch.cat(parts)
