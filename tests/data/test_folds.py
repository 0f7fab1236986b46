"""Folds of photos, and their features in several stores."""

import hashlib
from pathlib import Path

import numpy as np
import torch

from tellapart.data.examples import Example
from tellapart.data.folds import FoldedFeatures, fold_of

PHOTOS = [Example(number, Path(f"{number}.jpg")) for number in range(300)]


class Held:
    """A store whose numbers tell which photo they are of, in an order of its own."""

    def __init__(self, examples, regions=3, size=2):
        self.ids = [example.id for example in reversed(examples)]
        self.shape = (regions, size)

    def __contains__(self, example):
        return example.id in self.ids

    def row(self, example):
        return self.ids.index(example.id)

    def count(self, example):
        return 1 + example.id % 3

    def grid(self, rows, most=None):
        values = torch.tensor([float(self.ids[row]) for row in rows])
        return values[:, None, None].expand(-1, *self.shape)[:, :most]

    def pooled(self, rows):
        return torch.tensor([[float(self.ids[row])] * self.shape[1] for row in rows]).reshape(-1, self.shape[1])


def test_the_id_decides_the_fold():
    digest = hashlib.sha256(b"7").digest()
    assert fold_of(PHOTOS[7], 5) == int.from_bytes(digest[:8], "big") % 5 + 1
    assert fold_of(Example("7", Path("elsewhere.png")), 5) == fold_of(PHOTOS[7], 5)


def test_folds_are_about_equal():
    counts = np.bincount([fold_of(photo, 3) for photo in PHOTOS])
    assert counts[0] == 0
    assert (abs(counts[1:] - 100) < 4 * np.sqrt(300 * 2 / 9)).all()  # four standard deviations


def test_features_come_from_the_store_of_the_photos_fold():
    stores = [Held([photo for photo in PHOTOS if fold_of(photo, 3) == fold]) for fold in (1, 2, 3)]
    folded = FoldedFeatures(stores)
    asked = [PHOTOS[i] for i in np.random.default_rng(0).permutation(300)[:50]]
    rows = [folded.row(photo) for photo in asked]
    assert len(set(rows)) == 50
    own = torch.tensor([float(photo.id) for photo in asked])
    assert torch.equal(folded.grid(rows), own[:, None, None].expand(50, 3, 2))
    assert torch.equal(folded.grid(rows, 2), own[:, None, None].expand(50, 2, 2))
    assert torch.equal(folded.pooled(rows), own[:, None].expand(50, 2))
    assert [folded.count(photo) for photo in asked] == [1 + photo.id % 3 for photo in asked]
    assert all(photo in folded for photo in asked)


def test_a_photo_in_the_store_of_another_fold_does_not_count():
    stores = [Held([]), Held(PHOTOS)]
    assert [photo in FoldedFeatures(stores) for photo in PHOTOS] == [fold_of(photo, 2) == 2 for photo in PHOTOS]
