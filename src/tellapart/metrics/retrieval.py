"""Could a listener find the photo by its caption?  Measures of retrieval, as pure functions of embeddings.

    R@K[r]              captions whose own photo is among the K best of the whole split by retriever r
    P@1/100[r]          the own photo is the best of a pool of 100: the split is shuffled and cut into pools, five times
    P@1/100-hard[r]     the own photo is the best among itself and the 99 photos that look most like it
    GEG-Avg, GEG-Min[r] by how much a caption fits its photo better than the photo's five look-alikes: than they do on
                        average, or than the one that it fits best (group embedding gap, Eqs. 3 and 4)
    TT R@K              as R@K, but the photos are known by their references, and the listener only reads
    TT@6                the same within a look-alike group: the photo and the five that look most like it
    self R@K            as R@K, but the listener is the captioner itself: log p(caption | photo)

A tie counts against the caption.  Every measure is given as sums over photos, so that intervals and paired tests are
those of `bootstrap`.  A photo with several captions counts once, by their mean; a photo without one is no target
and stays a distractor.

The look-alikes of GEG are those of its paper (Eq. 2) where the photos have captions: the photos whose captions fit the
photo best.  Where they have none, as in a folder of photos, they are the nearest by the retriever's image embeddings.

At the end: functions of similarities for numpy arrays and torch tensors alike, which rewards share; and the average
precision of words that a tagger gives photos, plain and as Fang et al. (2015) weigh it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from capscore.measures import Score
from capscore.progress import Progress
from capscore.statistics import Statistics, quotients

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]

RECALLS = (1, 5, 10)
POOL = 100
SHUFFLES = 5
GROUP = 5
KEPT = 100  # photos of a ranking that are kept for the TREC files
_BLOCK = 4_000_000  # similarities at once: 16 MB, and some copies

Array = TypeVar("Array", "NDArray[Any]", "Tensor")

_FAR = 1e9  # below every similarity
TIE = 1e-6  # nearer than this, cosines in single precision are equal: two copies of a photo may differ by rounding

# Names

Kind = Literal["R", "P", "P-hard", "GEG-Avg", "GEG-Min", "TT R", "TT", "self R"]
_NAME = re.compile(
    r"(?:(?P<recall>(?:TT |self )?R|TT)@(?P<k>[1-9]\d*)|P@1/(?P<pool>[1-9]\d*)(?P<hard>-hard)?"
    r"|(?P<gap>GEG-(?:Avg|Min)))(?:\[(?P<retriever>.+)\])?",
    re.ASCII,
)

_MEANINGS: dict[Kind, str] = {
    "R": "By looking: {by}, a model that sees the photos, searches them by the caption; so many captions bring the "
    "right photo {place}.",
    "P": "Captions by which {by}, which sees the photos, picks the right one of {k} drawn by chance.",
    "P-hard": "Captions by which {by}, which sees the photos, picks the right one of the {k} most alike.",
    "GEG-Avg": "By how much a caption fits its photo better than its look-alikes on average, by {by}.",
    "GEG-Min": "By how much a caption fits its photo better than the closest look-alike, by {by}.",
    "TT R": "Text to text: a model that only reads compares the caption with what people wrote about every photo; "
    "so many captions bring the right photo {place}.",
    "TT": "Text to text among look-alikes: a model that only reads picks the right one of {k} photos that look alike, "
    "by what people wrote about them. Chance is 1 in {k}.",
    "self R": "The captioner itself looks for the photo by its caption; so many bring it {place}.",
}
SCORES = {
    kind: Score(kind, meaning, digits=2 if kind.startswith("GEG") else 1) for kind, meaning in _MEANINGS.items()
}  # what each figure says, for people


@dataclass(frozen=True)
class Name:
    """A measure of retrieval: `str` writes it as tables and files have it, `parse` reads that.

    k          of R@K, and the size of a pool (P@1/100) or a group (TT@6); 0 where there is none
    retriever  any text on one line; none in "self R", where the captioner listens, and in text to text by MiniLM
    """

    kind: Kind
    k: int = 0
    retriever: str = ""

    def __post_init__(self) -> None:
        has_k, may_lack_retriever = not self.kind.startswith("GEG"), self.kind in ("TT R", "TT", "self R")
        if self.kind not in get_args(Kind) or (self.k > 0) != has_k or self.k < 0:
            raise ValueError(f"there is no measure of retrieval {self.kind} with k = {self.k}")
        if not (self.retriever or may_lack_retriever) or (self.retriever and self.kind == "self R"):
            raise ValueError(f"{self.kind} {'needs a' if not self.retriever else 'has no'} retriever")
        if len(self.retriever.splitlines()) > 1 or self.retriever.endswith(("\n", "\r")):
            raise ValueError("the name of a retriever is one line")

    def __str__(self) -> str:
        if self.kind in ("P", "P-hard"):
            measure = f"P@1/{self.k}{self.kind[1:]}"
        else:
            measure = f"{self.kind}@{self.k}" if self.k else self.kind
        return f"{measure}[{self.retriever}]" if self.retriever else measure


def parse(text: str) -> Name | None:
    """The measure that a name stands for; none if it is no measure of retrieval."""
    parts = _NAME.fullmatch(text)
    if not parts:
        return None
    try:
        if parts["pool"]:
            return Name("P-hard" if parts["hard"] else "P", int(parts["pool"]), parts["retriever"] or "")
        kind: Kind = parts["recall"] or parts["gap"]  # type: ignore[assignment]  # the pattern allows no other
        return Name(kind, int(parts["k"] or 0), parts["retriever"] or "")
    except ValueError:  # a retriever is missing, or is there where none can be
        return None


# One caption after another


def ranks(similarity: Floats, targets: Numbers, *, tie: float = TIE) -> Numbers:
    """(N, P) similarities and each caption's photo (N,) -> how many others fit it at least as well; 0 is best."""
    if not np.isfinite(similarity).all():
        raise ValueError("a similarity is not a finite number")
    return ranks_of_matches(similarity, _of_targets(similarity, targets), tie)


