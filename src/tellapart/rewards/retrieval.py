"""Rewards by a frozen retriever: does a caption find its own photo?

`FrozenRetriever` has embedded all photos of the data, and embeds captions.  f(I, c) is the cosine of photo and caption:

similarity       f(I, c)                                                      ER, the ablation of GEG
geg_avg          f(I, c) - mean of f(I', c) over the look-alikes I' of I      GEG, Eq. 3
geg_min          f(I, c) - maximum of f(I', c) over the look-alikes           GEG, Eq. 4
gd_neighbour     R_H = -max(0, margin + f(I', c) - f(I, c)), I' the nearest   GLD, Eq. 6
gd_batch         R_B = the hinges against photos and captions of the batch    GLD, Eq. 7
gd               R_GD = R_H + R_B                                             GLD, Eq. 8
log_probability  log softmax of scale * f over candidates, at the own photo   DiscriTune
accuracy         1 where the own photo is the best of the candidates          DiscriTune
hard_positives   log_probability of the view of I that the caption fits least RRG
image_rank, text_rank   max(0, 1 - ln(1 + rank) / ln(1 + base))               ours

GEG: "CLIP-guided group optimisation".  GLD: Wu et al., "Fine-grained image captioning with global-local discriminative
objective".  N captions, P photos of the data, B of the batch, E embedding size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from capscore.errors import UserError
from tellapart.data.tokenizers import WordTokenizer
from tellapart.metrics.retrieval import TIE, gap_to_highest, gap_to_mean, mean_of_others, ranks_of_matches
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import Reward, SampledCaptions, Term
from tellapart.rewards.words import RewardVocabulary

_BATCH = 4096  # photos that are embedded at once


class EmbedCaptions:
    """Sampled captions -> (N, E) by a retriever; a caption without a word is zeros.

    Word ids are translated to the retriever's own, which is quicker than reading texts.  A reward vocabulary has ids
    for words that it cannot spell: its captions are read as texts.
    """

    def __init__(self, retriever: Retriever, vocabulary: WordTokenizer):
        if not isinstance(vocabulary, RewardVocabulary):
            retriever.reader.require_words_of(vocabulary)
        self.retriever = replace(retriever, encoder=None)  # it only reads: a pickle without the encoder is smaller
        self.vocabulary = vocabulary

    def __call__(self, sampled: SampledCaptions) -> Tensor:
        if sampled.texts is not None:
            return self.retriever.embed_captions(sampled.texts)
        return self.retriever.embed_tokens(sampled.words, self.vocabulary)


class FrozenRetriever:
    """What a frozen retriever knows of the photos, and how it embeds captions.

    name        of the retriever, as logs show it
    images      (P, E) unit norm; of a text-to-text retriever the mean of the references' vectors.  Zeros: a photo of
                which nothing is known
    pool        (P,) the number of the data set that each photo is from
    scale       what a cosine is multiplied with before a softmax
    embed       sampled captions -> (N, E)
    references  (P,) how many a photo is known by; none where it is seen.  A caption that is one of them is compared
                with the others only: it would find itself

    What it answers is on the device of the captions' tokens, wherever the photos are.
    """

    def __init__(
        self,
        name: str,
        images: Tensor,
        pool: Tensor,
        scale: float,
        embed: Callable[[SampledCaptions], Tensor],
        references: Tensor | None = None,
    ):
        for what, numbers in (("pool", pool), ("references", references)):
            if numbers is not None and numbers.shape != images.shape[:1]:
                raise ValueError(f"{len(images)} photos and {what} of shape {tuple(numbers.shape)}")
        finite = images.isfinite().all(1)
        if not finite.all():
            bad = int((~finite).nonzero()[0]) + 1
            raise UserError(f"{name}: the vector of photo number {bad} has a value that is not a finite number.")
        self.name, self.images, self.pool, self.scale, self.embed = name, images, pool, scale, embed
        self.references = references
        barrier = torch.where(images.any(1), 0.0, -torch.inf)
        self._galleries = {number: _gallery(barrier, pool == number) for number in torch.unique(pool).tolist()}
        self._embedded: list[tuple[SampledCaptions, Tensor]] = []
        self._similarities: tuple[SampledCaptions, Tensor] | None = None

    @classmethod
    def of_photos(
        cls, retriever: Retriever, vocabulary: WordTokenizer, pooled: Tensor, pool: Tensor
    ) -> FrozenRetriever:
        """pooled (P, D) features of the retriever's own encoder; `vocabulary` is that of sampled captions"""
        if retriever.sees != "photos":
            raise UserError(f"{retriever.name} knows photos by their references; it cannot be shown photos.")
        embed = EmbedCaptions(retriever, vocabulary)
        images = torch.cat([retriever.embed_images(part).float() for part in pooled.float().split(_BATCH)])  # type: ignore[no-untyped-call]
        return cls(retriever.name, images, pool, retriever.scale, embed)

    @classmethod
    def of_references(
        cls, retriever: Retriever, vocabulary: WordTokenizer, references: Sequence[Sequence[str]], pool: Tensor
    ) -> FrozenRetriever:
        """references of each of the P photos; `vocabulary` is that of sampled captions"""
        embed = EmbedCaptions(retriever, vocabulary)
        images = retriever.embed_references(references).float().clone()  # a clone takes part in autograd again
        counts = torch.tensor(list(map(len, references)), dtype=torch.long)
        return cls(retriever.name, images, pool, retriever.scale, embed, counts)

    def __len__(self) -> int:
        return len(self.images)

    def embed_sampled(self, sampled: SampledCaptions) -> Tensor:
        """(N, E) the captions; one without a word is zeros"""
        for captions, embedded in self._embedded:
            if captions is sampled:
                return embedded
        # What a retriever gives was made for inference only; a clone takes part in autograd again.
        embedded = self.embed(sampled).to(sampled.words.device, torch.float32).clone()
        self._embedded = [(sampled, embedded), *self._embedded[:1]]  # also of a whole batch, beside this process's
        return embedded

    def similarities(self, sampled: SampledCaptions) -> Tensor:
        """(N, P) to all photos of the data set that a caption's own photo is from

        -inf at photos of other data sets, which are not its candidates, and at unknown photos.
        """
        last = self._similarities
        if last is None or last[0] is not sampled:
            self._similarities = last = sampled, self._to_galleries(sampled)
        return last[1]

    def to_own(self, sampled: SampledCaptions) -> Tensor:
        """(N,) similarity to the own photo"""
        return self.to_photos(sampled, sampled.photos[:, None]).squeeze(1)

    def to_photos(self, sampled: SampledCaptions, photos: Tensor) -> Tensor:
        """Similarity of each caption to photos of its own choice: positions (N, k) -> (N, k)"""
        photos = photos.to(sampled.words.device)
        similarity = torch.einsum("ne,nke->nk", self.embed_sampled(sampled), look_up(self.images, photos))
        return self._without_itself(sampled, similarity, photos)

    def to_batch(self, sampled: SampledCaptions) -> tuple[Tensor, Tensor]:
        """(N, B) similarity of each caption to the different photos of the batch, and (N,) which of them is its own"""
        photos, own = torch.unique(sampled.batch.photos.to(sampled.words.device), return_inverse=True)
        similarity = self.embed_sampled(sampled) @ look_up(self.images, photos).T
        return self._without_itself(sampled, similarity, photos), own[sampled.here]

    def _to_galleries(self, sampled: SampledCaptions) -> Tensor:
        """(N, P) by one product for each data set that occurs in the batch"""
        embedded = self.embed_sampled(sampled).to(self.images.device)
        pool = self.pool[sampled.photos.to(self.pool.device)]
        found = embedded.new_full((len(embedded), len(self)), -torch.inf)
        for number in torch.unique(pool).tolist():
            rows = (pool == number).nonzero().squeeze(1).to(embedded.device)
            span, barrier = self._galleries[number]
            found[rows, span] = torch.addmm(barrier, embedded[rows], self.images[span].T)
        found = found.to(sampled.words.device)
        if self.references is not None and sampled.reference is not None:
            rows = (sampled.reference >= 0).nonzero().squeeze(1).to(found.device)
            found[rows, sampled.photos.to(found.device)[rows]] = self.to_own(sampled)[rows]
        return found

    def _without_itself(self, sampled: SampledCaptions, similarity: Tensor, photos: Tensor) -> Tensor:
        """A caption that is a reference of its photo, compared with that photo's others; the only one: 0.

        similarity  (N, M)
        photos      (M,) or (N, M) to which
        """
        if self.references is None or sampled.reference is None:
            return similarity
        device = similarity.device
        count = look_up(self.references, sampled.photos.to(device))[:, None]
        itself = self.embed_sampled(sampled).square().sum(1, keepdim=True)  # 1, or 0 for a caption without a word
        others = torch.where(count > 1, mean_of_others(similarity * count, itself, count.clamp(min=2)), 0)
        is_reference = (sampled.reference.to(device) >= 0)[:, None] & (photos == sampled.photos.to(device)[:, None])
        return torch.where(is_reference, others, similarity)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_embedded": [], "_similarities": None}


