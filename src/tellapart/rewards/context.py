"""The parts that rewards are made of: references, retrievers and look-alikes of the training photos."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from capscore.fluency import KneserNey
from capscore.ngrams import Frequencies
from capscore.objects import CLASSES
from capscore.progress import notice
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.examples import Example, Exclusion
from tellapart.data.items import Unusable
from tellapart.data.store import Stores
from tellapart.detectors import load as load_detector
from tellapart.detectors.detector import detect
from tellapart.distributed import SINGLE, ProcessGroup
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.encoder import InView
from tellapart.features.extracted import pooled_features, pooled_identity
from tellapart.metrics.objects import WEAK
from tellapart.models.retrievers import load as load_retriever
from tellapart.neighbours import groups as group_files
from tellapart.neighbours.groups import Groups, Photo, Rule
from tellapart.neighbours.mining import Captions, mine
from tellapart.recipe import RewardsConfig
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import SampledCaptions, language_model
from tellapart.rewards.agreement import Consensus
from tellapart.rewards.retrieval import FrozenRetriever
from tellapart.rewards.words import WordView, content_words

Source = tuple[Stores, Sequence[Example]]
Neighbours = tuple[NDArray[np.int64], NDArray[np.float32]]  # (P, k) indices, -1 after the last, and scores

FOUND_BY = ("image", "caption")  # how look-alikes are found by the retriever; else there is a file of them
_DEEPER = 4  # times as many where near-duplicates are dropped
_FARTHER = 10  # times as many look-alikes are searched where a curriculum begins with the farther ones


def image_retrievers_of(config: RewardsConfig, load: Callable[[str], Retriever]) -> list[Retriever]:
    """The image retriever, and those that take turns with it."""
    retrievers = [load(name) for name in (config.image_retriever, *config.other_retrievers)]
    for place, retriever in enumerate(retrievers):
        if retriever.sees != "photos":
            field = "other_retrievers" if place else "image_retriever"
            raise UserError(f"objective.rewards.{field}: {retriever.name} knows photos by their references only.")
    return retrievers


def text_retriever_of(config: RewardsConfig, load: Callable[[str], Retriever]) -> Retriever:
    retriever = load(config.text_retriever)
    if retriever.sees != "references":
        raise UserError(
            f"objective.rewards.text_retriever: {retriever.name} compares captions with photos; "
            "it must compare them with references."
        )
    return retriever


class RewardContext:
    """The parts that rewards are made of, each made when the first reward asks for it.

    sources   the training photos with their features, data set by data set, as they are in `data`
    features  the folder of the feature cache, where look-alikes that were found are kept as well
    names     of the data sets
    load      gives the retriever of a name (default: loads it)
    detector  of objects, by its file, folder or hub id
    left_out  gives the photos whose captions a language model must not see
    """

    def __init__(
        self,
        config: RewardsConfig,
        sources: Sequence[Source],
        data: CaptionedPhotos,
        view: WordView,
        *,
        features: Path,
        device: torch.device,
        names: Sequence[str] = (),
        world: ProcessGroup = SINGLE,
        load: Callable[[str], Retriever] | None = None,
        detector: str = "",
        left_out: Callable[[], Sequence[Exclusion]] = tuple,
    ):
        self._detector, self._left_out = detector, left_out
        self.config, self.data, self.view, self.world = config, data, view, world
        self.vocabulary = view.vocabulary
        self._sources, self._features, self.names = sources, features, names
        self._load = load or partial(load_retriever, device=str(device))
        self.content = content_words(self.vocabulary)
        self.source = np.repeat(np.arange(len(sources)), [len(examples) for _, examples in sources])  # (P,)
        self.frequencies: Frequencies | None = None  # of n-grams; none: those of the references
        self._measures: dict[str, Consensus] = {}

    def texts(self, sampled: SampledCaptions) -> Sequence[str]:
        """(N,) captions as people read them"""
        if sampled.texts is not None:
            return sampled.texts
        rows = zip(sampled.words.tolist(), sampled.mask.sum(1).tolist(), strict=True)
        return [self.vocabulary.decode(words[:length]) for words, length in rows]

    def files(self, sampled: SampledCaptions) -> list[Path]:
        """(N,) the file of each caption's photo"""
        return [self.data.examples[photo].file for photo in sampled.photos.tolist()]

    def factors(self, reward: str) -> Tensor:
        """(P,) what the recipe multiplies the reward with for each photo"""
        of_sets = self.config.dataset_weights[reward]
        return torch.tensor([of_sets.get(name, 1.0) for name in self.names])[torch.from_numpy(self.source)]

    @cached_property
    def references(self) -> list[list[list[int]]]:
        """Word ids of each photo's captions, without the end.

        They are whole, however short the captioner's must be: an end after a caption that was cut would make "a" a
        usual last word, and CIDEr-D would pay for "a kitchen with a stove and a".
        """
        return [[self.vocabulary.encode(text) for text in example.captions] for example in self.data.examples]

    def consensus(self, measure: str) -> Consensus:
        if measure not in self._measures:
            self._measures[measure] = Consensus(
                self.references,
                end=self.vocabulary.eos,
                measure=measure,
                count_end=self.config.count_end,
                frequencies=self.frequencies,
            )
        return self._measures[measure]

    @cached_property
    def retriever(self) -> Retriever:
        return image_retrievers_of(self.config, self._load)[0]

    @cached_property
    def image_retriever(self) -> FrozenRetriever:
        return self._frozen(self.retriever)

    @cached_property
    def image_retrievers(self) -> list[FrozenRetriever]:
        """The retriever, and those that take turns with it."""
        others = image_retrievers_of(self.config, self._load)[1:] if self.config.other_retrievers else []
        return [self.image_retriever, *map(self._frozen, others)]

    def _frozen(self, retriever: Retriever) -> FrozenRetriever:
        pooled = pooled_of(retriever, self._sources)
        return FrozenRetriever.of_photos(retriever, self.vocabulary, pooled, torch.from_numpy(self.source))

    def views(self, count: int) -> Tensor:
        """(V, P, E) other views of the photos, as the retriever sees them"""
        files, views = [str(example.file) for example in self.data.examples], []
        for number in range(1, count + 1):
            encoder = InView(self.retriever.encoder, number)  # type: ignore[arg-type]  # who sees photos has an encoder
            pooled = self.world.sequentially(partial(_pooled_by, encoder, files, self.retriever.name))
            views.append(self.retriever.embed_images(pooled).float().clone())
        return torch.stack(views)

    @cached_property
    def text_retriever(self) -> FrozenRetriever:
        retriever = text_retriever_of(self.config, self._load)
        references = [example.captions for example in self.data.examples]
        return FrozenRetriever.of_references(retriever, self.vocabulary, references, torch.from_numpy(self.source))

    @cached_property
    def objects(self) -> list[frozenset[int] | None]:
        """The classes of COCO that a detector sees in each photo, however weakly; none where it failed."""
        detector = load_detector(self._detector, CLASSES)
        files = [str(example.file) for example in self.data.examples]
        detections = self.world.sequentially(partial(detect, detector, list(dict.fromkeys(files))))
        unusable = Unusable(notice)
        for file, reason in detections.failed.items():
            unusable.add(file, reason)
        unusable.rest()
        classes = dict(zip(detections.files, detections.classes_above(WEAK, detector.numbers_of(CLASSES)), strict=True))
        return [classes.get(file) for file in files]

    @cached_property
    def language_model(self) -> KneserNey:
        text = self.config.fluency_text
        return language_model.learned(text, self._left_out()) if text else language_model.coco()

    @cached_property
    def look_alikes(self) -> Tensor:
        """(P, k) positions of each photo's look-alikes, nearest first, -1 after the last"""
        return torch.from_numpy(self._groups[0])

    @cached_property
    def closeness(self) -> Tensor:
        """(P,) how much each photo is like the nearest of them; -inf where there is none"""
        indices, scores = self._groups
        return torch.from_numpy(np.where(indices[:, 0] >= 0, scores[:, 0], -np.inf).astype(np.float32))

    @cached_property
    def _groups(self) -> Neighbours:
        config = self.config
        wanted = config.group_size * (_FARTHER if config.curriculum else 1)
        if config.look_alikes not in FOUND_BY:
            return self._from_file(Path(config.look_alikes), wanted)
        limit = config.near_duplicates
        k = wanted if limit == 1 else _DEEPER * wanted  # more are searched where some are dropped
        rule = Rule(config.look_alikes, k=k, retriever=self.retriever.name, retriever_sha256=self.retriever.sha256)  # type: ignore[arg-type]
        # within a data set: another one's are told apart by their look
        indices, scores = self._mined(rule, self.image_retriever.images.float().cpu().numpy(), within_sets=True)
        return _without(indices, scores, scores > limit, wanted) if limit < 1 else (indices, scores)

    @cached_property
    def nearest(self) -> Tensor:
        """(P,) the photo most like each, by the Euclidean distance of pooled features (GLD); -1 where there is none"""
        vectors = torch.cat([stores.pooled(examples) for stores, examples in self._sources]).float().numpy()
        indices, _ = self._mined(Rule(metric="euclidean", k=1), vectors, within_sets=False)
        return torch.from_numpy(indices[:, 0].copy())

    def _mined(self, rule: Rule, vectors: NDArray[np.float32], *, within_sets: bool) -> Neighbours:
        """Look-alikes by vectors of the photos, found once and kept beside the features; copies count as well.

        The vectors are part of the file's name: they change where a file is another photo now.
        """
        examples = self.data.examples
        photos = [[str(each.id), int(of), *each.captions] for each, of in zip(examples, self.source, strict=True)]
        digest = self.world.on_main(lambda: hashlib.sha256(np.ascontiguousarray(vectors)).hexdigest())  # type: ignore[arg-type]
        key = hashlib.sha256(json.dumps([asdict(rule), photos, digest]).encode()).hexdigest()[:16]
        file = self._features / f"look_alikes-{key}.npz"

        def find() -> Groups:
            captions = None
            if rule.by == "caption":
                texts = [text for example in examples for text in example.captions]
                rows = np.repeat(np.arange(len(examples)), [len(example.captions) for example in examples])
                captions = Captions(self.retriever.embed_captions(texts).float().cpu().numpy(), rows)
            sets = map(str, self.source.tolist()) if within_sets else [""] * len(examples)
            numbered = enumerate(zip(examples, sets, strict=True))
            return mine([Photo(str(e.file), str(i), e.id, of) for i, (e, of) in numbered], vectors, rule, captions)

        def make() -> Neighbours:
            if not file.exists():
                groups, buffer = find(), io.BytesIO()
                recall = 1.0 if groups.recall is None else groups.recall
                np.savez(buffer, indices=groups.indices, scores=groups.scores, recall=recall)
                files.replace(file, buffer.getvalue())
            with np.load(file, allow_pickle=False) as kept:
                if self.world.is_main and (recall := float(kept["recall"])) < 1:
                    notice(f"look-alikes of rewards: found by an index, recall {recall:.3f} of exact search")
                return kept["indices"], kept["scores"]

        return self.world.sequentially(make)

    def _from_file(self, file: Path, wanted: int) -> Neighbours:
        """Look-alikes that `tellapart lookalikes` found, of these photos among themselves."""
        groups = group_files.load(file)
        place = {str(Path(example.file).absolute()): i for i, example in enumerate(self.data.examples)}
        number = np.array([place.get(str(Path(photo.file).absolute()), -1) for photo in groups.photos])
        rows = np.flatnonzero(number >= 0)
        if len(rows) < len(self.data):
            missing = next(e.id for i, e in enumerate(self.data.examples) if i not in set(number[rows].tolist()))
            raise UserError(
                f"{file}: the training photo {missing} is not in it; were look-alikes found for another split?"
            )
        indices = np.full((len(self.data), groups.indices.shape[1]), -1)
        scores = np.zeros(indices.shape, np.float32)
        alike, sign = groups.indices[rows], -1 if groups.rule.metric == "euclidean" else 1
        indices[number[rows]] = np.where(alike >= 0, number[alike], -1)
        scores[number[rows]] = sign * groups.scores[rows]
        return _without(indices, scores, indices < 0, wanted)  # those of other splits