def picked(similarity: Floats, targets: Numbers, rivals: Numbers) -> NDArray[np.bool_]:
    """(N,): whether each caption fits its target photo better than all rivals (N, R).

    The target photo among its rivals, and -1, are passed over.
    """
    of_rivals = np.take_along_axis(similarity, rivals, 1)
    of_rivals[(rivals == targets[:, None]) | (rivals < 0)] = -np.inf
    best: NDArray[np.bool_] = _of_targets(similarity, targets) - np.float32(TIE) > of_rivals.max(1, initial=-np.inf)
    return best


def gaps(similarity: Floats, targets: Numbers, groups: Numbers) -> tuple[Floats, Floats]:
    """GEG-Avg and GEG-Min (N,) of captions whose photos have look-alikes (N, K); -1 stands for none.

    0 where a photo has no look-alike at all.
    """
    exists, of_group, match = groups >= 0, np.take_along_axis(similarity, groups, 1), _of_targets(similarity, targets)
    average = gap_to_mean(match, of_group, exists)
    least = gap_to_highest(match, of_group, exists)
    alone = ~exists.any(1)
    return np.where(alone, 0, average), np.where(alone, 0, least)


def best(similarity: Floats, targets: Numbers, count: int) -> tuple[Numbers, Floats]:
    """The `count` photos that fit each caption best, best first, and their similarities.

    The target photo stands behind all that tie with it: its place is its rank.
    """
    rows = np.arange(len(targets))
    order_by = similarity.copy()
    order_by[rows, targets] = np.nextafter(_of_targets(similarity, targets) - np.float32(TIE), np.float32(-np.inf))
    chosen = _highest(order_by, count)
    return chosen, np.take_along_axis(similarity, chosen, 1)