def look_up(table: Tensor, photos: Tensor) -> Tensor:
    """What a table (P, ...) of the photos says of these, where `photos` are."""
    return table[photos.to(table.device)].to(photos.device)


def _gallery(barrier: Tensor, members: Tensor) -> tuple[slice, Tensor]:
    """Where the photos of a data set lie, and what to add to similarities there: -inf at those that do not belong.

    The photos of a data set lie side by side in practice, so that a span of all vectors will do and none is copied.
    """
    places = members.nonzero()
    span = slice(int(places[0]), int(places[-1]) + 1)
    return span, barrier[span].masked_fill(~members[span].to(barrier.device), -torch.inf)


Kind = Literal["average", "hardest"]


def gap(own: Tensor, group: Tensor, exists: Tensor, kind: Kind) -> Tensor:
    """G_avg (Eq. 3) or G_min (Eq. 4).

    own      (N,)   similarity of each caption to its photo
    group    (N, k) to the look-alikes of that
    exists   (N, k) False where there is no further look-alike
    kind            "average": minus the mean over the look-alikes; "hardest": minus the highest of them
    returns  (N,)   `own` where there is none at all
    """
    return (gap_to_mean if kind == "average" else gap_to_highest)(own, group, exists)


def at_progress(groups: Tensor, k: int, progress: float) -> Tensor:
    """The k look-alikes that stand for a photo at this point of a training: the farthest at 0, the nearest at 1.

    groups    (N, M) nearest first, -1 after the last
    progress  the window of k moves linearly from the last of a photo's look-alikes to the first
    returns   (N, k), or (N, M) if that is less
    """
    k = min(k, groups.shape[1])
    farther = ((groups >= 0).sum(1) - k).clamp(min=0)  # look-alikes beyond the nearest k
    first = (farther * (1 - min(max(progress, 0.0), 1.0))).round().long()
    return groups.gather(1, first[:, None] + torch.arange(k, device=groups.device))


