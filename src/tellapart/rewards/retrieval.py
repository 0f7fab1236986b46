"""Rewards by a frozen retriever: does a caption find its own photo?

`FrozenRetriever` has embedded all photos of the data, and embeds captions; f(I, c) is the cosine of photo and caption.

GEG: "CLIP-guided group optimisation".  GLD: Wu et al., "Fine-grained image captioning with global-local discriminative
objective".  N captions, P photos of the data, B of the batch, E embedding size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from capscore.errors import UserError
from tellapart.data.tokenizers import WordTokenizer
from tellapart.metrics.retrieval import TIE, gap_to_highest, gap_to_mean, mean_of_others, ranks_of_matches
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import Reward, SampledCaptions, Term
from tellapart.rewards.words import RewardVocabulary

MARGIN = 0.2
_BATCH = 4096  # photos that are embedded at once


def embedding(retriever: Retriever, vocabulary: WordTokenizer) -> Callable[[SampledCaptions], Tensor]:
    """Sampled captions -> (N, E) by a retriever; a caption without a word is zeros.

    Word ids are translated to the retriever's own, which is quicker than reading texts.  A reward vocabulary has ids
    for words that it cannot spell: its captions are read as texts.
    """
    if not isinstance(vocabulary, RewardVocabulary):
        retriever.reader.require_words_of(vocabulary)

    def embed(sampled: SampledCaptions) -> Tensor:
        if sampled.texts is not None:
            return retriever.embed_captions(sampled.texts)
        return retriever.embed_tokens(sampled.words, vocabulary)

    return embed


class FrozenRetriever:
    """A frozen retriever: its vectors of the photos, and how it embeds captions.

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
        finite = images.isfinite().all(1)
        if not finite.all():
            bad = int((~finite).nonzero()[0]) + 1
            raise UserError(f"{name}: the vector of photo number {bad} has a value that is not a finite number.")
        self.name, self.images, self.pool, self.scale, self.embed = name, images, pool, scale, embed
        self.references = references
        self._galleries = {number: self._gallery(pool == number) for number in torch.unique(pool).tolist()}
        self._embedded: list[tuple[SampledCaptions, Tensor]] = []

    def _gallery(self, members: Tensor) -> tuple[slice, Tensor]:
        """The span of a data set's photos, and what to add to similarities there: -inf at those that do not belong.

        They lie side by side in practice, so that a span of all vectors will do and none is copied.
        """
        places = members.nonzero()
        span = slice(int(places[0]), int(places[-1]) + 1)
        barrier = torch.where(self.images[span].any(1), 0.0, -torch.inf)
        return span, barrier.masked_fill(~members[span].to(barrier.device), -torch.inf)

    @classmethod
    def of_photos(
        cls, retriever: Retriever, vocabulary: WordTokenizer, pooled: Tensor, pool: Tensor
    ) -> FrozenRetriever:
        """pooled (P, D) features of the retriever's own encoder; `vocabulary` is that of sampled captions"""
        embed = embedding(retriever, vocabulary)
        images = torch.cat([retriever.embed_images(part).float() for part in pooled.float().split(_BATCH)])  # type: ignore[no-untyped-call]
        return cls(retriever.name, images, pool, retriever.scale, embed)

    @classmethod
    def of_references(
        cls, retriever: Retriever, vocabulary: WordTokenizer, references: Sequence[Sequence[str]], pool: Tensor
    ) -> FrozenRetriever:
        """references of each of the P photos; `vocabulary` is that of sampled captions"""
        embed = embedding(retriever, vocabulary)
        images = retriever.embed_references(references).float().clone()  # a clone takes part in autograd again
        counts = torch.tensor(list(map(len, references)), dtype=torch.long)
        return cls(retriever.name, images, pool, retriever.scale, embed, counts)

    def __len__(self) -> int:
        return len(self.images)

    def embed_sampled(self, sampled: SampledCaptions) -> Tensor:
        """(N, E) the captions; one without a word is zeros.  Several rewards ask about the same captions."""
        for captions, embedded in self._embedded:
            if captions is sampled:
                return embedded
        # What a retriever gives was made for inference only; a clone takes part in autograd again.
        embedded = self.embed(sampled).to(sampled.words.device, torch.float32).clone()
        self._embedded = [(sampled, embedded), *self._embedded[:1]]  # also of a whole batch, beside this process's
        return embedded

    def similarities(self, sampled: SampledCaptions) -> Tensor:
        """(N, P) to all photos of the data set that a caption's own photo is from, by one product for each data set

        -inf at photos of other data sets, which are not its candidates, and at unknown photos.
        """
        embedded = self.embed_sampled(sampled).to(self.images.device)
        pool = self.pool[sampled.photos.to(self.pool.device)]
        similarity = embedded.new_full((len(embedded), len(self)), -torch.inf)
        for number in torch.unique(pool).tolist():
            rows = (pool == number).nonzero().squeeze(1).to(embedded.device)
            span, barrier = self._galleries[number]
            similarity[rows, span] = torch.addmm(barrier, embedded[rows], self.images[span].T)
        similarity = similarity.to(sampled.words.device)
        if self.references is not None and sampled.reference is not None:
            rows = (sampled.reference >= 0).nonzero().squeeze(1).to(similarity.device)
            similarity[rows, sampled.photos.to(similarity.device)[rows]] = self.to_own(sampled)[rows]
        return similarity

    def to_own(self, sampled: SampledCaptions) -> Tensor:
        """(N,) similarity f(I, c) to the own photo"""
        return self.to_photos(sampled, sampled.photos[:, None]).squeeze(1)

    def to_photos(self, sampled: SampledCaptions, photos: Tensor) -> Tensor:
        """Similarity of each caption to photos of its own choice: positions (N, k) -> (N, k)"""
        photos = photos.to(sampled.words.device)
        similarity = torch.einsum("ne,nke->nk", self.embed_sampled(sampled), look_up(self.images, photos))
        return self._without_itself(sampled, similarity, photos)

    def to_batch(self, sampled: SampledCaptions) -> tuple[Tensor, Tensor]:
        """(N, B) similarity of each caption to the different photos of the batch, and (N,) which of them is its own"""
        photos, target = torch.unique(sampled.batch.photos.to(sampled.words.device), return_inverse=True)
        similarity = self.embed_sampled(sampled) @ look_up(self.images, photos).T
        return self._without_itself(sampled, similarity, photos), target[sampled.here]

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