def _highest(similarity: Floats, count: int) -> Numbers:
    """The places of the highest `count` of each row, highest first."""
    count = min(count, similarity.shape[1])
    chosen = np.argpartition(-similarity, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(similarity, chosen, 1), axis=1, kind="stable")
    return np.take_along_axis(chosen, order, 1).astype(np.int64)


def _of_targets(similarity: Floats, targets: Numbers) -> Floats:
    return similarity[np.arange(len(targets)), targets]


def blocks(captions: Floats, photos: Floats) -> Iterator[tuple[slice, Floats]]:
    """Slices of the captions with their similarity to all photos: 40,000 by 40,000 at once would be 6 GB."""
    step = max(1, _BLOCK // max(len(photos), 1))
    for start in range(0, len(captions), step):
        part = slice(start, min(start + step, len(captions)))
        yield part, captions[part] @ photos.T


# The photos of a split, as one retriever sees them


@dataclass(frozen=True)
class Gallery:
    """Photos to be found, and what does not depend on the captions.

    photos       (P, E)  unit-norm embeddings
    pools        (S, C, 100)  photos, shuffled by a seed and cut into C pools, S times; the rest is dropped
    distractors  (P, 99)  the photos most like each one; -1 where there are too few
    look_alikes  (P, K)   the first of them, near-duplicates too
    groups       (P, K)   the look-alikes of GEG; -1 where there are too few
    """

    photos: Floats
    pools: Numbers
    distractors: Numbers
    look_alikes: Numbers
    groups: Numbers


def gallery(
    photos: Floats,
    copies: Numbers,
    *,
    near_duplicates: float | None = None,
    groups: Numbers | None = None,
    seed: int = 0,
) -> Gallery:
    """copies (P,) is equal for photos that are copies of each other: these are never each other's look-alikes.

    Photos whose cosine is above `near_duplicates` are no hard distractors either (DiscriTune: 0.8 by CLIP).
    Without `groups` those of GEG are the photos most alike.
    """
    if not np.isfinite(photos).all():
        raise ValueError("an embedding has a number that is not finite")
    nearest = neighbours(photos, copies, max(POOL - 1, GROUP))
    distractors = nearest if near_duplicates is None else neighbours(photos, copies, POOL - 1, below=near_duplicates)
    alike = nearest[:, :GROUP]
    of_geg = alike if groups is None else groups
    return Gallery(photos, pools(len(photos), seed=seed), distractors[:, : POOL - 1], alike, of_geg)


def pools(photos: int, *, size: int = POOL, shuffles: int = SHUFFLES, seed: int = 0) -> Numbers:
    """(shuffles, photos // size, size)"""
    random, count = np.random.default_rng(seed), photos // size
    cut = [random.permutation(photos)[: count * size].reshape(count, size) for _ in range(shuffles)]
    return np.stack(cut).astype(np.int64)


def neighbours(photos: Floats, copies: Numbers, k: int, *, below: float | None = None) -> Numbers:
    """(P, k): the photos whose embeddings are nearest to each photo's, nearest first; -1 where there are no more.

    A photo's copies are left out, as are photos whose cosine is above `below`.
    """
    nearest = np.full((len(photos), k), -1, np.int64)
    with Progress("look-alikes", len(photos)) as bar:
        for part, similarity in blocks(photos, photos):
            out = copies[part, None] == copies[None, :]
            if below is not None:
                out |= similarity > below
            similarity[out] = -np.inf
            chosen = _highest(similarity, k)
            counts = np.take_along_axis(similarity, chosen, 1) > -np.inf
            nearest[part, : chosen.shape[1]] = np.where(counts, chosen, -1)
            bar.advance(part.stop - part.start)
    return nearest


@dataclass(frozen=True)
class Retrieved:
    """A retriever's ranking of all photos by each of N captions, which should find the photos `targets`.

    ranks    (N,)    number of other photos that fit at least as well
    picked   (N, S)  whether the target photo was best in its pool, in each shuffle
    pooled   (N, S)  whether it was in a pool
    hard     (N,)    whether it was best among its hard distractors
    average, least  (N,)  GEG-Avg and GEG-Min
    best, scores    (N, 100)  the best photos and their similarities
    """

    targets: Numbers
    ranks: Numbers
    picked: NDArray[np.bool_]
    pooled: NDArray[np.bool_]
    hard: NDArray[np.bool_]
    average: Floats
    least: Floats
    best: Numbers
    scores: Floats


def find(captions: Floats, targets: Numbers, among: Gallery, what: str) -> Retrieved:
    """Look for the photos `targets` (N,) of captions (N, E); `what` is the progress bar's name."""
    if not len(captions):
        raise ValueError("there is no caption to search with")
    pool_of = np.full((len(among.pools), len(among.photos)), -1, np.int64)
    for shuffle, cut in enumerate(among.pools):
        pool_of[shuffle, cut.ravel()] = np.repeat(np.arange(len(cut)), cut.shape[1])
    pooled = (pool_of[:, targets] >= 0).T
    parts = []
    with Progress(what, len(captions), unit="caption") as bar:
        for part, similarity in blocks(captions, among.photos):
            wanted = targets[part]
            right = np.zeros((len(wanted), len(among.pools)), bool)
            for shuffle, cut in enumerate(among.pools):
                if len(cut):  # a photo in no pool is compared with some pool, and not counted
                    right[:, shuffle] = picked(similarity, wanted, cut[pool_of[shuffle, wanted]])
            place = ranks(similarity, wanted)
            hard = picked(similarity, wanted, among.distractors[wanted])
            group_gaps = gaps(similarity, wanted, among.groups[wanted])
            parts.append((place, right, hard, *group_gaps, *best(similarity, wanted, KEPT)))
            bar.advance(len(wanted))
    place, right, hard, average, least, chosen, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Retrieved(targets, place, right, pooled, hard, average, least, chosen, scores)


def measured(retrieved: Retrieved, among: Gallery, retriever: str) -> tuple[dict[Kind, Statistics], dict[str, str]]:
    """The measures by a retriever, each with a row a photo, and why others could not be taken.

    GEG-Min is in the statistics of GEG-Avg.
    """
    photos, targets = len(among.photos), retrieved.targets
    statistics: dict[Kind, Statistics] = {"R": recalls(retrieved.ranks, targets, photos, "R", retriever)}
    lacks: dict[str, str] = {}
    few = f"a pool has {POOL} photos, and there are {photos}."

    name = str(Name("P", POOL, retriever))
    if retrieved.pooled.any():
        share = retrieved.picked.sum(1, where=retrieved.pooled) / np.maximum(retrieved.pooled.sum(1), 1)
        statistics["P"] = _means([name], share[:, None], targets, photos, retrieved.pooled.sum(1))
    else:
        lacks[name] = few

    name, enough = str(Name("P-hard", POOL, retriever)), (among.distractors >= 0).sum(1) == POOL - 1
    if enough[targets].any():
        statistics["P-hard"] = _means([name], retrieved.hard[:, None], targets, photos, enough[targets])
    else:
        lacks[name] = few if photos < POOL else f"no photo has {POOL - 1} others that are no near-duplicates of it."

    names = [str(Name("GEG-Avg", retriever=retriever)), str(Name("GEG-Min", retriever=retriever))]
    alike = among.groups[:, 0] >= 0  # nearest first, so that the first is there if any is
    if alike[targets].any():
        gap = np.stack([retrieved.average, retrieved.least], 1)
        statistics["GEG-Avg"] = _means(names, gap, targets, photos, alike[targets])
    else:
        lacks |= dict.fromkeys(names, "no photo has a look-alike.")
    return statistics, lacks


def recalls(
    ranks: Numbers,
    targets: Numbers,
    photos: int,
    kind: Literal["R", "TT R", "self R"],
    retriever: str = "",
    *,
    at: Sequence[int] = RECALLS,
) -> Statistics:
    """R@1, R@5 and R@10, if not others, of captions with these ranks (N,), in a row for each of all `photos`."""
    names = [str(Name(kind, k, retriever)) for k in at]
    return _means(names, ranks[:, None] < np.array(at), targets, photos, np.ones(len(targets)))


def _means(names: list[str], values: NDArray[Any], targets: Numbers, photos: int, weights: NDArray[Any]) -> Statistics:
    """Values (N, M) of captions: of each photo the mean over its captions.

    A caption whose weight is 0 does not count; one that was measured more often counts for more.
    """
    weights = weights.astype(np.float64)
    captions = np.bincount(targets, weights > 0, minlength=photos)
    scale = np.divide(1, captions, out=np.zeros(photos), where=captions > 0)[targets]
    below = np.bincount(targets, weights * scale, minlength=photos)
    columns = []
    for column in values.astype(np.float64).T:
        columns += [np.bincount(targets, column * weights * scale, minlength=photos), below]
    return Statistics(tuple(names), np.stack(columns, 1), quotients)


# Text to text


@dataclass(frozen=True)
class Read:
    """A text-to-text encoder's ranking of all photos by each of N captions, which should find the photos `targets`.

    ranks    (N,) number of other photos that fit at least as well
    picked   (N,) whether the target photo was best in its group
    grouped  (N,) whether it has a group of full size
    """

    targets: Numbers
    ranks: Numbers
    picked: NDArray[np.bool_]
    grouped: NDArray[np.bool_]

    def only(self, chosen: Numbers) -> Read:
        """The ranking by some of the captions."""
        return Read(self.targets[chosen], self.ranks[chosen], self.picked[chosen], self.grouped[chosen])


def text_to_text(
    captions: Floats,
    targets: Numbers,
    references: Floats,
    counts: Numbers,
    groups: Numbers | None = None,
    *,
    of_people: bool,
) -> Read:
    """Look for the photos of captions (N, E) by the mean (P, E) of each photo's references' vectors.

    counts     (P,) references of each photo, none 0: of a photo without one nothing is known, and it has no part here
    groups     (P, K) the photos that look most like each; -1: there is none
    of_people  the captions are among the references.  A caption is then left out of its target photo's, which must have
               another.
    """
    if counts.min(initial=1) < 1 or (of_people and counts[targets].min(initial=2) < 2):
        raise ValueError("a photo has no reference")
    groups = np.full((len(references), 0), -1) if groups is None else groups
    parts = [(np.zeros(0, np.int64), np.zeros(0, bool))]
    with Progress("text to text", len(captions), unit="caption") as bar:
        for part, similarity in blocks(captions, references):
            wanted, rows = targets[part], np.arange(part.stop - part.start)
            if of_people:
                itself = (captions[part] ** 2).sum(1)  # 1, or 0 for a caption without words
                of_all = similarity[rows, wanted] * counts[wanted]
                similarity[rows, wanted] = mean_of_others(of_all, itself, counts[wanted])
            parts.append((ranks(similarity, wanted), picked(similarity, wanted, groups[wanted])))
            bar.advance(len(wanted))
    place, right = (np.concatenate(column) for column in zip(*parts, strict=True))
    full: NDArray[np.bool_] = (groups >= 0).sum(1) == max(groups.shape[1], 1)
    return Read(targets, place, right, full[targets])


def within_groups(read: Read, targets: Numbers, photos: int, size: int, retriever: str = "") -> Statistics | None:
    """TT@6 of captions of the photos `targets` (N,), a row for each of all `photos`; none if no photo has a group."""
    if not read.grouped.any():
        return None
    return _means([str(Name("TT", size, retriever))], read.picked[:, None], targets, photos, read.grouped)


# Functions of similarities that measures and rewards share, for numpy arrays and torch tensors alike


def ranks_of_matches(similarity: Array, match: Array, tie: float = TIE) -> Array:
    """Number of others that fit a caption at least as well as its photo; 0 is best, and a tie counts against it.

    similarity  (N, P) to all photos; -inf where a photo does not count
    match       (N,)   to the caption's photo, which is one of them
    """
    others: Array = (similarity >= (match - tie)[:, None]).sum(1) - 1
    return others


def gap_to_mean(match: Array, group: Array, exists: Array) -> Array:
    """By how much a caption fits its photo better than a group on average: G_avg (GEG, Eq. 3).

    match    (N,)   similarity of each caption to its photo
    group    (N, k) to the look-alikes of that; any finite value where there is none
    exists   (N, k) False where there is no further look-alike
    returns  (N,)   `match` where there is none at all
    """
    gap: Array = match - (group * exists).sum(1) / exists.sum(1).clip(1)
    return gap


def gap_to_highest(match: Array, group: Array, exists: Array) -> Array:
    """The same to the one of the group that a caption fits best: G_min (GEG, Eq. 4)."""
    if not group.shape[1]:
        return match
    highest: Any = (group - ~exists * (group + _FAR)).max(1)
    highest = getattr(highest, "values", highest)  # torch also gives the places
    gap: Array = match - highest * exists.any(1)
    return gap


def mean_of_others(total: Array, left_out: Array, count: Array | int) -> Array:
    """The mean over `count`, at least 2, without one of them.

    total     the sum over all of them
    left_out  what this one adds to it
    """
    mean: Array = (total - left_out) / (count - 1)
    return mean


# Average precision of words that a tagger gives photos.  P photos, W words.


def average_precision(scores: NDArray[np.floating], has: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(W,) the mean precision of each word at the photos that have it; photos of equal score count together.

    scores, has   (P, W); a word that no photo has gets NaN

    >>> average_precision(np.array([[0.9], [0.8], [0.1]]), np.array([[True], [False], [True]])).round(4)
    array([0.8333])
    """
    return np.array([_of_word(scores[:, word], has[:, word]) for word in range(scores.shape[1])])


def _of_word(scores: NDArray[np.floating], has: NDArray[np.bool_]) -> float:
    if not has.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ends = _ends(scores[order])
    hits = np.cumsum(has[order])[ends]
    recall = np.diff(hits, prepend=0) / hits[-1]
    return float((recall * hits / (ends + 1)).sum())


def weighted_average_precision(
    scores: NDArray[np.floating], mentions: NDArray[np.integer], captions: int
) -> NDArray[np.float64]:
    """AP as the program of Fang et al. computes it, (W,): what more people mention counts more.

    A photo whose captions mention the word n times is n true positives, each of 1 - 1/K; if n is 1 it is also 1/K of a
    false one, and if n is 0 a whole one.  The area is under the largest precision at each recall or beyond.

    mentions   (P, W) how many of a photo's captions have the word
    captions   K, of each photo; with one alone nothing is known of agreement, and all are NaN
    """
    return np.array([_weighted(scores[:, word], mentions[:, word], captions) for word in range(scores.shape[1])])


def _weighted(scores: NDArray[np.floating], mentions: NDArray[np.integer], captions: int) -> float:
    if captions < 2 or not mentions.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ends = _ends(scores[order])
    counts = mentions[order]
    true = np.cumsum(counts * (1 - 1 / captions))[ends]
    false = np.cumsum(np.where(counts == 0, 1.0, np.where(counts == 1, 1 / captions, 0.0)))[ends]
    precision = np.maximum.accumulate((true / (true + false))[::-1])[::-1]
    return float((np.diff(true, prepend=0.0) / true[-1] * precision).sum())


def _ends(scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """The last place of each score in a row that falls."""
    return np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
