"""One of the rewards as a function of texts and photos, for trainers that are not ours.

    reward = tellapart.CaptionReward("geg_avg", "POOL")
    reward.score(["a red bus on a bridge"], ["coco/391895.jpg"])

What a reward needs of the photos is in a pool (`rewards.pool`).  It can be pickled: a process that gets it opens the
pool again, whose numbers are memory-mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capscore.errors import UserError
from capscore.progress import notice
from tellapart import numerics
from tellapart.data.batches import CaptionedPhotos, padded
from tellapart.data.stored import Stores
from tellapart.recipe_policy import RewardsConfig
from tellapart.retrievers.readers import MAX_WORDS, WordReader
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import SampledCaptions, of_term
from tellapart.rewards.combine import Remembers
from tellapart.rewards.consensus import Consensus
from tellapart.rewards.context import RewardContext
from tellapart.rewards.frozen_retriever import EmbedCaptions, FrozenRetriever
from tellapart.rewards.pool import Pool
from tellapart.rewards.registry import REWARDS, make, needs_of
from tellapart.rewards.words import RewardVocabulary, WordView

# What a pool leaves open.  The rest of a recipe's rewards, such as the retriever, is in the pool.
SETTINGS = (
    "candidates",
    "scale",
    "group_size",
    "margin",
    "rank_base",
    "text_retriever",
    "weight_by_closeness",
    "ld",
    "fluency_text",
    "preferences",
)
_IN_BATCH = ("log_probability", "accuracy", "gd_batch")  # all the same where a batch has one photo


def refuse_one_text(term: str, texts: object, what: str = "captions") -> None:
    """A text is no list of captions, though it has as many letters as there may be photos."""
    if isinstance(texts, str):
        raise UserError(f"{term}: the {what} must be a list, not one text.")


class CaptionReward:
    """A reward of captions by the photos of a pool.

    term      a name from `tellapart models`
    pool      a folder that `tellapart pool` made
    settings  of the reward, as in a recipe: candidates, scale, group_size, margin, rank_base, text_retriever ...
    device    cpu, cuda ...; "auto": a GPU if there is one.  Of several it is the process's own at the first call

    Example:
        >>> from tellapart.rewards import pool
        >>> made = pool.make("holiday.json", "POOL")  # as `tellapart pool holiday.json --out POOL`
        >>> reward = tellapart.CaptionReward("similarity", "POOL")
        >>> [right, wrong] = reward.score(["a kitchen with a stove", "a red bus on a street"], ["a.jpg", "a.jpg"])
        >>> right > wrong
        True
    """

    def __init__(self, term: str, pool: str | Path | Pool, *, device: str = "auto", **settings: Any):
        if term not in REWARDS:
            raise UserError(f"there is no reward {term!r}; there are {', '.join(REWARDS)}.")
        if unknown := [name for name in settings if name not in SETTINGS]:
            raise UserError(f"{term}: a pool leaves no choice of {unknown[0]!r}; there are {', '.join(SETTINGS)}.")
        self.pool = pool if isinstance(pool, Pool) else Pool(pool)
        self.term, self.settings, self._device = term, settings, device
        self._cut = False
        self._make("cpu")  # what is wrong is found now; a trainer gives each process its graphics card later

    def _make(self, device: str) -> None:
        self._made_on = device
        self._context = PoolContext(RewardsConfig(weights={self.term: 1.0}, **self.settings), self.pool, device)
        self._context.require(self.term)
        self._reward = make(self.term, self._context)

    def score(self, texts: Sequence[str], photos: Sequence[int | str | Path]) -> list[float]:
        """A number for each caption.

        photos  of each caption, its photo, by the id in the pool or by file.  Captions of one photo are no distractors
                of each other, however many there are
        """
        refuse_one_text(self.term, texts)
        refuse_one_text(self.term, photos, "photos")
        if len(texts) != len(photos):
            raise UserError(f"{self.term}: there are {len(texts)} captions and {len(photos)} photos.")
        if not texts:
            return []
        positions = torch.tensor(self.pool.positions(photos))
        if (device := numerics.device_of_process(self._device)) not in ("auto", self._made_on):
            self._make(device)
        by_itself = self.term != "gd_batch" and self.settings.get("candidates") == "look_alikes"
        if self.term in _IN_BATCH and not by_itself and len(set(positions.tolist())) == 1:
            also = "" if self.term == "gd_batch" else ', or candidates="look_alikes"'
            raise UserError(
                f"{self.term} compares a photo with the others of the batch, and all captions are of one photo; it "
                f"needs more photos in a batch{also}."
            )
        order = positions.argsort(stable=True)  # a reward finds the captions of a photo side by side
        captions = [texts[place] for place in order.tolist()]
        vocabulary = self._context.vocabulary
        words, mask = padded([[*vocabulary.encode(text), vocabulary.eos] for text in captions], vocabulary.pad)
        self._warn_if_cut(mask)
        sampled = SampledCaptions(words, mask, positions[order], texts=captions)
        with torch.no_grad():
            found = of_term(self._reward, sampled, self.term).per_caption(mask).float()
        term: object = self._reward
        if isinstance(term, Remembers):
            term.remember(sampled)
        scores = torch.empty_like(found)
        scores[order] = found
        return scores.tolist()

    def _warn_if_cut(self, mask: Tensor) -> None:
        """Once: a policy may learn to write beyond what is scored."""
        reads_words = "retriever" in self._context.__dict__ and isinstance(self._context.retriever.reader, WordReader)
        long = int((mask.sum(1) - 1 > MAX_WORDS).sum()) if reads_words and not self._cut else 0
        if long:
            self._cut = True
            notice(
                f"{self.term}: {long} of {len(mask)} captions are longer than the {MAX_WORDS} words that "
                f"{self._context.retriever.name} reads; the rest is ignored, here and in later batches."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.term, str(self.pool.folder.absolute()), self._device, self.settings)


def _reopened(term: str, pool: str, device: str, settings: dict[str, Any]) -> CaptionReward:
    return CaptionReward(term, pool, device=device, **settings)


class PoolContext(RewardContext):
    """What rewards are made of, out of a pool."""

    def __init__(self, config: RewardsConfig, pool: Pool, device: str):
        self._pool, self._device = pool, device
        words = RewardVocabulary(text for example in pool.examples for text in example.captions)
        sources = [(Stores(), pool.examples)]
        data, view = CaptionedPhotos(sources, words, 0), WordView(words, words)
        super().__init__(config, sources, data, view, features=pool.folder, device=numerics.choose_device(device))

    def require(self, term: str) -> None:
        """Refuses a reward that needs what is not in the pool."""
        needs, pool = needs_of(self.config), self._pool
        if term == "preference" and not self.config.preferences:
            raise UserError(
                'preference needs preferences="FILE", the file that `tellapart adapt --feedback` made of reviews.'
            )
        if "detector" in needs:
            raise UserError(f"{term} needs a detector, which a pool does not have.")
        if "references" in needs and not any(example.captions for example in pool.examples):
            raise UserError(f"{term} needs references, and no photo of {pool.folder} has any.")
        if "text_retriever" in needs and not self.config.text_retriever:
            raise UserError(f'{term} needs a retriever from text to text, such as text_retriever="minilm".')
        if "look_alikes" in needs and self.config.group_size > pool.look_alikes.shape[1]:
            raise UserError(
                f"{pool.folder} has {pool.look_alikes.shape[1]} look-alikes of a photo, and group_size asks for "
                f"{self.config.group_size}; make the pool again with --k {self.config.group_size}."
            )

    def consensus(self, measure: str) -> Consensus:
        if measure not in self._measures:
            end, known = self.vocabulary.eos, self._pool.frequencies
            self._measures[measure] = Consensus(self.references, end=end, measure=measure, frequencies=known)
        return self._measures[measure]

    @cached_property
    def retriever(self) -> Retriever:
        return self._pool.load_retriever(self._device)

    @cached_property
    def image_retriever(self) -> FrozenRetriever:
        embed = EmbedCaptions(self.retriever, self.vocabulary)
        one_set = torch.zeros(len(self._pool), dtype=torch.long)
        return FrozenRetriever(self.retriever.name, self._pool.images, one_set, self.retriever.scale, embed)

    @cached_property
    def image_retrievers(self) -> list[FrozenRetriever]:
        return [self.image_retriever]

    def views(self, count: int) -> Tensor:
        raise UserError("hard_positives needs other views of the photos, which a pool does not have.")

    @cached_property
    def look_alikes(self) -> Tensor:
        return self._pool.look_alikes[:, : self.config.group_size]

    @cached_property
    def closeness(self) -> Tensor:
        return self._pool.closeness

    @cached_property
    def nearest(self) -> Tensor:
        return self._pool.nearest
