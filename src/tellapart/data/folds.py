"""Folds: training photos divided by chance into parts, so that a network can be asked about photos it has not seen.

Cross-fitting (Chernozhukov et al., 2018): encoders that were each tuned without one fold show a captioner that fold's
photos.  What it then learns from is as reliable as what it will get of new photos; features of photos that the encoder
knows from training are more reliable than that, and captions learn to claim too much.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tellapart.data.examples import Example
from tellapart.data.store import Rows
from tellapart.data.stored import StoredFeatures


def fold_of(example: Example, folds: int) -> int:
    """The fold of an example, from 1 to `folds`: its id decides, so that every run divides photos alike."""
    digest = hashlib.sha256(str(example.id).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % folds + 1


class FoldedFeatures:
    """Stored features of a data set, those of each fold in a store of its own.

    Row r of the store of fold k is row r * folds + k - 1 here.
    """

    def __init__(self, stores: Sequence[StoredFeatures]):
        """stores  one for each fold, in order; all of the same shape"""
        self._stores = list(stores)
        self.shape = self._stores[0].shape

    def _store(self, example: Example) -> StoredFeatures:
        return self._stores[fold_of(example, len(self._stores)) - 1]

    def __contains__(self, example: Example) -> bool:
        return example in self._store(example)

    def row(self, example: Example) -> int:
        folds = len(self._stores)
        return self._store(example).row(example) * folds + fold_of(example, folds) - 1

    def count(self, example: Example) -> int:
        return self._store(example).count(example)

    def grid(self, rows: Rows, most: int | None = None) -> Tensor:
        """(len(rows), most, D)"""
        row, fold = np.divmod(np.asarray(rows, np.int64), len(self._stores))
        most = self.shape[0] if most is None else min(most, self.shape[0])
        found = torch.zeros(len(row), most, self.shape[1])
        for number, store in enumerate(self._stores):
            here = np.flatnonzero(fold == number)
            if len(here):
                found[here] = store.grid(row[here], most)
        return found

    def pooled(self, rows: Rows) -> Tensor:
        """(len(rows), D)"""
        row, fold = np.divmod(np.asarray(rows, np.int64), len(self._stores))
        parts = [store.pooled(row[fold == number]) for number, store in enumerate(self._stores)]
        return torch.cat(parts)[np.argsort(np.argsort(fold, kind="stable"), kind="stable")]
