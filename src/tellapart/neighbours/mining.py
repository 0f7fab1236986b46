"""Groups of photos of a collection that look alike: by the vectors of the photos, or of their captions.

By image: the photos whose vectors are nearest to the target's.
By caption (the similar groups of GEG): the score of a photo is the best fit of any of its captions to the target.

Photos are compared within their split only.  Photos with the same bytes count as one, by the name of the first; the
others are its exact copies.  What is more alike than `duplicates_above` is a near-duplicate and no look-alike: by
`appearance`, features of what a photo looks like.  A retriever's vectors say what it is about: two bathrooms are as
near to each other there as two copies of one photo.  Near-duplicates make up sets, such as the frames of a
burst: nothing of a photo's own set is its look-alike, and of another set only the most similar one is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capscore.errors import UserError
from tellapart.neighbours.groups import Groups, Photo, Rule, joined
from tellapart.neighbours.search import Metric, Neighbours, Vectors, build_index, first_not_finite, has_index, nearest

LARGE = 200_000  # vectors; above this an index is used where faiss is installed, for the exact search takes hours
_MORE = 4  # neighbours beyond those wanted, in the place of near-duplicates; and how much deeper a second search goes


@dataclass(frozen=True)
class Captions:
    """Captions of the photos, as vectors in one space with those of the photos."""

    vectors: Vectors  # (M, E)
    photo: NDArray[np.int64]  # (M,) the position of its photo


def mine(
    photos: Sequence[Photo],
    vectors: Vectors,
    rule: Rule,
    captions: Captions | None = None,
    *,
    appearance: Vectors | None = None,
) -> Groups:
    """The groups of photos whose vectors (P, E) are given; `captions` for the rule by caption.

    appearance  (P, D) features by which near-duplicates are found; default: the vectors
    """
    if not len(photos) == len(vectors):
        raise ValueError(f"{len(photos)} photos and {len(vectors)} vectors")
    if (rule.by == "caption") != (captions is not None):
        raise ValueError("captions are for the rule by caption")
    if rule.by == "caption" and rule.metric != "cosine":
        raise UserError("by caption, photos are compared by the cosine only.")
    bad = first_not_finite(vectors)
    if bad is not None:
        raise UserError(f"{photos[bad].file}: its vector has a value that is not a finite number.")
    groups = Groups.empty(rule, list(photos))
    by_split: dict[str, list[int]] = {}
    for position, photo in enumerate(photos):
        by_split.setdefault(photo.split, []).append(position)
    for members in by_split.values():
        _mine_split(groups, np.array(members), vectors, captions, appearance)
    return groups


def _mine_split(
    groups: Groups,
    members: NDArray[np.int64],
    vectors: Vectors,
    captions: Captions | None,
    appearance: Vectors | None,
) -> None:
    same: dict[str, list[int]] = {}
    for position in members.tolist():
        same.setdefault(groups.photos[position].sha256, []).append(position)
    copies = list(same.values())
    first = np.array([positions[0] for positions in copies])  # (U,) the photo that stands for its copies
    rule = groups.rule
    alike = Search((vectors if appearance is None else appearance)[first], rule.k + _MORE)
    duplicates = _near_duplicates(alike, rule.duplicates_above)
    pairs = ((unique, other) for unique, others in duplicates.items() for other, _ in others)
    set_of = joined(len(first), pairs)  # (U,)
    if captions is not None:
        number = np.full(len(groups), -1)  # of each photo among the different ones
        for unique, positions in enumerate(copies):
            number[positions] = unique
        here = (number[captions.photo] >= 0) & captions.vectors.any(1)  # zeros: a caption that says nothing
        of_photo = number[captions.photo[here]]
        usual = -(-len(of_photo) // len(first))  # captions of a photo: if each has so many, k + 1 of them will do
        fitting = Search(captions.vectors[here], usual * (rule.k + 1), queries=vectors[first])
    else:
        of_photo = np.arange(len(first))
        reuse = rule.metric == "cosine" and appearance is None
        fitting = alike if reuse else Search(vectors[first], rule.k + _MORE, metric=rule.metric)
    indices, scores = _look_alikes(fitting, of_photo, rule.k, set_of)
    if rule.metric == "cosine":  # zeros, such as of a photo known by captions that has none: equally like everything
        indices[~vectors[first].any(1)] = -1
    for unique, positions in enumerate(copies):
        for position in positions:
            present = indices[unique] >= 0
            groups.indices[position, present] = first[indices[unique, present]]
            groups.scores[position, present] = scores[unique, present]
            if unique in duplicates:
                groups.near_duplicates[position] = [(int(first[other]), score) for other, score in duplicates[unique]]
            if len(positions) > 1:
                groups.copies[position] = [copy for copy in positions if copy != position]
    recalls = [search.recall for search in (alike, fitting) if search.recall is not None]
    groups.recall = min([*recalls, *([] if groups.recall is None else [groups.recall])], default=None)


class Search:
    """Neighbours of all queries, and more of them for those that need more; by an index where there are very many."""

    def __init__(self, vectors: Vectors, width: int, *, metric: Metric = "cosine", queries: Vectors | None = None):
        self.vectors, self.metric = vectors, metric
        self.queries = vectors if queries is None else queries
        by_index = len(vectors) > LARGE and has_index()
        self._index = build_index(vectors, width, metric=metric, queries=queries) if by_index else None
        self.recall = self._index.recall if self._index else None
        if self._index:
            self.first = self._index.search(width, queries)
        else:
            self.first = nearest(vectors, width, metric=metric, queries=queries)

    def deepening(self) -> Iterator[tuple[NDArray[np.int64], Neighbours, list[int]]]:
        """Rows with their neighbours, and a list to be filled with those rows that need more."""
        rows, neighbours = np.arange(len(self.queries)), self.first
        while len(rows):
            need: list[int] = []
            yield rows, neighbours, need
            width = neighbours.indices.shape[1]
            if width >= len(self.vectors) - 1:
                return
            width, rows = max(width, 1) * _MORE, np.array(need, np.int64)
            # Here a vector finds itself too: the reader leaves it out.
            if self._index:
                neighbours = self._index.search(width, self.queries[rows])
            else:
                neighbours = nearest(self.vectors, width, metric=self.metric, queries=self.queries[rows])


def _near_duplicates(search: Search, above: float) -> dict[int, list[tuple[int, float]]]:
    """Photo -> those with a cosine above the threshold, best first."""
    duplicates = {}
    for rows, neighbours, need in search.deepening():
        close = (neighbours.scores > above) & (neighbours.indices >= 0) & (neighbours.indices != rows[:, None])
        for at in np.flatnonzero(close.any(1)).tolist():
            row, which = int(rows[at]), close[at]
            duplicates[row] = list(
                zip(neighbours.indices[at, which].tolist(), neighbours.scores[at, which].tolist(), strict=True)
            )
            if which[-1]:
                need.append(row)
    return duplicates


def _look_alikes(
    search: Search, of_photo: NDArray[np.int64], k: int, set_of: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(U, k) photos, -1 where there are no more, and their scores."""
    indices = np.full((len(search.queries), k), -1)
    scores = np.zeros((len(search.queries), k), np.float32)
    for rows, neighbours, need in search.deepening():
        places = neighbours.indices
        owners = np.where(places >= 0, of_photo[places], -1) if places.size else places
        for row, others, near in zip(rows.tolist(), owners.tolist(), neighbours.scores.tolist(), strict=True):
            passed = {set_of[row]}
            place = 0
            for other, score in zip(others, near, strict=True):
                if other >= 0 and set_of[other] not in passed:
                    indices[row, place], scores[row, place] = other, score
                    passed.add(set_of[other])
                    place += 1
                    if place == k:
                        break
            if place < k and -1 not in others:
                need.append(row)
    return indices, scores
