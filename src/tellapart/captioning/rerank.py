"""Captions told apart: of several captions of a photo, the one that best picks it out of a collection.

The score of a candidate is

    log p / tokens**length  +  strength * how well a listener finds the photo by it  -  its flaws
                            +  fluency * how far its words fall short of people's (the reward of that name; off)

where the listener is a retriever that reads the caption and looks at the collection: either by the log of the
probability it gives the photo (a softmax over the collection), or by the gap between the photo and its look-alikes.
Flaws are repeated content words, and breaking off, as "a dog on a" does.  Candidates that have any, or are
far less likely than the best, are not chosen while there are others.

Exact copies and near-duplicates of a photo, such as the other frames of a burst, do not take part: they may share its
caption.  A caption that a look-alike has already is not chosen while there is another one (`kinds`).

Words of the photo's context, such as the name of its album, add a bonus to candidates that have them; it is bounded, so
that they decide between captions that are about as good.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from capscore.stop_words import flaws
from tellapart.captioning.kinds import COPIES_ABOVE, Bursts, Chosen, copied, with_difference
from tellapart.data.captions import Candidate, Caption, Proposed
from tellapart.data.tokenizers import Tokenizer, split_words
from tellapart.decoding.candidates import Listener
from tellapart.neighbours.groups import duplicates_above, quantile_of_pairs, sampled
from tellapart.parallel import batched
from tellapart.retrievers.retriever import Embedded, Retriever, embed_photos

if TYPE_CHECKING:
    from tellapart.desk.context import Context

_BATCH = 16  # photos whose candidates are embedded together
_PLACES = 65536  # photos of a collection that they are compared with at once
_NEAR = 100  # photos most like a photo that count at each word, in a large collection
_DEEPER = 4  # times as many as look-alikes are wanted: several of the nearest may be of one burst


@dataclass(frozen=True)
class RerankConfig:
    """How a candidate is chosen; the defaults are what the judge preferred on validation photos."""

    k: int = 5  # look-alikes of a photo
    strength: float = 0.4  # of the listener
    length: float = 0.75  # power of the length that log p is divided by
    by: Literal["softmax", "gap"] = "softmax"
    unlikely: float = 1.0  # a candidate whose log p per token is lower than the best one's by more is not chosen
    beam: int = 5  # candidates: the likeliest captions ...
    samples: int = 10  # ... and random ones
    temperature: float = 0.7
    contrast: Literal["captions", "words", "prompt"] = "captions"  # whole captions, each word (PICL), or the prompt
    listener_weight: float = 0.5  # of the listener at each word, against the captioner
    floor: float = 0.05  # a word less likely than this share of the likeliest is not used for the listener's sake
    fluency: float = 0.0  # weight of what a caption's words fall short of people's, by a language model
    bursts: Bursts = "own"  # whether near-duplicates share a caption
    context: Context | None = None  # what is known of photos beside their pictures

    @property
    def identity(self) -> str:
        """What captions depend on.  Fields that came later count where they are set: rows of before stay valid."""
        first = [one.name for one in fields(self) if one.name not in ("fluency", "bursts", "context")]
        values = tuple(getattr(self, name) for name in first)
        later = f" fluency={self.fluency}" if self.fluency else ""
        later += "" if self.bursts == "own" else f" bursts={self.bursts}"
        return f"{values}{later}" + ("" if self.context is None else f" context={self.context.identity}")


@dataclass(frozen=True)
class PhotoVectors:
    """A photo that is to be told apart, as a retriever sees it."""

    embedding: Tensor  # (E,)
    features: Tensor | None = None  # (D,) the encoder's; without them no near-duplicate is known


class Collection:
    """Photos, as a listener sees them, among which others are to be told apart."""

    def __init__(self, retriever: Retriever, photos: Embedded):
        first: dict[str, int] = {}
        for place, sha256 in enumerate(photos.sha256):
            first.setdefault(sha256, place)
        self.retriever, self.photos = retriever, part_of(photos, list(first.values()))  # copies of a photo count once
        self.vectors = torch.from_numpy(self.photos.vectors).to(retriever.device)  # (P, E)
        self._place = {sha256: place for place, sha256 in enumerate(self.photos.sha256)}
        self._features: Tensor | None = None  # (P, D) unit norm
        if self.photos.features is not None:
            self._features = F.normalize(torch.from_numpy(self.photos.features), dim=1).to(retriever.device)
        self._near: dict[int, list[int]] = {}  # place -> places of its near-duplicates
        self._earlier: dict[int, str] = {}  # captions that photos of it have already, by place
        self.duplicates_above = duplicates_above(retriever.encoder)

    @classmethod
    def of(cls, retriever: Retriever, files: Sequence[str]) -> Collection:
        if retriever.sees != "photos":
            raise UserError(f"the retriever {retriever.name!r} knows photos by their references and sees none.")
        return cls(retriever, embed_photos(retriever, files))

    @property
    def identity(self) -> str:
        """Of the listener, not of the photos: captions that are there stay when others come."""
        return hashlib.sha256(f"{self.retriever.sha256} {self.duplicates_above:g}".encode()).hexdigest()[:16]

    @cached_property
    def alike_above(self) -> float | None:
        """The cosine below which a photo is no look-alike: calibrated, or a quantile of the collection's pairs."""
        if "image" in self.retriever.alike_above:
            return self.retriever.alike_above["image"]
        some = torch.from_numpy(sampled(len(self.vectors))).to(self.vectors.device)
        different = torch.ones(len(some), len(some), dtype=torch.bool)
        if self._features is not None:
            different = (self._features[some] @ self._features[some].T <= self.duplicates_above).cpu()
        scores = (self.vectors[some] @ self.vectors[some].T).float().cpu()
        return quantile_of_pairs(scores.numpy(), different.numpy(), distances=False)

    def near_duplicates(self, sha256: Sequence[str], features: Tensor | None) -> list[list[int]]:
        """The places of each photo's near-duplicates, and of theirs: features (B, D) of the photos.

        A photo need not be in the collection to have some there.
        """
        if features is None or self._features is None:
            return [[] for _ in sha256]
        near = F.normalize(features, dim=1) @ self._features.T > self.duplicates_above  # (B, P)
        sets = [self._with_their_own(row.nonzero()[:, 0].tolist()) for row in near]
        return [sorted(one - {self._place.get(name, -1)}) for name, one in zip(sha256, sets, strict=True)]

    def _with_their_own(self, places: Iterable[int]) -> set[int]:
        """These places, their near-duplicates, the near-duplicates of those, and so on: a burst is one set."""
        found, waiting = set(places), list(places)
        while waiting and self._features is not None:
            place = waiting.pop()
            if place not in self._near:
                near = self._features @ self._features[place] > self.duplicates_above
                self._near[place] = near.nonzero()[:, 0].tolist()
            new = set(self._near[place]) - found
            found |= new
            waiting += new
        return found

    def remember(self, captions: Mapping[str, str]) -> None:
        """Captions that photos have already, by file."""
        named = dict(zip(places(list(captions)), captions.values(), strict=True))
        here = enumerate(places(self.photos.files))
        self._earlier = {number: named[name] for number, name in here if named.get(name)}

    def captions_so_far(self) -> Chosen:
        so_far = Chosen()
        for place, text in self._earlier.items():
            so_far.add(place, Caption(self.photos.files[place], text))
        return so_far

    def place_of(self, sha256: str) -> int | None:
        return self._place.get(sha256)

    def copies(self, near: Sequence[int], features: Tensor | None) -> list[int]:
        """Those near-duplicates that show the very same picture.  features: (D,) of the photo"""
        if features is None or self._features is None or not near:
            return []
        same = self._features[list(near)] @ F.normalize(features, dim=0) > COPIES_ABOVE
        return [place for place, is_same in zip(near, same.tolist(), strict=True) if is_same]

    def others(self, sha256: Sequence[str], features: Tensor | None = None) -> Tensor:
        """(B, P) True where a photo of the collection is not the photo itself, nor a copy or near-duplicate of it"""
        mask = torch.ones(len(sha256), len(self.vectors), dtype=torch.bool, device=self.vectors.device)
        for row, (name, near) in enumerate(zip(sha256, self.near_duplicates(sha256, features), strict=True)):
            mask[row, near] = False
            if name in self._place:
                mask[row, self._place[name]] = False
        return mask

    def nearest(self, own: Tensor, others: Tensor, k: int) -> list[list[tuple[int, float]]]:
        """The k most similar of the others, by the listener's view of the photos: own (B, E), others (B, P)"""
        similarity = (own @ self.vectors.T).masked_fill(~others, -torch.inf)
        best = similarity.topk(min(k, similarity.shape[1]), dim=1)
        return [
            sorted(
                ((place, score) for place, score in zip(places, scores, strict=True) if score > -math.inf),
                key=lambda found: (-found[1], found[0]),  # of equally similar ones the earlier first
            )
            for places, scores in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def look_alikes(self, own: Tensor, others: Tensor, k: int) -> list[list[int]]:
        """Those of the nearest, k at most, that are similar enough; of a burst only the most similar."""
        least = -math.inf if self.alike_above is None else self.alike_above
        groups = []
        for near in self.nearest(own, others, _DEEPER * k):
            group: list[int] = []
            passed: set[int] = set()
            for place, score in near:
                if score >= least and place not in passed and len(group) < k:
                    group.append(place)
                    passed |= self._with_their_own([place])
            groups.append(group)
        return groups

    def log_found(self, embedded: Tensor, own: Tensor, others: Tensor) -> Tensor:
        """The listener's log p(photo | caption): embedded, own (N, E), others (N, P) -> (N,)"""
        scale = self.retriever.scale
        to_own = scale * (embedded * own).sum(1)
        total = to_own  # log of the sum so far
        for places in torch.arange(len(self.vectors), device=embedded.device).split(_PLACES):  # type: ignore[no-untyped-call]
            to_others = scale * self.retriever.similarity(embedded, self.vectors[places])
            total = torch.logaddexp(total, to_others.masked_fill(~others[:, places], -torch.inf).logsumexp(1))
        return to_own - total

    def listener(self, own: Tensor, others: Tensor, words: Tokenizer) -> Listener:
        """For contrast at each word: own (B, E), others (B, P) of the photos of a batch; tokens are `words`'s.

        In a large collection only the look-alikes of the batch's photos count: thousands of beginnings are embedded at
        every word, and photos unlike the target hardly take part in the listener's choice.
        """
        near, among = self, others
        if len(self.vectors) > _NEAR * len(own):
            places = sorted({place for group in self.nearest(own, others, _NEAR) for place, _ in group})
            near, among = self.only(places), others[:, places]

        def listen(tokens: Tensor, photo: Tensor) -> Tensor:
            return near.log_found(self.retriever.embed_tokens(tokens, words), own[photo], among[photo])

        return listen

    def only(self, places: Sequence[int]) -> Collection:
        """A part of the collection."""
        return Collection(self.retriever, part_of(self.photos, places))


def places(names: Sequence[str]) -> list[str]:
    """Where each file is, however it is named: its folder without links and "..", and its name there."""
    folders: dict[str, str] = {}
    found = []
    for name in names:
        folder, last = os.path.split(name)
        if "\0" in name or last in ("", ".", ".."):
            found.append(name)
            continue
        if folder not in folders:
            folders[folder] = str(files.real(Path(folder)))
        found.append(os.path.join(folders[folder], last))  # noqa: PTH118 - strings, of many thousand photos
    return found


def part_of(photos: Embedded, places: Sequence[int]) -> Embedded:
    files, sha256 = [photos.files[place] for place in places], [photos.sha256[place] for place in places]
    features = None if photos.features is None else photos.features[list(places)]
    return Embedded(files, sha256, photos.failed, photos.vectors[list(places)], features)


def rerank(
    proposed: Iterable[Proposed],
    photos: Mapping[str, PhotoVectors],
    collection: Collection,
    how: RerankConfig,
    so_far: Chosen | None = None,
) -> Iterator[Caption]:
    """The chosen caption of each photo, in order.

    photos  each as the listener sees it, by its hash
    so_far  captions that photos of the collection have, to which these are added; default: the earlier ones
    """
    so_far = collection.captions_so_far() if so_far is None else so_far
    for batch in batched(proposed, _BATCH):
        good = [one for one in batch if not one.error and one.candidates and one.sha256 in photos]
        own, features = stacked([photos[one.sha256] for one in good])
        chosen = iter(choose(good, own, collection, how, features, so_far) if good else [])
        for one in batch:
            if one.error or not one.candidates:
                yield Caption(one.file, error=one.error or "no caption was generated")
            elif one.sha256 not in photos:
                yield Caption(one.file, error="could not be seen by the retriever")
            else:
                yield next(chosen)


def stacked(photos: Sequence[PhotoVectors]) -> tuple[Tensor, Tensor | None]:
    """(B, E) embeddings and (B, D) features, where all have them."""
    if not photos:
        return torch.zeros(0, 0), None
    features = [photo.features for photo in photos if photo.features is not None]
    embeddings = torch.stack([photo.embedding for photo in photos])
    return embeddings, torch.stack(features) if len(features) == len(photos) else None


@torch.inference_mode()
def choose(
    proposed: Sequence[Proposed],
    own: Tensor,
    collection: Collection,
    how: RerankConfig,
    features: Tensor | None = None,
    so_far: Chosen | None = None,
) -> list[Caption]:
    """The best candidate of each photo, which has one at least.

    own, features  (B, E), (B, D) the photos as the listener and its encoder see them
    so_far         captions that photos of the collection have, to which these are added
    """
    so_far = Chosen() if so_far is None else so_far
    hashes = [one.sha256 for one in proposed]
    others = collection.others(hashes, features)  # (B, P)
    duplicates = collection.near_duplicates(hashes, features)
    groups = collection.look_alikes(own, others, how.k)
    photo = torch.repeat_interleave(torch.tensor([len(one.candidates) for one in proposed])).to(own.device)
    embedded = collection.retriever.embed_captions([candidate.text for one in proposed for candidate in one.candidates])
    to_own = (embedded * own[photo]).sum(1)
    log_found = collection.log_found(embedded, own[photo], others[photo])
    chosen, start = [], 0
    for row, (one, group, near) in enumerate(zip(proposed, groups, duplicates, strict=True)):
        rows = slice(start, start + len(one.candidates))
        start = rows.stop
        to_group = collection.retriever.similarity(embedded[rows], collection.vectors[group])
        gaps = to_own[rows] - (to_group.mean(1) if group else math.nan)
        found = log_found[rows] if how.by == "softmax" or not group else gaps
        taken = [_is_taken(candidate, own[row], others[row], collection, so_far) for candidate in one.candidates]
        best = best_of(one, found.double().cpu().numpy(), how, taken)
        candidate = one.candidates[best]
        alike, same = (tuple(collection.photos.files[place] for place in places) for places in (group, near))
        caption = Caption(
            one.file,
            candidate.text,
            candidate.logp,
            sha256=one.sha256,
            look_alikes=alike,
            gap=float(gaps[best]),
            near_duplicates=same,
        )
        place, copies = (
            collection.place_of(one.sha256),
            collection.copies(near, None if features is None else features[row]),
        )
        caption, stem = _among_duplicates(caption, one, place, near, copies, how, so_far)
        if place is not None:
            so_far.add(place, caption, stem)
        chosen.append(caption)
    return chosen


def _is_taken(candidate: Candidate, own: Tensor, others: Tensor, collection: Collection, so_far: Chosen) -> bool:
    """Whether a look-alike has this caption: own (E,), others (P,) of the photo."""
    holders = [place for place in so_far.with_caption(candidate.text) if others[place]]
    least = -math.inf if collection.alike_above is None else collection.alike_above
    return bool(holders) and float((collection.vectors[holders] @ own).max()) >= least


def _among_duplicates(
    caption: Caption,
    one: Proposed,
    place: int | None,
    near: Sequence[int],
    copies: Sequence[int],
    how: RerankConfig,
    so_far: Chosen,
) -> tuple[Caption, str]:
    """The caption as the photo's kind asks for it, and what frames of its burst share.

    place         of the photo in the collection, where it is there
    near, copies  places of its near-duplicates, and of those that show the same picture
    """
    own = [] if place is None else [place]
    if (same := so_far.first([*own, *copies])) is not None:
        return copied(so_far.captions[same], caption), so_far.stems[same]
    if how.bursts == "own" or (first := so_far.first(near)) is None:
        return caption, ""
    if how.bursts == "share":
        return copied(so_far.captions[first], caption), ""
    texts = [so_far.captions[other].text for other in near if other in so_far.captions]
    return replace(caption, text=with_difference(so_far.stems[first], one.candidates, texts)), so_far.stems[first]


def best_of(one: Proposed, found: NDArray[np.float64], how: RerankConfig, taken: Sequence[bool] | None = None) -> int:
    """Of equally good candidates the first, which is the captioner's own choice.

    found  (K,) how well the listener finds the photo by each
    taken  (K,) those that a look-alike has: they are chosen only if it has all of them
    """
    candidates = one.candidates
    log_probability = np.array([each.logp / max(each.tokens, 1) ** how.length for each in candidates])
    each_token = np.array([each.logp / max(each.tokens, 1) for each in candidates])
    if np.isnan(
        log_probability
    ).any():  # of another program: one without a log p cannot be compared with one that has it
        log_probability, each_token = np.zeros(len(candidates)), np.zeros(len(candidates))
    words = [split_words(each.text) for each in candidates]
    flawed = np.array([flaws(each) for each in words])
    score = log_probability + how.strength * found - flawed
    if how.fluency:
        from tellapart.rewards import language_model

        score += how.fluency * language_model.shortfall(*language_model.coco().terms(words), len(words))
    if how.context is not None:
        score += how.context.bonus(one.file, [each.text for each in candidates])
    free = np.ones(len(candidates), bool) if taken is None else ~np.array(taken)
    likely = each_token >= each_token.max() - how.unlikely
    for allowed in (free & (flawed == 0) & likely, free & likely, free & (flawed == 0), (flawed == 0) & likely, likely):
        if allowed.any():
            return int(np.where(allowed, score, -np.inf).argmax())
    return int(score.argmax())