class GroupGap:
    """G of captions.

    groups      (P, M) positions of each photo's look-alikes, nearest first, -1 after the last
    kind        "average": G_avg; "hardest": G_min
    k           how many of them are a group; the paper's 5
    curriculum  the group moves from the farthest k to the nearest k during the training; else: the nearest k
    scale       the gap is multiplied with this
    """

    def __init__(
        self,
        retriever: FrozenRetriever,
        groups: Tensor,
        kind: Kind = "average",
        *,
        k: int = 5,
        curriculum: bool = False,
        scale: float = 1.0,
    ):
        if groups.ndim != 2 or len(groups) != len(retriever) or not groups.shape[1]:
            raise ValueError(f"{len(retriever)} photos and groups of shape {tuple(groups.shape)}")
        if kind not in ("average", "hardest") or k < 1:
            raise ValueError(f"there is no gap of kind {kind!r} to {k} look-alikes")
        self.retriever, self.groups, self.kind, self.k = retriever, groups, kind, k
        self.curriculum, self.scale = curriculum, scale

    def __call__(self, sampled: SampledCaptions) -> Reward:
        progress = sampled.progress if self.curriculum else 1.0
        groups = at_progress(look_up(self.groups, sampled.photos).to(sampled.words.device), self.k, progress)
        group = self.retriever.to_photos(sampled, groups.clamp(min=0))
        exists = groups >= 0
        gaps = gap(self.retriever.to_own(sampled), group, exists, self.kind)
        return Reward(gaps.masked_fill(~exists.any(1), 0) * self.scale)


class OwnSimilarity:
    """f(I, c): how well a caption fits its photo, regardless of others."""

    def __init__(self, retriever: FrozenRetriever):
        self.retriever = retriever

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(self.retriever.to_own(sampled))


MARGIN = 0.2


def hard_neighbour(own: Tensor, neighbour: Tensor, margin: float = MARGIN) -> Tensor:
    """R_H (Eq. 6).

    own        (N,) similarity of each caption to its photo
    neighbour  (N,) to the photo most like that; -inf where there is none
    returns    (N,) at most 0; 0 where there is no neighbour
    """
    return -(margin + neighbour - own).clamp(min=0)


