"""A frozen retriever as rewards use it: it embeds captions, and has embedded all photos of the data.

Several rewards ask the same retriever about the same captions, so it keeps the vectors of the last ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from capscore.errors import UserError
from tellapart.data.tokenizers import WordTokenizer
from tellapart.metrics.similarity import mean_of_others
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import SampledCaptions
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
