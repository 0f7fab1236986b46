"""Approximate nearest neighbours for millions of vectors: an inverted file.

Vectors are put into lists, each around a centre found by k-means.  A query looks only into the lists whose centres are
nearest to it.  How many lists, is found out by measuring: a sample of queries is searched exactly too, and the number
is doubled until the wanted share of true neighbours is found.  That share is kept with the index, and reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore.progress import Progress
from tellapart.neighbours.search import (
    Best,
    Metric,
    Neighbours,
    PairScores,
    Space,
    Vectors,
    checked,
    keep_best,
    nearest,
)

_ROUNDS = 8  # of k-means; more changes little
_SAMPLE = 64  # vectors for each centre that k-means sees
_ASSIGNED = 16384  # vectors assigned to centres at once
MEASURED_ON = 1000  # queries that are searched exactly too
_SPARE = 4  # candidates beyond those asked for, scored again in double precision


@dataclass
class Index:
    """Vectors in lists.  `recall` is the share of the true `measured_k` nearest that a sample of queries found."""

    vectors: Vectors  # (N, D) as given
    space: Space
    centres: Tensor  # (L, D)
    members: NDArray[np.int64]  # (N,) indices of the vectors, list after list
    starts: NDArray[np.int64]  # (L + 1,) where a list begins in `members`
    probes: int = 1  # lists that a query looks into
    recall: float = 0.0
    measured_k: int = 0
    measured_on: int = 0  # queries

    def search(self, k: int, queries: Vectors | None = None) -> Neighbours:
        """As `search.nearest`, but some of the nearest may be missing; a place that was not filled has index -1."""
        rows = np.arange(len(self.vectors)) if queries is None else None
        return self._search(checked(self.vectors if queries is None else queries), k, rows)

    def _search(self, queries: Vectors, k: int, own: NDArray[np.int64] | None) -> Neighbours:
        """`own`: the index of each query among the vectors, which is left out."""
        k = max(min(k, len(self.vectors) - (own is not None)), 0)
        best = Best(len(queries), k + _SPARE)
        moved = torch.from_numpy(self.space.of(queries))
        if k and len(queries):
            self._look_into_lists(moved, own, best)
        pairs = PairScores(self.vectors, queries, self.space.metric)
        near = pairs.of(np.arange(len(queries)), np.maximum(best.indices, 0)).astype(np.float32)
        near[best.indices < 0] = -np.inf
        order = np.lexsort((best.indices, -near))[:, :k]
        scores = np.take_along_axis(near, order, 1)
        return Neighbours(
            np.take_along_axis(best.indices, order, 1), -scores if self.space.metric == "euclidean" else scores
        )

    def _look_into_lists(self, queries: Tensor, own: NDArray[np.int64] | None, best: Best) -> None:
        """List by list, with all queries that look into it at once: matrix products, and each list is read once."""
        probed = _nearest_centres(queries, self.centres, self.probes)  # (Q, probes)
        by_list = np.argsort(probed.ravel(), kind="stable")
        edges = np.searchsorted(probed.ravel()[by_list], np.arange(len(self.centres) + 1))
        askers = by_list // self.probes
        places = np.argsort(self.members)  # of each vector in `members`
        nothing = np.zeros(len(self.vectors), np.float32)
        with Progress("look-alikes", len(queries) * self.probes, unit="list") as bar:
            for number in range(len(self.centres)):
                members = self.members[self.starts[number] : self.starts[number + 1]]
                rows = askers[edges[number] : edges[number + 1]]
                if not len(members) or not len(rows):
                    continue
                inside = torch.from_numpy(self.space.vectors[members])
                halves = self.space.half_squares[members]
                for start in range(0, len(rows), _ASSIGNED):
                    some = rows[start : start + _ASSIGNED]
                    scores = (queries[some] @ inside.T).numpy() - halves
                    if own is not None:
                        place = places[own[some]] - self.starts[number]
                        here = np.flatnonzero((place >= 0) & (place < len(members)))
                        scores[here, place[here]] = -np.inf
                    found = Best(len(some), best.scores.shape[1])
                    found.scores[:], found.indices[:] = best.scores[some], best.indices[some] - len(self.vectors)
                    keep_best(scores, nothing, 0, 0, found, columns=False)
                    new = found.indices >= 0  # a place in this list; what was there before is below zero
                    found.indices[new] = members[found.indices[new]]
                    found.indices[~new] += len(self.vectors)
                    best.scores[some], best.indices[some] = found.scores, found.indices
                bar.advance(len(rows))


def build(vectors: Vectors, k: int = 10, *, metric: Metric = "cosine", queries: Vectors | None = None,
          recall: float = 0.95, seed: int = 0, measure_on: int = MEASURED_ON) -> Index:  # fmt: skip
    """An index whose searches for the k nearest find at least a share `recall` of them, as far as can be measured.

    queries  what will be searched for, such as photos among captions, which lie elsewhere: it is measured with some of
             them (default: the vectors themselves)
    """
    vectors = checked(vectors)
    space = Space(vectors, metric)
    random = np.random.default_rng(seed)
    lists = max(min(int(4 * len(vectors) ** 0.5), len(vectors) // 32), 1)
    centres = _k_means(space.vectors, lists, random)
    list_of = _assign(torch.from_numpy(space.vectors), centres)
    members = np.argsort(list_of, kind="stable")
    starts = np.searchsorted(list_of[members], np.arange(lists + 1))
    index = Index(vectors, space, centres, members, starts)
    _choose_probes(index, k, None if queries is None else checked(queries), recall, random, measure_on)
    return index


def _choose_probes(
    index: Index, k: int, asked: Vectors | None, recall: float, random: np.random.Generator, measure_on: int
) -> None:
    sample = np.sort(random.permutation(len(index.vectors if asked is None else asked))[:measure_on])
    queries = (index.vectors if asked is None else asked)[sample]
    truth = nearest(index.vectors, k + (asked is None), queries=queries, metric=index.space.metric).indices
    if asked is None:
        truth = np.stack([row[row != own][: truth.shape[1] - 1] for row, own in zip(truth, sample, strict=True)])
    index.measured_k, index.measured_on = truth.shape[1], len(sample)
    index.probes = min(4, len(index.centres))
    while True:
        found = index._search(queries, index.measured_k, own=sample if asked is None else None).indices
        hits = (found[:, :, None] == truth[:, None]).any(2)
        index.recall = float(hits.mean()) if hits.size else 1.0
        if index.recall >= recall or index.probes == len(index.centres):
            return
        index.probes = min(index.probes * 2, len(index.centres))


def _k_means(vectors: Vectors, lists: int, random: np.random.Generator) -> Tensor:
    """(lists, D) centres of a sample.  A centre that is nearest to nothing takes the place of a new random vector."""
    chosen = np.sort(random.permutation(len(vectors))[: lists * _SAMPLE])
    sample = torch.from_numpy(vectors[chosen])
    centres = sample[torch.from_numpy(random.permutation(len(sample))[:lists])]
    with Progress("lists of the index", _ROUNDS, unit="round") as bar:
        for _ in range(_ROUNDS):
            list_of = torch.from_numpy(_assign(sample, centres))
            sizes = torch.bincount(list_of, minlength=lists)
            sums = torch.zeros_like(centres).index_add_(0, list_of, sample)
            empty = torch.nonzero(sizes == 0)[:, 0]
            centres = sums / sizes.clamp(min=1)[:, None]
            centres[empty] = sample[torch.from_numpy(random.integers(0, len(sample), len(empty)))]
            bar.advance()
    return centres


def _assign(vectors: Tensor, centres: Tensor) -> NDArray[np.int64]:
    """(N,) the nearest centre of each."""
    return _nearest_centres(vectors, centres, 1)[:, 0]


def _nearest_centres(vectors: Tensor, centres: Tensor, count: int) -> NDArray[np.int64]:
    """(N, count) by Euclidean distance: for unit vectors, that is also the order of the cosine to a cluster's mean."""
    half_squares = (centres**2).sum(1) / 2
    found = np.empty((len(vectors), count), np.int64)
    for start in range(0, len(vectors), _ASSIGNED):
        closeness = torch.addmm(-half_squares, vectors[start : start + _ASSIGNED], centres.T)
        found[start : start + _ASSIGNED] = closeness.topk(count, 1).indices.numpy()
    return found
