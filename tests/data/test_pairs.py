"""Photos and captions for retrievers, as a batch has them."""

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


def test_photos_of_several_data_sets_keep_their_features_and_captions():
    pairs = Pairs([(Stores(regions=Kept()), FIRST), (Stores(regions=Kept()), SECOND)], Lengths)
    assert len(pairs) == 3
    assert pairs.examples == FIRST + SECOND
    assert pairs.source.tolist() == [0, 0, 1]
    assert pairs.captions == [[0, 1], [2], [3, 4, 5]]
    assert pairs.images.tolist() == [[5, 5.5], [3, 3.5], [1, 1.5]]
    assert pairs.read([5, 0]).tolist() == [[6], [1]]


def test_a_batch_has_the_chosen_captions_grouped_by_photo():
    pairs = Pairs([(Stores(regions=Kept()), FIRST), (Stores(regions=Kept()), SECOND)], Lengths)
    batch = pairs.batch(np.array([2, 0]), [[2, 0], [1, 1]])
    assert batch.photos.tolist() == [2, 0]
    assert batch.images.tolist() == [[1, 1.5], [5, 5.5]]
    assert batch.images.dtype == torch.float32
    assert batch.captions.tolist() == [[6], [4], [2], [2]]
    assert batch.to(torch.device("cpu")).captions.tolist() == batch.captions.tolist()


def test_a_data_set_that_gave_no_photos_is_skipped_over():
    pairs = Pairs([(Stores(regions=Kept()), []), (Stores(regions=Kept()), SECOND)], Lengths)
    assert pairs.source.tolist() == [1]
    assert pairs.images.tolist() == [[1, 1.5]]


def test_without_photos_there_are_only_captions():
    pairs = Pairs([(Stores(), FIRST), (Stores(), SECOND)], Lengths)
    batch = pairs.batch(np.array([1]), [[0]])
    assert (pairs.images, batch.images) == (None, None)
    assert batch.to(torch.device("cpu")).images is None
    assert batch.captions.tolist() == [[3]]


def test_a_stream_of_batches_has_every_photo_once_an_epoch():
    pairs = Pairs([(Stores(regions=Kept()), FIRST), (Stores(regions=Kept()), SECOND)], Lengths)
    batches = iter(BatchStream(pairs, batch_size=2, captions_per_photo=2, seed=0))
    first, second = next(batches), next(batches)
    assert sorted([*first.photos, *second.photos]) == [0, 1, 2]
    assert (len(first.captions), len(second.captions)) == (4, 2)
    allowed = {0: {1, 2}, 1: {3}, 2: {4, 5, 6}}
    for batch in (first, second):
        for photo, said in zip(batch.photos, batch.captions.view(-1, 2).tolist(), strict=True):
            assert set(said) <= allowed[photo]
