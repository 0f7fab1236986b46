"""Rewards as functions of texts and photos, for trainers that are not ours.

    reward = tellapart.CaptionReward("geg_avg", "POOL")
    reward.score(["a red bus on a bridge"], ["coco/391895.jpg"])

`CaptionReward` has what a reward needs of the photos from a pool (`rewards.pool`).  It can be pickled: a process that
gets it opens the pool again, whose numbers are memory-mapped.  `PhotoReward`, for rewards of texts and photos alone,
needs no pool: `tellapart.rewards.reward("similarity")(texts, images)`.

N captions, P different photos of a call, E embedding size, S pixels a side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capscore.errors import UserError
from capscore.progress import notice
from tellapart import numerics
from tellapart.data.batches import CaptionedPhotos, padded
from tellapart.data.store import Stores
from tellapart.features.extracted import read_item
from tellapart.models.retrievers import load
from tellapart.parallel import batched
from tellapart.recipe import RewardsConfig
from tellapart.retrievers import DEFAULT
from tellapart.retrievers.readers import MAX_WORDS, WordReader
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import SampledCaptions, of_term
from tellapart.rewards.combine import Remembers
from tellapart.rewards.context import RewardContext
from tellapart.rewards.pool import Pool
from tellapart.rewards.registry import REWARDS, make, needs_of
from tellapart.rewards.retrieval import FrozenRetriever, accuracy, embedding, log_probability
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
        for what, values in (("captions", texts), ("photos", photos)):
            if isinstance(values, str):  # which has as many letters as there may be photos
                raise UserError(f"{self.term}: the {what} must be a list, not one text.")
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
            rewards = of_term(self._reward, sampled, self.term).per_caption(mask).float()
        term: object = self._reward
        if isinstance(term, Remembers):
            term.remember(sampled)
        scores = torch.empty_like(rewards)
        scores[order] = rewards
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
        reopen = partial(CaptionReward, device=self._device, **self.settings)
        return reopen, (self.term, str(self.pool.folder.absolute()))


class PoolContext(RewardContext):
    """The parts that rewards are made of, out of a pool."""

    def __init__(self, config: RewardsConfig, pool: Pool, device: str):
        self._pool, self._device = pool, device
        words = RewardVocabulary(text for example in pool.examples for text in example.captions)
        sources = [(Stores(), pool.examples)]
        data, view = CaptionedPhotos(sources, words, 0), WordView(words, words)
        super().__init__(config, sources, data, view, features=pool.folder, device=numerics.choose_device(device))
        self.frequencies, self.closeness, self.nearest = pool.frequencies, pool.closeness, pool.nearest
        self.look_alikes = pool.look_alikes[:, : config.group_size]

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

    @cached_property
    def retriever(self) -> Retriever:
        return self._pool.load_retriever(self._device)

    @cached_property
    def image_retriever(self) -> FrozenRetriever:
        embed = embedding(self.retriever, self.vocabulary)
        one_set = torch.zeros(len(self._pool), dtype=torch.long)
        return FrozenRetriever(self.retriever.name, self._pool.images, one_set, self.retriever.scale, embed)

    def views(self, count: int) -> Tensor:
        raise UserError("hard_positives needs other views of the photos, which a pool does not have.")


_BATCH = 32  # photos through the encoder at once
_CHANNELS = (1, 3, 4)  # grey, RGB, RGB with transparency

# (N, P) of each caption to each photo, (N,) which is its own, the retriever's scale -> (N,)
TERMS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "similarity": lambda similarity, targets, scale: similarity.gather(1, targets[:, None]).squeeze(1),
    "log_probability": log_probability,
    "accuracy": lambda similarity, targets, scale: accuracy(similarity, targets),
}


class PhotoReward:
    """See `tellapart.rewards.reward`; log_probability and accuracy are those among the different photos of the call.

    It is loaded at the first call, on the device that is the process's then, and can be pickled before and after.
    """

    def __init__(self, term: str, retriever: str | Path = DEFAULT, *, scale: float = 0.0, device: str = "auto"):
        if term not in TERMS:
            raise UserError(
                f"there is no reward {term!r} of texts and photos alone; there are {', '.join(TERMS)}.  The others "
                "need more of the photos, which a pool has: `tellapart pool`, then tellapart.CaptionReward."
            )
        self.term, self.name, self.scale, self.device = term, str(retriever), scale, device
        self.__name__ = term  # what trainers call it in their logs

    @cached_property
    def retriever(self) -> Retriever:
        loaded = load(self.name, device=numerics.device_of_process(self.device))
        if loaded.encoder is None:
            raise UserError(f"{loaded.name} knows photos by their references; {self.term} needs one that sees photos.")
        return loaded

    def __call__(self, texts: Sequence[str], images: Sequence[Any]) -> list[float]:
        """images  of each text its photo: a file, a picture of Pillow, an array or a tensor (values in 0..255 as bytes,
        or in 0..1).  Equal ones are one photo
        """
        if isinstance(texts, str) or isinstance(images, str | os.PathLike | Image.Image):
            raise UserError(f"{self.term}: texts and images must be two lists of the same length.")
        if len(texts) != len(images):
            raise UserError(f"{self.term}: there are {len(texts)} texts and {len(images)} images.")
        if not len(texts):
            return []
        with torch.inference_mode(), torch.autocast(self.retriever.device.type, enabled=False):
            photos, targets = self._embedded(images)
            if self.term != "similarity" and len(photos) == 1:
                raise UserError(
                    f"{self.term} compares a photo with the others of the batch, and all texts are of one photo."
                )
            similarity = self.retriever.embed_captions(list(texts)).float() @ photos.T
            scores = TERMS[self.term](similarity, targets, self.scale or self.retriever.scale)
        return scores.tolist()

    def _embedded(self, images: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """(P, E) the different photos, and (N,) which of them each image is."""
        encoder = self.retriever.encoder
        assert encoder is not None
        read: dict[object, NDArray[np.uint8]] = {}  # each file or object once
        places: dict[bytes, int] = {}
        different, targets = list[NDArray[np.uint8]](), list[int]()
        for image in images:
            key = os.fspath(image) if isinstance(image, str | os.PathLike) else id(image)
            if key not in read:
                read[key] = read_item(encoder, _picture(image)).pixels
            pixels = read[key]
            place = places.setdefault(pixels.tobytes(), len(places))
            if place == len(different):
                different.append(pixels)
            targets.append(place)
        parts = [self.retriever.embed_pixels(np.stack(part)).float() for part in batched(different, _BATCH)]
        return torch.cat(parts), torch.tensor(targets, device=parts[0].device)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "retriever"}


def _picture(image: Any) -> str | Image.Image:
    """A file's name or a picture of Pillow, of anything that is one photo."""
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, str | os.PathLike):
        return os.fspath(image)
    if isinstance(image, Sequence) and len(image) == 1:  # as data sets with a column of several have it
        return _picture(image[0])
    values = np.asarray(image.detach().cpu() if isinstance(image, Tensor) else image)
    if values.ndim == 3 and values.shape[0] in _CHANNELS and values.shape[2] not in _CHANNELS:
        values = values.transpose(1, 2, 0)  # channels first, as in torch
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in _CHANNELS) or not values.size:
        kind = f"{values.shape}" if values.ndim else f"a {type(image).__name__}"
        raise UserError(f"an image must be a file, a picture, or (H, W, 3) or (3, H, W), not {kind}.")
    if values.dtype.kind == "f" and values.min() >= 0 and values.max() <= 1:
        values = (values * 255).round().astype(np.uint8)
    if values.dtype != np.uint8:
        raise UserError(
            "an image must have bytes, or numbers from 0 to 1; one that was normalised for a network is not a photo."
        )
    return Image.fromarray(np.ascontiguousarray(values if values.ndim == 2 or values.shape[2] > 1 else values[..., 0]))