def in_batch(similarity: Tensor, own: Tensor, margin: float = MARGIN, generated: Tensor | None = None) -> Tensor:
    """R_B (Eq. 7), the sum of two hinges: against the captions of other photos, and against other photos.

    similarity  (N, B) of each caption to each photo of the minibatch
    own         (N,) which of those is the caption's own
    generated   (N,) True at captions that may be the hardest one; default: all
    returns     (N,) at most 0; a hinge for which there is no other photo is 0
    """
    photos = torch.arange(similarity.shape[1], device=similarity.device)
    is_own = own[:, None] == photos  # (N, B)
    match = similarity.gather(1, own[:, None]).squeeze(1)
    no_rival = is_own if generated is None else is_own | ~generated[:, None]
    hardest_caption = similarity.masked_fill(no_rival, -torch.inf).amax(0)[own]
    hardest_photo = similarity.masked_fill(is_own, -torch.inf).amax(1)
    return -(margin + hardest_caption - match).clamp(min=0) - (margin + hardest_photo - match).clamp(min=0)


def closeness_weights(similarity_to_nearest: Tensor) -> Tensor:
    """A weight for each photo that grows with how close its nearest look-alike is: who has none needs less push.

    By rank, so that it does not depend on the scale of similarities: linear from 0.5 for the loneliest photo to 1.5 for
    the one with the closest look-alike.  Equal ones share the mean of their places, so the mean over photos is 1.

    similarity_to_nearest  (P,) larger is closer (give minus a distance); -inf where a photo has no look-alike
    """
    if similarity_to_nearest.isnan().any():
        raise ValueError("a similarity is not a number")
    _, place, count = torch.unique(similarity_to_nearest, return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count + 1) / 2)[place]  # from 0; the mean of those that are equal
    return 0.5 + rank / (len(rank) - 1) if len(rank) > 1 else torch.ones_like(rank)


class HardNeighbour:
    """R_H of captions; nearest (P,) is the position of the photo most like each one, -1 where there is none."""

    def __init__(self, retriever: FrozenRetriever, nearest: Tensor, margin: float = MARGIN):
        if nearest.shape != (len(retriever),):
            raise ValueError(f"{len(retriever)} photos and nearest of shape {tuple(nearest.shape)}")
        self.retriever, self.nearest, self.margin = retriever, nearest, margin

    def __call__(self, sampled: SampledCaptions) -> Reward:
        nearest = look_up(self.nearest, sampled.photos).to(sampled.words.device)
        neighbour = self.retriever.to_photos(sampled, nearest.clamp(min=0)[:, None]).squeeze(1)
        neighbour = neighbour.masked_fill(nearest < 0, -torch.inf)
        return Reward(hard_neighbour(self.retriever.to_own(sampled), neighbour, self.margin))


class InBatch:
    """R_B of captions, whose different photos are the minibatch."""

    def __init__(self, retriever: FrozenRetriever, margin: float = MARGIN):
        self.retriever, self.margin = retriever, margin

    def __call__(self, sampled: SampledCaptions) -> Reward:
        batch = sampled.batch  # the hardest caption may be another process's
        similarity, own = self.retriever.to_batch(batch)
        generated = None if batch.reference is None else (batch.reference < 0).to(own.device)
        return Reward(in_batch(similarity, own, self.margin, generated)[sampled.here])


class GlobalDiscriminative:
    """R_GD = R_H + R_B (Eq. 8).

    neighbour, batch  weights of the two; the paper's are 1
    per_photo         (P,) weight of each photo, such as `closeness_weights` gives; default: 1
    """

    def __init__(
        self,
        retriever: FrozenRetriever,
        nearest: Tensor,
        margin: float = MARGIN,
        *,
        neighbour: float = 1.0,
        batch: float = 1.0,
        per_photo: Tensor | None = None,
    ):
        if per_photo is not None and per_photo.shape != (len(retriever),):
            raise ValueError(f"{len(retriever)} photos and weights of shape {tuple(per_photo.shape)}")
        self.hard_neighbour, self.in_batch = HardNeighbour(retriever, nearest, margin), InBatch(retriever, margin)
        self.neighbour, self.batch, self.per_photo = neighbour, batch, per_photo

    def __call__(self, sampled: SampledCaptions) -> Reward:
        reward = self.hard_neighbour(sampled) * self.neighbour + self.in_batch(sampled) * self.batch
        if self.per_photo is None:
            return reward
        return reward * look_up(self.per_photo, sampled.photos).to(sampled.words.device, torch.float32)