def _without(
    indices: NDArray[np.int64], scores: NDArray[np.float32], dropped: NDArray[np.bool_], wanted: int
) -> Neighbours:
    """Look-alikes (P, k) without those that are dropped: the rest move up, and the first are kept."""
    indices, order = np.where(dropped, -1, indices), (dropped | (indices < 0)).argsort(1, kind="stable")
    rows = np.arange(len(indices))[:, None]
    return indices[rows, order][:, :wanted], scores[rows, order][:, :wanted]


def pooled_of(retriever: Retriever, sources: Sequence[Source]) -> Tensor:
    """(P, D) the photos as the retriever's encoder sees them: by the features at hand, if they are of that encoder."""
    parts, encoder = [], retriever.encoder
    if encoder is None:
        raise UserError(f"{retriever.name} knows photos by their references; it cannot be shown photos.")
    for stores, examples in sources:
        if not examples:
            continue
        for store in stores.values():
            if pooled_identity(store.identity) == pooled_identity(encoder.identity):
                parts.append(store.pooled([store.row(example) for example in examples]).float())
                break
        else:
            parts.append(_pooled_by(encoder, [str(example.file) for example in examples], retriever.name))
    return torch.cat(parts)


def _pooled_by(encoder: PhotoEncoder, files: Sequence[str], name: str) -> Tensor:
    """(P, D) of files by the encoder of the retriever of this name."""
    pooled = pooled_features(encoder, files)
    if pooled.failed:
        file, reason = next(iter(pooled.failed.items()))
        raise UserError(f"{file}: {reason}; {name} has to see every photo.")
    return torch.from_numpy(pooled.vectors)