def look_up(table: Tensor, photos: Tensor) -> Tensor:
    """The rows of a table (P, ...) of the photos, on the device of `photos`."""
    return table[photos.to(table.device)].to(photos.device)


@dataclass(frozen=True)
class OwnSimilarity:
    """f(I, c): how well a caption fits its photo, regardless of others (ER)."""

    retriever: FrozenRetriever

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(self.retriever.to_own(sampled))


@dataclass(frozen=True)
class GroupGap:
    """G: by how much a caption fits its own photo better than the look-alikes of that photo, 0 if it has none.

    average:  G_avg = f(I, c) - 1/k Σ f(I', c)   (GEG, Eq. 3), over the k look-alikes I'
    hardest:  G_min = f(I, c) - max f(I', c)     (GEG, Eq. 4)

    groups      (P, M) positions of each photo's look-alikes, nearest first, -1 after the last
    k           how many of them are a group; the paper's 5
    curriculum  the group moves from the farthest k to the nearest k during the training (ours); else: the nearest k
    """

    retriever: FrozenRetriever
    groups: Tensor
    kind: Literal["average", "hardest"] = "average"
    k: int = 5
    curriculum: bool = False

    def __call__(self, sampled: SampledCaptions) -> Reward:
        progress = sampled.progress if self.curriculum else 1.0
        groups = at_progress(look_up(self.groups, sampled.photos).to(sampled.words.device), self.k, progress)
        exists = groups >= 0  # (N, k)
        target = self.retriever.to_own(sampled)  # (N,)
        group = self.retriever.to_photos(sampled, groups.clamp(min=0))  # (N, k)
        gap = (gap_to_mean if self.kind == "average" else gap_to_highest)(target, group, exists)
        return Reward(gap.masked_fill(~exists.any(1), 0))


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


