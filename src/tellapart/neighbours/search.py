"""Nearest neighbours, exact: matrix products in blocks, and a scan that keeps the best of each row; or by an index.

Products in single precision find a few more candidates than are asked for; these are scored again in double precision,
and the order is by that score.  Where rounding could have hidden a better one, the row is searched again without
products, so the answer is that of a plain loop over all pairs.

Among a collection's own vectors only the blocks above the diagonal are computed: each serves its rows and its columns.

The index is an inverted file of faiss: vectors lie in lists, each around a centre, and a query looks only into the
lists whose centres are nearest to it.  A sample of queries is searched exactly too, and the number of lists is doubled
until the wanted share of true neighbours is found.  That share is kept with the index, and reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from capscore.compiled import compiled, over_cores
from capscore.errors import UserError
from capscore.progress import Progress

Metric = Literal["cosine", "euclidean"]
Vectors = NDArray[np.float32]

_BLOCK = 1024  # vectors a side of a block of products: 4 MB, which stay near the processor while they are scanned
_SPARE = 6  # candidates beyond those asked for
_SMALL = 512  # so few vectors are compared without products
_ROUNDING = 2.0**-24  # the relative error of an operation in single precision


@dataclass(frozen=True)
class Neighbours:
    """The nearest of each query, best first."""

    indices: NDArray[np.int64]  # (Q, k)
    scores: NDArray[np.float32]  # (Q, k) cosine similarity or Euclidean distance


def nearest(vectors: Vectors, k: int, *, metric: Metric = "cosine", queries: Vectors | None = None) -> Neighbours:
    """The k nearest of `vectors` (N, D) for each of `queries` (Q, D), or for each of themselves, itself left out.

    Of equally near ones the earlier come first; where there are fewer than k, all of them.  A vector of zeros has a
    cosine of 0 with everything.
    """
    vectors = checked(vectors)
    queries = None if queries is None else checked(queries, width=vectors.shape[1])
    k = max(min(k, len(vectors) - (queries is None)), 0)
    asked = vectors if queries is None else queries
    if k == 0 or len(asked) == 0:
        return Neighbours(np.zeros((len(asked), k), np.int64), np.zeros((len(asked), k), np.float32))
    pair = PairScores(vectors, asked, metric)
    if len(vectors) <= _SMALL:
        return _compare_all(pair, np.arange(len(asked)), k, alone=queries is not None)
    best = Best(len(asked), min(k + _SPARE, len(vectors) - (queries is None)))
    space = Space(vectors, metric)
    moved = space.vectors if queries is None else space.of(queries)
    _scan(moved, space.vectors, space.half_squares, best, itself=queries is None)
    neighbours, uncertain = pair.rank(best, k, space)
    if len(uncertain):
        again = _compare_all(pair, uncertain, k, alone=queries is not None)
        neighbours.indices[uncertain], neighbours.scores[uncertain] = again.indices, again.scores
    return neighbours


def checked(vectors: Vectors, *, width: int | None = None) -> Vectors:
    """Vectors that can be compared, in one piece of memory."""
    if vectors.ndim != 2 or (width is not None and vectors.shape[1] != width):
        wanted = "a matrix with a row each" if width is None else f"a matrix with {width} columns"
        raise UserError(f"vectors must be {wanted}, not of shape {vectors.shape}.")
    bad = first_not_finite(vectors)
    if bad is not None:
        raise UserError(f"vector number {bad + 1} has a value that is not a finite number.")
    return np.ascontiguousarray(vectors, np.float32)


def first_not_finite(vectors: Vectors) -> int | None:
    for start in range(0, len(vectors), _BLOCK):  # in pieces: the marks of all numbers would take a quarter more memory
        bad = np.flatnonzero(~np.isfinite(vectors[start : start + _BLOCK]).all(1))
        if len(bad):
            return start + int(bad[0])
    return None


class Space:
    """Vectors moved and scaled so that x·y - |y|²/2 in single precision orders the y of an x as the metric does.

    For the cosine: unit vectors, nothing subtracted.  For distances: centred, so that little is lost to cancellation.
    """

    def __init__(self, vectors: Vectors, metric: Metric):
        self.metric = metric
        self.centre, self.scale = np.zeros(vectors.shape[1]), 1.0
        if metric == "euclidean":
            self.centre = vectors.mean(0, dtype=np.float64)
            self.scale = max(float(np.abs(vectors).max()), float(np.finfo(np.float32).tiny))
        self.vectors = self.of(vectors)
        norms = _norms(self.vectors)
        self.half_squares = (norms**2 / 2 if metric == "euclidean" else 0 * norms).astype(np.float32)
        self.largest = float(norms.max(initial=0.0))

    def of(self, vectors: Vectors) -> Vectors:
        moved = np.empty_like(vectors)
        for start in range(0, len(vectors), _BLOCK):
            piece = vectors[start : start + _BLOCK].astype(np.float64)
            if self.metric == "euclidean":
                piece = (piece - self.centre) / self.scale
            else:
                norms = np.sqrt((piece**2).sum(1, keepdims=True))
                piece /= np.where(norms > 0, norms, 1)
            moved[start : start + _BLOCK] = piece
        return moved

    def error(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bound on the error of x·y - |y|²/2, for x of these norms.

        Errors of a sum of D products grow as the root of D (Higham and Mary, 2019): eight times that is never reached.
        """
        share = 8 * self.vectors.shape[1] ** 0.5 * _ROUNDING * self.largest
        error: NDArray[np.float64] = share * (norms + self.largest)
        return error


