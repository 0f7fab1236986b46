"""Batches for training: B photos with K captions each, in an order that the seed alone decides.

The order of an epoch is a function of seed and epoch, so a run that stopped in the middle of one needs to remember only
how many batches it has had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tellapart.data.examples import Example
from tellapart.data.store import Stores
from tellapart.data.streams import Inputs, Stream
from tellapart.data.tokenizers import Tokenizer


@dataclass
class Batch:
    photos: NDArray[np.int64]  # (B,) positions in the data, for messages and for rewards that need references
    inputs: Inputs  # what is seen of the photos
    tokens: Tensor  # (B*K, T) grouped by photo; EOS at the end of those that were not cut, then padding; no BOS
    token_mask: Tensor  # (B*K, T) True up to and including the last: padding may be the same token
    chosen: Tensor | None = None  # (B*K,) which of its photo's captions each is; -1 for a row without a caption
    weights: Tensor | None = None  # (B*K,) how much each caption counts; None: as 1

    def to(self, device: torch.device) -> Batch:
        chosen = None if self.chosen is None else self.chosen.to(device)
        tokens, mask = self.tokens.to(device), self.token_mask.to(device)
        weights = None if self.weights is None else self.weights.to(device)
        return Batch(self.photos, self.inputs.to(device), tokens, mask, chosen, weights)


class CaptionedPhotos:
    """Photos with stored features and tokenised captions, from one or several data sets."""

    def __init__(
        self,
        sources: Sequence[tuple[Stores, Sequence[Example]]],
        tokenizer: Tokenizer,
        max_words: int,
        views: Sequence[Sequence[Stores]] = (),
    ):
        """max_words  longer captions are cut, and have no EOS: no sentence ends with "on a"
        views      of each source, stores with other views of its photos; all sources have as many
        """
        self.examples: list[Example] = []
        self.captions: list[list[list[int]]] = []  # photo, caption, token; EOS at the end if it was not cut
        self.pad = tokenizer.pad
        self.weights: Sequence[Tensor] | None = None  # of each photo's captions, where they do not count alike
        stores_of_views = [
            [stores, *others] for (stores, _), others in zip(sources, views or [()] * len(sources), strict=True)
        ]
        self._views = [list(of_view) for of_view in zip(*stores_of_views, strict=True)]  # by view: those of all sources
        self._names = list(sources[0][0])  # of the streams, which all sources have
        source_of, rows, counts = [], list[list[list[int]]](), list[list[int]]()
        for number, (stores, examples) in enumerate(sources):
            for example in examples:
                self.examples.append(example)
                tokens = [[*tokenizer.encode(text), tokenizer.eos] for text in example.captions]
                self.captions.append([caption[: max_words + 1] for caption in tokens])
                source_of.append(number)
                rows.append([[view[name].row(example) for name in self._names] for view in stores_of_views[number]])
                counts.append([stores[name].count(example) for name in self._names])
        shape = len(self.examples), len(self._views), len(self._names)
        self._source_of = np.array(source_of, np.int64)
        self._rows = np.array(rows, np.int64).reshape(shape)
        self._counts = np.array(counts, np.int64).reshape(shape[0], shape[2])  # rows of each photo in each stream

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def rows(self) -> NDArray[np.int64]:
        """(P,) of each photo in all streams"""
        return self._counts.sum(1)  # type: ignore[no-any-return]

    def inputs(self, photos: NDArray[np.int64], chance: NDArray[np.float64] | None = None) -> Inputs:
        """The streams of the photos, with as many rows as the most that one of them has.

        chance  (B,) from 0 to below 1: which view of each photo; none: the whole photo
        """
        view = np.zeros(len(photos), np.int64) if chance is None else (chance * len(self._views)).astype(np.int64)
        return Inputs((name, self._stream(number, photos, view)) for number, name in enumerate(self._names))

    def _stream(self, number: int, photos: NDArray[np.int64], view: NDArray[np.int64]) -> Stream:
        name, counts = self._names[number], self._counts[photos, number]
        most = int(counts.max(initial=1))
        values = torch.zeros(len(photos), most, self._views[0][0][name].shape[1])
        for of_view, sources in enumerate(self._views):
            for source, stores in enumerate(sources):
                here = np.flatnonzero((self._source_of[photos] == source) & (view == of_view))
                if len(here):
                    rows = stores[name].grid(self._rows[photos[here], of_view, number], most)
                    values[here, : rows.shape[1]] = rows
        return Stream(values, torch.arange(most) < torch.from_numpy(counts)[:, None])

    def batch(
        self,
        photos: NDArray[np.int64],
        chosen: Sequence[Sequence[int]],
        chance: NDArray[np.float64] | None = None,
    ) -> Batch:
        """The photos with the chosen ones of their captions, in views that chance decides.

        K is the most that one of them has; the others have rows without a word beside theirs.
        """
        most = max(map(len, chosen), default=0)
        rows = [(photo, k) for photo, ks in zip(photos, chosen, strict=True) for k in [*ks, *[-1] * (most - len(ks))]]
        tokens, mask = padded([self.captions[photo][k] if k >= 0 else [] for photo, k in rows], self.pad)
        weights = None
        if self.weights is not None:
            weights = torch.tensor([float(self.weights[photo][k]) if k >= 0 else 0.0 for photo, k in rows])
        which = torch.tensor([k for _, k in rows], dtype=torch.long)
        return Batch(photos, self.inputs(photos, chance), tokens, mask, which, weights)


def padded(captions: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Tokens (N, T), with T the longest caption, and their mask (N, T)."""
    lengths = torch.tensor([len(caption) for caption in captions], dtype=torch.long)
    tokens = torch.full((len(captions), int(lengths.max()) if len(lengths) else 0), pad)
    for row, caption in zip(tokens, captions, strict=True):
        row[: len(caption)] = torch.tensor(caption, dtype=torch.long)
    return tokens, torch.arange(tokens.shape[1]) < lengths[:, None]