@dataclass(frozen=True)
class HardNeighbour:
    """R_H = -max(0, margin + f(I', c) - f(I, c)) (GLD, Eq. 6): at most 0; 0 where there is no other photo.

    nearest  (P,) the position of the photo I' most like each one in all of the data, -1 where there is none
    """

    retriever: FrozenRetriever
    nearest: Tensor
    margin: float = MARGIN

    def __call__(self, sampled: SampledCaptions) -> Reward:
        nearest = look_up(self.nearest, sampled.photos).to(sampled.words.device)
        neighbour = self.retriever.to_photos(sampled, nearest.clamp(min=0)[:, None]).squeeze(1)
        neighbour = neighbour.masked_fill(nearest < 0, -torch.inf)
        return Reward(-(self.margin + neighbour - self.retriever.to_own(sampled)).clamp(min=0))


@dataclass(frozen=True)
class InBatch:
    """R_B of captions, whose different photos are the minibatch."""

    retriever: FrozenRetriever
    margin: float = MARGIN

    def __call__(self, sampled: SampledCaptions) -> Reward:
        batch = sampled.batch  # the hardest caption may be another process's
        similarity, target = self.retriever.to_batch(batch)
        generated = None if batch.reference is None else (batch.reference < 0).to(target.device)
        return Reward(in_batch(similarity, target, self.margin, generated)[sampled.here])


def in_batch(similarity: Tensor, target: Tensor, margin: float = MARGIN, generated: Tensor | None = None) -> Tensor:
    """R_B (GLD, Eq. 7), the sum of two hinges: against the captions of other photos, and against other photos.

    The hardest caption is a *generated* one of another photo, as in the authors' program; Eq. 7 leaves that open.

    similarity  (N, B) of each caption to each photo of the minibatch
    target      (N,) which of those is the caption's own
    generated   (N,) True at captions that may be the hardest one; default: all
    returns     (N,) at most 0; a hinge for which there is no other photo is 0
    """
    photos = torch.arange(similarity.shape[1], device=similarity.device)
    is_own = target[:, None] == photos  # (N, B)
    match = similarity.gather(1, target[:, None]).squeeze(1)
    no_rival = is_own if generated is None else is_own | ~generated[:, None]
    hardest_caption = similarity.masked_fill(no_rival, -torch.inf).amax(0)[target]
    hardest_photo = similarity.masked_fill(is_own, -torch.inf).amax(1)
    return -(margin + hardest_caption - match).clamp(min=0) - (margin + hardest_photo - match).clamp(min=0)


class GlobalDiscriminative:
    """R_GD = R_H + R_B (GLD, Eq. 8), times a weight of each photo (P,), such as `closeness_weights` gives (ours)."""

    def __init__(
        self, retriever: FrozenRetriever, nearest: Tensor, margin: float = MARGIN, per_photo: Tensor | None = None
    ):
        self.hard_neighbour, self.in_batch = HardNeighbour(retriever, nearest, margin), InBatch(retriever, margin)
        self.per_photo = per_photo

    def __call__(self, sampled: SampledCaptions) -> Reward:
        reward = self.hard_neighbour(sampled) + self.in_batch(sampled)
        if self.per_photo is None:
            return reward
        return reward * look_up(self.per_photo, sampled.photos).to(sampled.words.device, torch.float32)


def closeness_weights(similarity_to_nearest: Tensor) -> Tensor:
    """A weight for each photo that grows with how close its nearest look-alike is: who has none needs less push.

    By rank, so that it does not depend on the scale of similarities: linear from 0.5 for the loneliest photo to 1.5 for
    the one with the closest look-alike.  Equal ones share the mean of their places, so the mean over photos is 1.

    similarity_to_nearest  (P,) larger is closer (give minus a distance); -inf where a photo has no look-alike
    """
    _, place, count = torch.unique(similarity_to_nearest, return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count + 1) / 2)[place]  # from 0; the mean of those that are equal
    return 0.5 + rank / (len(rank) - 1) if len(rank) > 1 else torch.ones_like(rank)


def log_probability(similarity: Tensor, target: Tensor, scale: float) -> Tensor:
    """log softmax of scale * similarity, at the own photo (DiscriTune; `scale=1` is the bare formula of the paper).

    similarity  (N, C) of each caption to each candidate; -inf where there is none
    target      (N,) which of those is the caption's own photo
    returns     (N,) at most 0; 0 where there is no other photo
    """
    return (scale * similarity).log_softmax(1).gather(1, target[:, None]).squeeze(1)