class Best:
    """The best `width` of each row so far, in order."""

    def __init__(self, rows: int, width: int):
        self.scores = np.full((rows, width), -np.inf, np.float32)
        self.indices = np.full((rows, width), -1, np.int64)


class PairScores:
    """The score of a query and a vector by definition, in double precision."""

    def __init__(self, vectors: Vectors, queries: Vectors, metric: Metric):
        self.vectors, self.queries, self.metric = vectors, queries, metric
        self.norms = _norms(vectors)
        self.query_norms = self.norms if queries is vectors else _norms(queries)

    def of(self, rows: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """(len(rows), width): how near vectors `indices` are to queries `rows`: cosine, or distance below zero."""
        scores = np.empty(indices.shape)

        def work(start: int, stop: int) -> None:
            _score_pairs(start, stop, self.queries, self.vectors, self.query_norms, self.norms,
                         self.metric == "euclidean", rows, indices, scores)  # fmt: skip

        over_cores(work, len(rows))
        return scores

    def rank(self, best: Best, k: int, space: Space) -> tuple[Neighbours, NDArray[np.int64]]:
        """The k best candidates, and the queries for which another one might be as good."""
        rows = np.arange(len(best.indices))
        exact = self.of(rows, best.indices)
        near = exact.astype(np.float32)
        order = np.lexsort((best.indices, -near))[:, :k]
        neighbours = Neighbours(np.take_along_axis(best.indices, order, 1), _in_order(near, order, self.metric))
        if best.indices.shape[1] >= len(self.vectors) - 1:  # all are candidates
            return neighbours, rows[:0]
        # What is no candidate has at most the score of the last candidate by products, give or take their error.
        worst = np.take_along_axis(exact, order[:, -1:], 1)[:, 0]
        norms = _norms(space.of(self.queries)) if self.queries is not self.vectors else _norms(space.vectors)
        if self.metric == "euclidean":
            worst = (norms**2 - (worst / space.scale) ** 2) / 2
        slack = space.error(norms) + 2 * np.abs(worst) * _ROUNDING
        return neighbours, rows[worst <= best.scores[:, -1] + slack]


def _in_order(near: NDArray[np.float32], order: NDArray[np.int64], metric: Metric) -> NDArray[np.float32]:
    scores = np.take_along_axis(near, order, 1)
    return np.abs(scores) if metric == "euclidean" else scores


def _compare_all(pair: PairScores, rows: NDArray[np.int64], k: int, *, alone: bool) -> Neighbours:
    """Every pair by definition: slow, and never wrong."""
    count = len(pair.vectors)
    best = Best(len(rows), k)
    step = max(2**22 // count, 1)
    everything = np.arange(count)[None]
    nothing = np.zeros(count, np.float32)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        scores = pair.of(some, np.repeat(everything, len(some), 0)).astype(np.float32)
        if not alone:
            scores[np.arange(len(some)), some] = -np.inf
        _keep_rows(0, len(some), scores, nothing, start, 0, best.scores, best.indices)
    return Neighbours(best.indices, np.abs(best.scores) if pair.metric == "euclidean" else best.scores)


def _scan(queries: Vectors, vectors: Vectors, half_squares: Vectors, best: Best, *, itself: bool) -> None:
    """Blocks from the top, each row from the left: candidates of a vector come in the order of their indices.

    itself  the queries are the vectors: blocks above the diagonal serve both sides
    """
    rows, columns = torch.from_numpy(queries), torch.from_numpy(vectors)
    buffer = torch.empty(_BLOCK * _BLOCK)
    corners = [
        (top, left)
        for top in range(0, len(queries), _BLOCK)
        for left in range(top if itself else 0, len(vectors), _BLOCK)
    ]
    with Progress("look-alikes", len(corners), unit="block") as bar:
        for top, left in corners:
            above, beside = rows[top : top + _BLOCK], columns[left : left + _BLOCK]
            products = buffer[: len(above) * len(beside)].view(len(above), len(beside))
            torch.mm(above, beside.T, out=products)
            if itself and left == top:
                products.fill_diagonal_(-torch.inf)
            _keep_best(products.numpy(), half_squares, top, left, best, columns=itself and left > top)
            bar.advance()


def _keep_best(products: Vectors, half_squares: Vectors, top: int, left: int, best: Best, *, columns: bool) -> None:
    """Update the rows top, top + 1 ... of `best` from a block of products, and the rows left ... if `columns`."""

    def rows(start: int, stop: int) -> None:
        _keep_rows(start, stop, products, half_squares, top, left, best.scores, best.indices)

    def across(start: int, stop: int) -> None:
        _keep_columns(start, stop, products, half_squares, top, left, best.scores, best.indices)

    over_cores(rows, products.shape[0], least=256)
    if columns:
        over_cores(across, products.shape[1], least=256)


# The index

MEASURED_ON = 1000  # queries that are searched exactly too
_SAMPLE = 64  # vectors for each centre from which it is found
_TOGETHER = 16384  # queries between two steps of the progress bar


@dataclass
class Index:
    """Vectors in lists.  `recall` is the share of the true `measured_k` nearest that a sample of queries found."""

    vectors: Vectors  # (N, D)
    space: Space
    lists: Any  # faiss.IndexIVFFlat
    probes: int = 1  # lists that a query looks into
    recall: float = 0.0
    measured_k: int = 0

    def search(self, k: int, queries: Vectors | None = None) -> Neighbours:
        """As `nearest`, but some of the nearest may be missing; a place that was not filled has index -1."""
        if queries is None:
            return self._search(self.vectors, k, np.arange(len(self.vectors)))
        return self._search(checked(queries), k, None)

    def _search(self, queries: Vectors, k: int, rows: NDArray[np.int64] | None) -> Neighbours:
        """rows  the index of each query among the vectors, which is left out"""
        k = max(min(k, len(self.vectors) - (rows is not None)), 0)
        self.lists.nprobe = self.probes
        moved, parts = self.space.of(queries), [np.zeros((0, k + _SPARE), np.int64)]
        with Progress("look-alikes", len(queries), unit="vector") as bar:
            for start in range(0, len(queries), _TOGETHER):
                parts.append(self.lists.search(moved[start : start + _TOGETHER], k + _SPARE)[1])
                bar.advance(len(parts[-1]))
        candidates = np.concatenate(parts)
        if rows is not None:
            candidates[candidates == rows[:, None]] = -1
        pairs = PairScores(self.vectors, queries, self.space.metric)
        near = pairs.of(np.arange(len(queries)), np.maximum(candidates, 0)).astype(np.float32)
        near[candidates < 0] = -np.inf
        order = np.lexsort((candidates, -near))[:, :k]
        return Neighbours(np.take_along_axis(candidates, order, 1), _in_order(near, order, self.space.metric))


def has_index() -> bool:
    return find_spec("faiss") is not None


def build_index(
    vectors: Vectors,
    k: int = 10,
    *,
    metric: Metric = "cosine",
    queries: Vectors | None = None,
    recall: float = 0.95,
    seed: int = 0,
    measure_on: int = MEASURED_ON,
) -> Index:
    """An index whose searches for the k nearest find at least a share `recall` of them, as far as can be measured.

    queries  what will be searched for, such as photos among captions, which lie elsewhere: it is measured with some of
             them (default: the vectors themselves)
    """
    import faiss

    vectors = checked(vectors)
    space, size, random = Space(vectors, metric), vectors.shape[1], np.random.default_rng(seed)
    count = max(min(int(4 * len(vectors) ** 0.5), len(vectors) // 32), 1)
    by_product = metric == "cosine"
    centres = faiss.IndexFlatIP(size) if by_product else faiss.IndexFlatL2(size)
    lists = faiss.IndexIVFFlat(centres, size, count, faiss.METRIC_INNER_PRODUCT if by_product else faiss.METRIC_L2)
    lists.cp.seed, lists.cp.min_points_per_centroid, lists.cp.max_points_per_centroid = seed, 1, _SAMPLE
    lists.train(space.vectors)
    lists.add(space.vectors)
    index = Index(vectors, space, lists)

    among = vectors if queries is None else checked(queries, width=size)
    sample = np.sort(random.permutation(len(among))[:measure_on])
    truth = nearest(vectors, k + (queries is None), queries=among[sample], metric=metric).indices
    rows = None
    if queries is None:
        rows = sample
        truth = np.stack([row[row != this][: truth.shape[1] - 1] for row, this in zip(truth, sample, strict=True)])
    index.measured_k, index.probes = truth.shape[1], min(4, count)
    while True:
        hits = (index._search(among[sample], index.measured_k, rows).indices[:, :, None] == truth[:, None]).any(2)
        index.recall = float(hits.mean()) if hits.size else 1.0
        if index.recall >= recall or index.probes == count:
            return index
        index.probes = min(index.probes * 2, count)


# Kernels

_CHUNK = 64  # products looked at before asking whether any is of use: the compiler makes vector instructions of it


@compiled
def _insert(scores: Vectors, indices: NDArray[np.int64], row: int, score: float, index: int) -> None:
    """Put a score that beats the last one in its place, behind its equals."""
    at = scores.shape[1] - 1
    while at > 0 and scores[row, at - 1] < score:
        scores[row, at] = scores[row, at - 1]
        indices[row, at] = indices[row, at - 1]
        at -= 1
    scores[row, at] = score
    indices[row, at] = index


@compiled
def _keep_rows(begin: int, end: int, products: Vectors, half_squares: Vectors, top: int, left: int,
               scores: Vectors, indices: NDArray[np.int64]) -> None:  # fmt: skip
    last, width = scores.shape[1] - 1, products.shape[1]
    for i in range(begin, end):
        row = top + i
        for start in range(0, width, _CHUNK):
            some = products[i, start : start + _CHUNK]
            halves = half_squares[left + start : left + start + len(some)]
            least, any_better = scores[row, last], False
            for j in range(len(some)):
                any_better |= some[j] - halves[j] > least
            if any_better:
                for j in range(len(some)):
                    score = some[j] - halves[j]
                    if score > scores[row, last]:
                        _insert(scores, indices, row, score, left + start + j)


@compiled
def _keep_columns(begin: int, end: int, products: Vectors, half_squares: Vectors, top: int, left: int,
                  scores: Vectors, indices: NDArray[np.int64]) -> None:  # fmt: skip
    last = scores.shape[1] - 1
    lasts = scores[left : left + end, last].copy()  # side by side, for vector instructions
    for i in range(products.shape[0]):
        half = half_squares[top + i]
        for start in range(begin, end, _CHUNK):
            some = products[i, start : min(start + _CHUNK, end)]
            least, any_better = lasts[start : start + len(some)], False
            for j in range(len(some)):
                any_better |= some[j] - half > least[j]
            if any_better:
                for j in range(len(some)):
                    score = some[j] - half
                    if score > least[j]:
                        _insert(scores, indices, left + start + j, score, top + i)
                        least[j] = scores[left + start + j, last]


@compiled
def _score_pairs(begin: int, end: int, queries: Vectors, vectors: Vectors, query_norms: NDArray[np.float64],
                 norms: NDArray[np.float64], euclidean: bool, rows: NDArray[np.int64], indices: NDArray[np.int64],
                 scores: NDArray[np.float64]) -> None:  # fmt: skip
    size = vectors.shape[1]
    for r in range(begin, end):
        for c in range(indices.shape[1]):
            x, y = queries[rows[r]], vectors[indices[r, c]]
            total = 0.0
            if euclidean:
                for d in range(size):
                    total += (np.float64(x[d]) - np.float64(y[d])) ** 2
                scores[r, c] = -np.sqrt(total)
            else:
                for d in range(size):
                    total += np.float64(x[d]) * np.float64(y[d])
                scale = query_norms[rows[r]] * norms[indices[r, c]]
                scores[r, c] = min(max(total / scale, -1.0), 1.0) if scale > 0 else 0.0


def _norms(vectors: Vectors) -> NDArray[np.float64]:
    norms = np.empty(len(vectors))
    for start in range(0, len(vectors), _BLOCK):
        piece = vectors[start : start + _BLOCK].astype(np.float64)
        norms[start : start + _BLOCK] = np.sqrt((piece**2).sum(1))
    return norms