def log_probability(similarity: Tensor, own: Tensor, scale: float) -> Tensor:
    """
    similarity  (N, C) of each caption to each candidate; -inf where there is none
    own         (N,) which of those is the caption's own photo
    returns     (N,) at most 0; 0 where there is no other photo
    """
    return (scale * similarity).log_softmax(1).gather(1, own[:, None]).squeeze(1)


def accuracy(similarity: Tensor, own: Tensor) -> Tensor:
    """(N,): 1 where the own photo is the best of (N, C) candidates, else 0; a tie is wrong."""
    others = similarity.scatter(1, own[:, None], -torch.inf).amax(1)
    return (similarity.gather(1, own[:, None]).squeeze(1) > others + TIE).float()


def candidates(
    retriever: FrozenRetriever, sampled: SampledCaptions, distractors: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Similarity (N, C) of each caption to its candidates, and (N,) which is its own photo.

    distractors  (P, k) look-alikes of each photo, -1 after the last; none: the different photos of the batch
    """
    if distractors is None:
        return retriever.to_batch(sampled)
    own = sampled.photos.to(sampled.words.device)[:, None]
    photos = torch.cat([own, look_up(distractors, own.squeeze(1))], 1)
    similarity = retriever.to_photos(sampled, photos.clamp(min=0)).masked_fill(photos < 0, -torch.inf)
    return similarity, torch.zeros_like(own.squeeze(1))


class InBatchLogProbability:
    """log softmax over the candidates; of a caption without a word, which is like nothing, -ln C."""

    def __init__(self, retriever: FrozenRetriever, scale: float | None = None, distractors: Tensor | None = None):
        self.retriever, self.scale = retriever, retriever.scale if scale is None else scale
        self.distractors = distractors

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(log_probability(*candidates(self.retriever, sampled, self.distractors), self.scale))


class Accuracy:
    """1 for a caption by which the retriever picks its photo, else 0."""

    def __init__(self, retriever: FrozenRetriever, distractors: Tensor | None = None):
        self.retriever, self.distractors = retriever, distractors

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(accuracy(*candidates(self.retriever, sampled, self.distractors)))


class HardPositives:
    """The log-probability of the view of the own photo that the caption fits least, in the place of the photo (RRG).

    views  (V, P, E) other views of each photo, as the retriever sees them: what a caption says must be true of them too
    """

    def __init__(self, retriever: FrozenRetriever, views: Tensor, scale: float | None = None):
        self.retriever, self.views = retriever, views
        self.scale = retriever.scale if scale is None else scale

    def __call__(self, sampled: SampledCaptions) -> Reward:
        similarity, own = self.retriever.to_batch(sampled)
        shown = look_up(self.views.transpose(0, 1), sampled.photos.to(similarity.device))  # (N, V, E)
        to_views = torch.einsum("ne,nve->nv", self.retriever.embed_sampled(sampled), shown)
        least = to_views.amin(
            1, keepdim=True
        )  # a softmax grows with its term: the least likely view is the least alike
        return Reward(log_probability(similarity.scatter(1, own[:, None], least), own, self.scale))


class InTurn:
    """Several retrievers, one for each batch.

    The photos of a batch decide whose turn it is, so that nothing need be remembered, and what a caption is compared
    with is embedded by the same retriever.
    """

    def __init__(self, terms: Sequence[Term]):
        self.terms = list(terms)

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return self.terms[int(torch.unique(sampled.batch.photos).sum()) % len(self.terms)](sampled)


def bounded_rank(rank: Tensor, base: int = 200) -> Tensor:
    """max(0, 1 - ln(1 + rank) / ln(1 + base)): (N,) -> (N,) from 0 to 1"""
    return (1 - rank.float().log1p() / math.log1p(base)).clamp(min=0)


class BoundedRank:
    """The bounded rank of captions.

    Two get 0 for any caption: a photo of which the retriever knows nothing, and, in a data set of more than
    `base` photos, a caption without a word.
    """

    def __init__(self, retriever: FrozenRetriever, base: int = 200):
        if base < 1:
            raise ValueError(f"the base of a rank must be at least 1, not {base}")
        self.retriever, self.base = retriever, base

    def __call__(self, sampled: SampledCaptions) -> Reward:
        similarity, own = self.retriever.similarities(sampled), sampled.photos.to(sampled.words.device)
        fits = similarity.gather(1, own[:, None]).squeeze(1)
        return Reward(bounded_rank(ranks_of_matches(similarity, fits), self.base))
