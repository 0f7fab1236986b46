"""Captions told apart: of several captions of a photo, the one that best picks it out of a collection.

The score of a candidate is

    log p / tokens**length  +  strength * how well a listener finds the photo by it  -  its flaws
                            +  fluency * how far its words fall short of people's (the reward of that name; off)

where the listener is a retriever that reads the caption and looks at the collection: either by the log of the
probability it gives the photo (a softmax over the collection), or by the gap between the photo and its look-alikes.
Flaws are repeated content words, and breaking off, as "a dog on a" does.  Candidates that have any, or are
far less likely than the best, are not chosen while there are others.

Exact copies and near-duplicates of a photo do not take part:

copies       the same bytes, or features that are equal: another file of the same picture.  They get one caption
bursts       near-duplicates: frames of a burst, edits.  Each has its own caption, which may be another one's (`own`);
             or all have that of the first (`share`)
look-alikes  other photos that are similar.  A caption that one of them has is not chosen while there is another one

Words of the photo's context, such as the name of its album, add a bonus to candidates that have them; it is bounded, so
that they decide between captions that are about as good.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capscore.errors import UserError
from capscore.words import flaws
from tellapart.captioning.pipeline import RerankConfig
from tellapart.data.captions import Caption, Proposed
from tellapart.data.examples import places
from tellapart.data.items import Unusable
from tellapart.data.tokenizers import Tokenizer, split_words
from tellapart.decoding.candidates import PhotoLogProbability
from tellapart.errors import BadPhoto
from tellapart.features.extracted import read_item
from tellapart.neighbours.groups import duplicates_above, quantile_of_pairs, sampled
from tellapart.parallel import batched
from tellapart.retrievers.retriever import Embedded, Retriever, embed_photos

COPIES_ABOVE = 0.9999  # cosine of pooled features; what is decoded from the same picture differs by rounding only
_BATCH = 16  # photos whose candidates are embedded together
_PLACES = 65536  # photos of a collection that they are compared with at once
_NEAR = 100  # photos most like a photo that count at each word, in a large collection
_DEEPER = 4  # times as many as look-alikes are wanted: several of the nearest may be of one burst


@dataclass
class CaptionsSoFar:
    """The captions that photos of a collection have, by their places there."""

    captions: dict[int, Caption] = field(default_factory=dict)
    _order: dict[int, int] = field(default_factory=dict)
    _places: dict[tuple[str, ...], list[int]] = field(default_factory=dict)  # by the words of the caption

    def add(self, place: int, caption: Caption) -> None:
        self.captions[place] = caption
        self._order.setdefault(place, len(self._order))
        self._places.setdefault(tuple(split_words(caption.text)), []).append(place)

    def with_caption(self, text: str) -> list[int]:
        return self._places.get(tuple(split_words(text)), [])

    def first(self, places: Iterable[int]) -> Caption | None:
        """The caption of the one of these that was the first to get one."""
        first = min((place for place in places if place in self._order), key=self._order.__getitem__, default=None)
        return None if first is None else self.captions[first]


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

    def problems(self, but: Container[str]) -> list[str]:
        """Sentences on photos that could not be used; but: photos that are named elsewhere"""
        sentences = list[str]()
        unusable = Unusable(sentences.append)
        for file, reason in self.photos.failed.items():
            if file not in but:
                unusable.add(file, reason)
        unusable.rest()
        return sentences

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
        sets = [self._burst_of(row.nonzero()[:, 0].tolist()) for row in near]
        return [sorted(near - {self._place.get(name, -1)}) for name, near in zip(sha256, sets, strict=True)]

    def _burst_of(self, places: Iterable[int]) -> set[int]:
        """These places, their near-duplicates, the near-duplicates of those, and so on: a burst is one set."""
        burst, waiting = set(places), list(places)
        while waiting and self._features is not None:
            place = waiting.pop()
            if place not in self._near:
                near = self._features @ self._features[place] > self.duplicates_above
                self._near[place] = near.nonzero()[:, 0].tolist()
            new = set(self._near[place]) - burst
            burst |= new
            waiting += new
        return burst

    def remember(self, captions: Mapping[str, str]) -> None:
        """Captions that photos have already, by file."""
        named = dict(zip(places(list(captions)), captions.values(), strict=True))
        here = enumerate(places(self.photos.files))
        self._earlier = {number: named[name] for number, name in here if named.get(name)}

    def scene(self, photos: Sequence[Any], *, keep: bool = True) -> Scene:
        """Photos, named or as pictures in memory, as the listener sees them; those that cannot be read are left out.

        keep  features are kept for the next time
        """
        so_far = CaptionsSoFar()
        for place, text in self._earlier.items():
            so_far.add(place, Caption(self.photos.files[place], text))
        names = dict.fromkeys(os.fspath(photo) for photo in photos if not isinstance(photo, Image.Image))
        here = {file: place for place, file in enumerate(self.photos.files) if file in names}
        embedded = [part_of(self.photos, list(here.values()))]
        if keep and (others := [name for name in names if name not in here]):
            embedded.append(embed_photos(self.retriever, others))
        hashes = [sha256 for part in embedded for sha256 in part.sha256]
        vectors = [torch.from_numpy(part.vectors) for part in embedded]
        features = [torch.from_numpy(part.features) for part in embedded if part.features is not None]
        for photo in [photo for photo in photos if isinstance(photo, Image.Image)] if keep else photos:
            if self.retriever.encoder is not None:
                with suppress(BadPhoto), torch.inference_mode():
                    read = read_item(self.retriever.encoder, photo)
                    features.append(self.retriever.encoder(read.pixels[None]).pooled.cpu())
                    vectors.append(self.retriever.embed_images(features[-1]).cpu())
                    hashes.append(read.sha256)
        device, has_features = self.vectors.device, len(features) == len(vectors)
        rows = {sha256: row for row, sha256 in enumerate(hashes)}
        return Scene(
            self, rows, torch.cat(vectors).to(device), torch.cat(features).to(device) if has_features else None, so_far
        )

    def place_of(self, sha256: str) -> int | None:
        return self._place.get(sha256)

    def copies(self, near: Sequence[int], features: Tensor | None) -> list[int]:
        """The near-duplicates that show the very same picture.  features: (D,) of the photo"""
        if features is None or self._features is None or not near:
            return []
        same = self._features[list(near)] @ F.normalize(features, dim=0) > COPIES_ABOVE
        return [place for place, is_same in zip(near, same.tolist(), strict=True) if is_same]

    def others(self, sha256: Sequence[str], duplicates: Sequence[Sequence[int]]) -> Tensor:
        """(B, P) True where a photo of the collection is not the photo itself, nor a copy or near-duplicate of it"""
        mask = torch.ones(len(sha256), len(self.vectors), dtype=torch.bool, device=self.vectors.device)
        for row, (name, near) in enumerate(zip(sha256, duplicates, strict=True)):
            mask[row, near] = False
            if name in self._place:
                mask[row, self._place[name]] = False
        return mask

    def nearest(self, photos: Tensor, others: Tensor, k: int) -> list[list[tuple[int, float]]]:
        """The k most similar of the others, by the listener's view of the photos: photos (B, E), others (B, P)"""
        similarity = (photos @ self.vectors.T).masked_fill(~others, -torch.inf)
        best = similarity.topk(min(k, similarity.shape[1]), dim=1)
        return [
            sorted(
                ((place, score) for place, score in zip(places, scores, strict=True) if score > -math.inf),
                key=lambda pair: (-pair[1], pair[0]),  # of equally similar ones the earlier first
            )
            for places, scores in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def look_alikes(self, photos: Tensor, others: Tensor, k: int) -> list[list[int]]:
        """The nearest that are similar enough, k at most; of a burst only the most similar."""
        least = -math.inf if self.alike_above is None else self.alike_above
        groups = []
        for near in self.nearest(photos, others, _DEEPER * k):
            group: list[int] = []
            passed: set[int] = set()
            for place, score in near:
                if score >= least and place not in passed and len(group) < k:
                    group.append(place)
                    passed |= self._burst_of([place])
            groups.append(group)
        return groups

    def log_p_of_photo(self, embedded: Tensor, photos: Tensor, others: Tensor) -> Tensor:
        """The listener's log p(photo | caption): embedded, photos (N, E), others (N, P) -> (N,)"""
        scale = self.retriever.scale
        to_photo = scale * (embedded * photos).sum(1)
        total = to_photo  # log of the sum so far
        for some in torch.arange(len(self.vectors), device=embedded.device).split(_PLACES):  # type: ignore[no-untyped-call]
            to_others = scale * self.retriever.similarity(embedded, self.vectors[some])
            total = torch.logaddexp(total, to_others.masked_fill(~others[:, some], -torch.inf).logsumexp(1))
        return to_photo - total

    def listener(self, photos: Tensor, others: Tensor, words: Tokenizer) -> PhotoLogProbability:
        """For contrast at each word: photos (B, E), others (B, P) of the photos of a batch; tokens are `words`'s.

        In a large collection only the look-alikes of the batch's photos count: thousands of beginnings are embedded at
        every word, and photos unlike the target hardly take part in the listener's choice.
        """
        near, among = self, others
        if len(self.vectors) > _NEAR * len(photos):
            places = sorted({place for group in self.nearest(photos, others, _NEAR) for place, _ in group})
            near, among = self.only(places), others[:, places]

        def listen(tokens: Tensor, photo: Tensor) -> Tensor:
            return near.log_p_of_photo(self.retriever.embed_tokens(tokens, words), photos[photo], among[photo])

        return listen

    def only(self, places: Sequence[int]) -> Collection:
        """A part of the collection."""
        return Collection(self.retriever, part_of(self.photos, places))


def part_of(photos: Embedded, places: Sequence[int]) -> Embedded:
    files, sha256 = [photos.files[place] for place in places], [photos.sha256[place] for place in places]
    features = None if photos.features is None else photos.features[list(places)]
    return Embedded(files, sha256, photos.failed, photos.vectors[list(places)], features)


@dataclass(frozen=True)
class Scene:
    """Photos that are to be told apart, as the listener sees them, and the collection that they are told apart in."""

    collection: Collection
    rows: Mapping[str, int]  # of each photo, by its hash
    embeddings: Tensor  # (P, E)
    features: Tensor | None = None  # (P, D) the encoder's; without them no near-duplicate is known
    so_far: CaptionsSoFar = field(default_factory=CaptionsSoFar)  # of the collection; those that are chosen are added

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self.rows

    def vectors(self, hashes: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """(B, E) embeddings and (B, D) features of these photos."""
        rows = [self.rows[sha256] for sha256 in hashes]
        return self.embeddings[rows], None if self.features is None else self.features[rows]


def rerank(proposed: Iterable[Proposed], scene: Scene, config: RerankConfig) -> Iterator[Caption]:
    """The chosen caption of each photo, in order."""
    for batch in batched(proposed, _BATCH):
        usable = [item for item in batch if not item.error and item.candidates and item.sha256 in scene]
        chosen = iter(choose(usable, scene, config) if usable else [])
        for item in batch:
            if item.error or not item.candidates:
                yield Caption(item.file, error=item.error or "no caption was generated")
            elif item.sha256 not in scene:
                yield Caption(item.file, error="could not be seen by the retriever")
            else:
                yield next(chosen)


@torch.inference_mode()
def choose(proposed: Sequence[Proposed], scene: Scene, config: RerankConfig) -> list[Caption]:
    """The best candidate of each photo, which has one at least and is in the scene."""
    collection, so_far = scene.collection, scene.so_far
    hashes = [item.sha256 for item in proposed]
    photos, features = scene.vectors(hashes)  # (B, E), (B, D)
    duplicates = collection.near_duplicates(hashes, features)
    others = collection.others(hashes, duplicates)  # (B, P)
    groups = collection.look_alikes(photos, others, config.k)
    texts = [candidate.text for item in proposed for candidate in item.candidates]  # N of all photos
    embedded = collection.retriever.embed_captions(texts)
    photo_of = torch.repeat_interleave(torch.tensor([len(item.candidates) for item in proposed])).to(photos.device)
    to_photo = (embedded * photos[photo_of]).sum(1)
    log_p = collection.log_p_of_photo(embedded, photos[photo_of], others[photo_of])
    captions, start = [], 0
    for row, (item, group, near) in enumerate(zip(proposed, groups, duplicates, strict=True)):
        rows = slice(start, start + len(item.candidates))
        start = rows.stop
        to_group = collection.retriever.similarity(embedded[rows], collection.vectors[group])
        gaps = to_photo[rows] - (to_group.mean(1) if group else math.nan)
        listened = log_p[rows] if config.by == "softmax" or not group else gaps
        taken = [_is_taken(candidate.text, photos[row], others[row], scene) for candidate in item.candidates]
        best = best_of(item, listened.double().cpu().numpy(), config, taken)
        text, logp = item.candidates[best].text, item.candidates[best].logp
        place = collection.place_of(item.sha256)
        copies = collection.copies(near, None if features is None else features[row])
        same = so_far.first([*copies] if place is None else [place, *copies])
        if same is None and config.bursts == "share":
            same = so_far.first(near)
        if same is not None:
            text, logp = same.text, same.logprob
        caption = Caption(
            item.file,
            text,
            logp,
            sha256=item.sha256,
            look_alikes=tuple(collection.photos.files[place] for place in group),
            gap=float(gaps[best]),
            near_duplicates=tuple(collection.photos.files[place] for place in near),
        )
        if place is not None:
            so_far.add(place, caption)
        captions.append(caption)
    return captions


def _is_taken(text: str, photo: Tensor, others: Tensor, scene: Scene) -> bool:
    """True if a look-alike has this caption: photo (E,), others (P,) of the photo."""
    collection = scene.collection
    holders = [place for place in scene.so_far.with_caption(text) if others[place]]
    least = -math.inf if collection.alike_above is None else collection.alike_above
    return bool(holders) and float((collection.vectors[holders] @ photo).max()) >= least


def best_of(
    proposed: Proposed, listened: NDArray[np.float64], config: RerankConfig, taken: Sequence[bool] | None = None
) -> int:
    """Of equally good candidates the first, which is the captioner's own choice.

    listened  (K,) how well the listener finds the photo by each
    taken     (K,) those that a look-alike has: they are chosen only if it has all of them
    """
    candidates = proposed.candidates
    log_probability = np.array([each.logp / max(each.tokens, 1) ** config.length for each in candidates])
    each_token = np.array([each.logp / max(each.tokens, 1) for each in candidates])
    if np.isnan(log_probability).any():  # one of another program, not comparable
        log_probability, each_token = np.zeros(len(candidates)), np.zeros(len(candidates))
    words = [split_words(each.text) for each in candidates]
    flawed = np.array([flaws(each) for each in words])
    score = log_probability + config.strength * listened - flawed
    if config.fluency:
        from tellapart.rewards import language_model

        score += config.fluency * language_model.shortfall(*language_model.coco().terms(words), len(words))
    if config.context is not None:
        score += config.context.bonus(proposed.file, [each.text for each in candidates])
    free = np.ones(len(candidates), bool) if taken is None else ~np.array(taken)
    likely = each_token >= each_token.max() - config.unlikely
    for allowed in (free & (flawed == 0) & likely, free & likely, free & (flawed == 0), (flawed == 0) & likely, likely):
        if allowed.any():
            return int(np.where(allowed, score, -np.inf).argmax())
    return int(score.argmax())
