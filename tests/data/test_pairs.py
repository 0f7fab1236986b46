"""Photos and captions for retrievers, as a batch has them."""

from itertools import islice
from pathlib import Path

import numpy as np
import torch

from tellapart.data.batches import BatchStream
from tellapart.data.examples import Example
from tellapart.data.pairs import Pairs
from tellapart.data.store import Stores


class Kept:
    """A feature store that gives a photo of number n the features (n, n + 0.5)."""

    def row(self, example):
        return int(str(example.id).removeprefix("photo "))

    def pooled(self, rows):
        return torch.tensor([[row, row + 0.5] for row in rows])


class Lengths:
    """Captions by their numbers of letters."""

    def __init__(self, captions):
        self.lengths = torch.tensor([[len(caption)] for caption in captions])

    def __call__(self, captions):
        return self.lengths[torch.as_tensor(captions)]


def example(number, *captions):
    return Example(f"photo {number}", Path(f"{number}.jpg"), "train", captions)


FIRST = [example(5, "a", "bb"), example(3, "ccc")]
SECOND = [example(1, "dddd", "eeeee", "ffffff")]


def pairs(*sets):
    return Pairs([(Stores(regions=Kept()), examples) for examples in sets], Lengths)


def test_photos_of_several_data_sets_keep_their_features_and_captions_in_batches():
    several = pairs(FIRST, SECOND)
    assert (len(several), several.examples, several.source.tolist()) == (3, FIRST + SECOND, [0, 0, 1])
    assert several.captions == [[0, 1], [2], [3, 4, 5]]
    assert several.images.tolist() == [[5, 5.5], [3, 3.5], [1, 1.5]]
    assert several.read([5, 0]).tolist() == [[6], [1]]
    batch = several.batch(np.array([2, 0]), [[2, 0], [1, 1]])
    assert (batch.photos.tolist(), batch.images.tolist()) == ([2, 0], [[1, 1.5], [5, 5.5]])
    assert batch.images.dtype == torch.float32
    assert batch.captions.tolist() == [[6], [4], [2], [2]]
    assert batch.to(torch.device("cpu")).captions.tolist() == batch.captions.tolist()
    empty = pairs([], SECOND)
    assert (empty.source.tolist(), empty.images.tolist()) == ([1], [[1, 1.5]])


def test_without_photos_there_are_only_captions():
    texts = Pairs([(Stores(), FIRST), (Stores(), SECOND)], Lengths)
    batch = texts.batch(np.array([1]), [[0]])
    assert (texts.images, batch.images, batch.to(torch.device("cpu")).images) == (None, None, None)
    assert batch.captions.tolist() == [[3]]


def test_a_stream_of_batches_has_every_photo_once_an_epoch():
    first, second = islice(BatchStream(pairs(FIRST, SECOND), batch_size=2, captions_per_photo=2, seed=0), 2)
    assert sorted([*first.photos, *second.photos]) == [0, 1, 2]
    assert (len(first.captions), len(second.captions)) == (4, 2)
    allowed = {0: {1, 2}, 1: {3}, 2: {4, 5, 6}}
    for batch in (first, second):
        for photo, lengths in zip(batch.photos, batch.captions.view(-1, 2).tolist(), strict=True):
            assert set(lengths) <= allowed[photo]