OneBatch = TypeVar("OneBatch", covariant=True)
_POOL = 64  # batches among which captions are sorted by length


class Data(Protocol[OneBatch]):
    """Items with captions, of which batches are made."""

    examples: list[Example]

    @property
    def captions(self) -> Sequence[Sequence[Any]]:
        """Of each photo."""

    def __len__(self) -> int: ...

    def batch(
        self, photos: NDArray[np.int64], chosen: Sequence[Sequence[int]], chance: NDArray[np.float64]
    ) -> OneBatch:
        """The photos with the chosen ones of their captions.

        chance  (B,) from 0 to below 1, for what else chance decides of a photo
        """


@dataclass
class BatchStream(Generic[OneBatch]):
    """Batches without end, reshuffled each epoch.  `consumed` is its whole state: set it to continue from there.

    share  (rank, size): of each batch the part of one of several processes, which together have the batch that one
           alone would have; a part may be empty
    by_length  captions that are about as long stand together, and items with as many regions: within a few dozen
               batches, the order of which is random
    visits     the items of an epoch, some of them several times, each time with other captions (default: each once)
    repeats    an item with fewer captions than asked for gives some of them again; otherwise those that it has
    """

    data: Data[OneBatch]
    batch_size: int
    captions_per_photo: int
    seed: int
    consumed: int = 0
    share: tuple[int, int] = (0, 1)
    by_length: bool = False
    visits: NDArray[np.int64] | None = None
    repeats: bool = True

    def __post_init__(self) -> None:
        self._visits = np.arange(len(self.data)) if self.visits is None else self.visits

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self._visits) // self.batch_size)

    def __iter__(self) -> Iterator[OneBatch]:
        while True:
            epoch, position = divmod(self.consumed, self.batches_per_epoch)
            order, ranks, chance = self._epoch(epoch)
            for start in range(position * self.batch_size, len(order), self.batch_size):
                visits = self._own(order[start : start + self.batch_size])
                self.consumed += 1
                chosen = [self._choose(visit, ranks) for visit in visits]
                yield self.data.batch(self._visits[visits], chosen, chance[visits])

    def _own(self, visits: NDArray[np.int64]) -> NDArray[np.int64]:
        rank, size = self.share
        return visits[len(visits) * rank // size : len(visits) * (rank + 1) // size]

    def _epoch(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """An order of the visits, and for each visit a random number per caption and one more."""
        draw, count = np.random.default_rng((self.seed, epoch)), len(self._visits)
        most = max(map(len, self.data.captions))
        order, ranks, chance = draw.permutation(count), draw.random((count, most)), draw.random(count)
        return self._sorted(order, ranks, draw) if self.by_length else order, ranks, chance

    def _sorted(
        self, order: NDArray[np.int64], ranks: NDArray[np.float64], draw: np.random.Generator
    ) -> NDArray[np.int64]:
        """The same visits; the last batch, which may be smaller, stays the last."""
        of = [(self.data.captions[photo], visit) for visit, photo in zip(order, self._visits[order], strict=True)]
        length = np.array([max(len(captions[k]) for k in self._choose(visit, ranks)) for captions, visit in of])
        rows = getattr(self.data, "rows", np.zeros(len(self.data), np.int64))[self._visits[order]]
        pool = self.batch_size * _POOL
        parts = [
            np.lexsort((length[start : start + pool], rows[start : start + pool])) + start
            for start in range(0, len(order), pool)
        ]
        batches = np.array_split(np.concatenate(parts), range(self.batch_size, len(order), self.batch_size))
        whole = len(batches) - (len(batches[-1]) < self.batch_size)
        places: NDArray[np.int64] = np.concatenate([*(batches[i] for i in draw.permutation(whole)), *batches[whole:]])
        return order[places]

    def _choose(self, visit: int, ranks: NDArray[np.float64]) -> list[int]:
        """K different captions; where the photo has fewer, all of them, again and again if asked for."""
        order = np.argsort(ranks[visit, : len(self.data.captions[self._visits[visit]])])
        if not len(order):  # a photo without captions, which some objectives learn from
            return []
        chosen = np.resize(order, self.captions_per_photo) if self.repeats else order[: self.captions_per_photo]
        return [int(k) for k in chosen]
