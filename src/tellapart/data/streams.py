"""Inputs of a captioner, of items (photos or clips): named streams of rows, each with a mask.

B items, R rows of an item (regions, grid cells, frames, attribute words), D numbers in a row.

Names have one meaning everywhere, in recipes, feature stores, batches and model folders.  `regions`
is the one that every captioner of a single stream takes: grid cells, detected boxes or frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # recipes know the names of streams without loading torch
    import torch
    from torch import Tensor

REGIONS = "regions"
BOXES = "boxes"  # of the regions: left, top, right, bottom as fractions of the photo; rows in the same order
RELATIONS = "relations"  # between regions: a row is the place of the first one, of the second, and the label from 0 on
ATTRIBUTES = "attributes"  # a row is a word of the captioner's vocabulary, by its id, and the word's probability
WORDS = "words"  # of a clip as a whole: the probability of each of K words (long-range)
ACTIONS = "actions"  # the probability of each of J actions (short-range)
CLASSES = "classes"  # the probability of each of M classes of what a frame shows (keyframe)
SOUND = "sound"
STREAMS = (REGIONS, ATTRIBUTES, BOXES, RELATIONS, WORDS, ACTIONS, CLASSES, SOUND)


class Stream(NamedTuple):
    values: Tensor  # (B, R, D)
    mask: Tensor  # (B, R) True where a row exists

    def to(self, device: torch.device) -> Stream:
        return Stream(self.values.to(device), self.mask.to(device))

    def select(self, rows: Tensor | slice | Sequence[int]) -> Stream:
        """The same stream of some of the items, in that order."""
        return Stream(self.values[rows], self.mask[rows])


class Inputs(dict[str, Stream]):
    """Streams by name, all of the same B items.

    >>> inputs = region_inputs(torch.zeros(2, 3, 8))
    >>> inputs["regions"].mask.shape, inputs.items_count
    (torch.Size([2, 3]), 2)
    """

    @property
    def items_count(self) -> int:
        """B"""
        return len(self._first.mask)

    @property
    def device(self) -> torch.device:
        return self._first.mask.device

    def to(self, device: torch.device) -> Inputs:
        return Inputs((name, stream.to(device)) for name, stream in self.items())

    def select(self, rows: Tensor | slice | Sequence[int]) -> Inputs:
        return Inputs((name, stream.select(rows)) for name, stream in self.items())

    @property
    def _first(self) -> Stream:
        return next(iter(self.values()))


def region_inputs(values: Tensor, mask: Tensor | None = None) -> Inputs:
    """The one stream `regions`; without a mask every row exists.  values (B, R, D), mask (B, R)"""
    if mask is None:
        import torch

        mask = torch.ones(values.shape[:2], dtype=torch.bool, device=values.device)
    return Inputs({REGIONS: Stream(values, mask)})


def ragged(rows: Sequence[Tensor]) -> Stream:
    """(R, D) of each item, as many rows as the most that one has; if none has any, one that does not exist"""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    values = pad_sequence([*rows, rows[0].new_zeros(1, rows[0].shape[1])], batch_first=True)[:-1]
    counts = torch.tensor([len(rows_of_item) for rows_of_item in rows], device=values.device)
    return Stream(values, torch.arange(values.shape[1], device=values.device) < counts[:, None])


def read_attributes(stream: Stream, words: int) -> tuple[Tensor, Tensor, Tensor]:
    """Word ids (B, R), their probabilities (B, R), both 0 where there is no attribute, and the mask (B, R) of those.

    words  ids from this one on mean no word; rows with such an id, or without a probability, are no attributes

    >>> stream = Stream(torch.tensor([[[7.0, 0.9], [12.0, 0.4]]]), torch.tensor([[True, True]]))
    >>> read_attributes(stream, 10)[0]
    tensor([[7, 0]])
    """
    ids, probability = stream.values.unbind(2)
    mask = stream.mask & (ids >= 0) & (ids < words) & (probability >= 0)  # all of them False for what is no number
    return ids.masked_fill(~mask, 0).long(), probability.masked_fill(~mask, 0), mask


def read_relations(stream: Stream, regions: Tensor, labels: int) -> Tensor:
    """(B, R, R) of 0, where there is none, to `labels`: one more than the label of the relation from the first region,
    by row, to the second.

    regions  (B, R) True where a region exists
    labels   from this one on mean no relation, nor does one of a region with itself, or with one that does not exist;
             of several from one region to another the highest label counts

    >>> stream = Stream(torch.tensor([[[0.0, 1.0, 4.0], [1.0, 2.0, 0.0]]]), torch.tensor([[True, True]]))
    >>> read_relations(stream, torch.ones(1, 2, dtype=torch.bool), 5)
    tensor([[[0, 5],
             [0, 0]]])
    """
    (photos, count), (first, second, label) = regions.shape, stream.values.unbind(2)
    mask = stream.mask & (first != second) & (label >= 0) & (label < labels)  # all False for what is no number
    for region in (first, second):
        mask = mask & (region >= 0) & (region < count)
    place = (first * count + second).masked_fill(~mask, 0).long()  # where nothing is, a 0 changes nothing
    graph = regions.new_zeros(photos, count * count, dtype=place.dtype)
    graph = graph.scatter_reduce(1, place, (label + 1).masked_fill(~mask, 0).long(), "amax")
    return graph.view(photos, count, count) * (regions[:, :, None] & regions[:, None])