def accuracy(similarity: Tensor, target: Tensor) -> Tensor:
    """(N,): 1 where the own photo is the best of (N, C) candidates, else 0; a tie is wrong."""
    others = similarity.scatter(1, target[:, None], -torch.inf).amax(1)
    return (similarity.gather(1, target[:, None]).squeeze(1) > others + TIE).float()


def candidates(
    retriever: FrozenRetriever, sampled: SampledCaptions, distractors: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Similarity (N, C) of each caption to its candidates, and (N,) which is its own photo.

    distractors  (P, k) look-alikes of each photo, -1 after the last; none: the different photos of the batch
    """
    if distractors is None:
        return retriever.to_batch(sampled)
    target = sampled.photos.to(sampled.words.device)[:, None]
    photos = torch.cat([target, look_up(distractors, target.squeeze(1))], 1)
    similarity = retriever.to_photos(sampled, photos.clamp(min=0)).masked_fill(photos < 0, -torch.inf)
    return similarity, torch.zeros_like(target.squeeze(1))


@dataclass(frozen=True)
class LogProbability:
    """log p(own photo | caption) among the candidates; of a caption without a word, which is like nothing, -ln C.

    Scores are multiplied by the retriever's own scale before the softmax, as in the authors' program.
    """

    retriever: FrozenRetriever
    scale: float = 0.0  # 0: the retriever's own
    distractors: Tensor | None = None

    def __call__(self, sampled: SampledCaptions) -> Reward:
        scale = self.scale or self.retriever.scale
        return Reward(log_probability(*candidates(self.retriever, sampled, self.distractors), scale))


@dataclass(frozen=True)
class Accuracy:
    """1 for a caption by which the retriever picks its photo among the candidates, else 0."""

    retriever: FrozenRetriever
    distractors: Tensor | None = None

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(accuracy(*candidates(self.retriever, sampled, self.distractors)))


@dataclass(frozen=True)
class HardPositives:
    """The log-probability of the view of the own photo that the caption fits least, in the place of the photo (RRG).

    views  (V, P, E) other views of each photo, as the retriever sees them: what a caption says must be true of them too
    """

    retriever: FrozenRetriever
    views: Tensor
    scale: float = 0.0  # 0: the retriever's own

    def __call__(self, sampled: SampledCaptions) -> Reward:
        similarity, target = self.retriever.to_batch(sampled)
        shown = look_up(self.views.transpose(0, 1), sampled.photos.to(similarity.device))  # (N, V, E)
        to_views = torch.einsum("ne,nve->nv", self.retriever.embed_sampled(sampled), shown)
        least = to_views.amin(1, keepdim=True)  # a softmax grows with its term: the least likely is the least alike
        similarity = similarity.scatter(1, target[:, None], least)
        return Reward(log_probability(similarity, target, self.scale or self.retriever.scale))


@dataclass(frozen=True)
class InTurn:
    """Several retrievers' terms, one for each batch.

    The photos of a batch decide whose turn it is, so that nothing need be remembered, and what a caption is compared
    with is embedded by the same retriever.
    """

    terms: Sequence[Term]

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return self.terms[int(torch.unique(sampled.batch.photos).sum()) % len(self.terms)](sampled)


def bounded_rank(rank: Tensor, base: int = 200) -> Tensor:
    """max(0, 1 - ln(1 + rank) / ln(1 + base)): (N,) -> (N,) from 0 to 1"""
    return (1 - rank.float().log1p() / math.log1p(base)).clamp(min=0)


@dataclass(frozen=True)
class BoundedRank:
    """The place at which a caption finds its photo among all of the data set: 1 at the first, 0 behind `base` others.

    A log-softmax punishes a wrong detail more than it pays for a right one, and captions go generic; a rank that cannot
    fall below 0 does not.  Two get 0 for any caption: a photo of which the retriever knows nothing, and, in a data set
    of more than `base` photos, a caption without a word.
    """

    retriever: FrozenRetriever
    base: int = 200

    def __call__(self, sampled: SampledCaptions) -> Reward:
        similarity, target = self.retriever.similarities(sampled), sampled.photos.to(sampled.words.device)
        own_similarity = similarity.gather(1, target[:, None]).squeeze(1)
        return Reward(bounded_rank(ranks_of_matches(similarity, own_similarity), self.base))
