"""From a recipe to what its captions are worth: each reward of the table is made here from the training photos."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tellapart import files
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.examples import Example
from tellapart.data.features import FeatureStore, Stores
from tellapart.data.pooled import pooled_features
from tellapart.data.tokenizers import split_words
from tellapart.errors import UserError
from tellapart.metrics.measures.unusual_order import END, WordOrder, roles
from tellapart.neighbours import groups as group_files
from tellapart.neighbours.groups import Groups, Photo, Rule
from tellapart.neighbours.mining import Captions, mine
from tellapart.recipe import RewardsConfig
from tellapart.retrievers.loading import load as load_retriever
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import REWARDS, Reward, SampledCaptions, Term
from tellapart.rewards.combine import Combined
from tellapart.rewards.consensus import Consensus, MeteorConsensus
from tellapart.rewards.different import Different
from tellapart.rewards.global_discriminative import GlobalDiscriminative, HardNeighbour, InBatch, closeness_weights
from tellapart.rewards.group_gap import GroupGap, OwnSimilarity
from tellapart.rewards.listener import Listener
from tellapart.rewards.local_discriminative import Differences, LocalDiscriminative, thresholds
from tellapart.rewards.log_probability import InBatchLogProbability
from tellapart.rewards.rank import BoundedRank
from tellapart.rewards.reference_gap import ReferenceGap
from tellapart.rewards.retrieved import Retrieved
from tellapart.rewards.unusual_order import UnusualOrder, roles_of
from tellapart.rewards.wording import Ending, Faithful, Repetition, content_words, never_last
from tellapart.rewards.words import RewardVocabulary, WordView
from tellapart.training.distributed import ALONE, World

Source = tuple[Stores, Sequence[Example]]

_FOUND_BY = ("image", "caption")  # how look-alikes are found by the listener; else there is a file of them
_LISTENED_TO = frozenset(
    ("gd", "gd_neighbour", "gd_batch", "geg_avg", "geg_min", "similarity", "log_probability", "image_rank", "retrieved")
)
_FARTHER = 10  # times as many look-alikes are looked for where a curriculum begins with the farther ones


def build(material: Material, wrap: Callable[[str, Term], Term] | None = None) -> Combined:
    """The weighted sum of the recipe's terms.

    wrap  what becomes of each of them, by its name (default: nothing)
    """
    config = material.config
    check(config)
    check_factors(config, material.names)
    terms = {name: BUILDERS[name](material) for name in config.terms}
    if wrap is not None:
        terms = {name: wrap(name, term) for name, term in terms.items()}
    return Combined(
        terms,
        config.terms,
        balance=config.balance,
        unbalanced=frozenset(config.unbalanced) & terms.keys(),
        factors={name: material.factors(name) for name in config.factors},
        total=material.world.sum,
    )


def check(config: RewardsConfig) -> None:
    """What the types of a recipe cannot say."""
    if not config.terms:
        raise UserError("objective.rewards.terms names no reward; `tellapart models` lists them.")
    for name in config.terms:
        if name not in REWARDS:
            raise UserError(f"objective.rewards.terms: there is no reward {name!r}; there are {', '.join(REWARDS)}.")
    for name in config.unbalanced:
        if name not in REWARDS:
            raise UserError(
                f"objective.rewards.unbalanced: there is no reward {name!r}; there are {', '.join(REWARDS)}."
            )
    for name in config.factors:
        if name not in config.terms:
            raise UserError(f"objective.rewards.factors: {name!r} is none of the terms {', '.join(config.terms)}.")
    if "text_rank" in config.terms and not config.reader:
        raise UserError(
            "objective.rewards.reader: text_rank needs a retriever from text to text, such as a run of "
            "the recipe retrievers/text."
        )


def require(config: RewardsConfig, names: Sequence[str], load: Callable[[str], Retriever]) -> None:
    """Refuses rewards that could not be made of data sets of these names; retrievers that they ask are loaded."""
    check_factors(config, names)
    if asks_listener(config):
        listener_of(config, load)
    if "text_rank" in config.terms:
        reader_of(config, load)
    if _asks_look_alikes(config) and config.look_alikes not in _FOUND_BY:
        group_files.load(Path(config.look_alikes))


def check_factors(config: RewardsConfig, names: Sequence[str]) -> None:
    for reward, of_sets in config.factors.items():
        for name in of_sets:
            if name not in names:
                raise UserError(
                    f"objective.rewards.factors.{reward}: there is no data set {name!r}; "
                    f"there are {', '.join(names)}.  For none: --objective.rewards.factors '{{}}'."
                )


def asks_listener(config: RewardsConfig) -> bool:
    """Whether one of the rewards of the table asks the listener."""
    by_listener = _asks_look_alikes(config) and config.look_alikes in _FOUND_BY
    return by_listener or not _LISTENED_TO.isdisjoint(config.terms)


def _asks_look_alikes(config: RewardsConfig) -> bool:
    contrast = "ld" in config.terms and config.local.qualify == "contrast"
    by_closeness = "gd" in config.terms and config.per_photo
    return contrast or by_closeness or not {"geg_avg", "geg_min", "reference_gap"}.isdisjoint(config.terms)


def listener_of(config: RewardsConfig, load: Callable[[str], Retriever]) -> Retriever:
    retriever = load(config.listener)
    if retriever.sees != "photos":
        raise UserError(f"objective.rewards.listener: {retriever.name} knows photos by their references only.")
    return retriever


def reader_of(config: RewardsConfig, load: Callable[[str], Retriever]) -> Retriever:
    retriever = load(config.reader)
    if retriever.sees != "references":
        raise UserError(f"objective.rewards.reader: {retriever.name} looks at photos; it must read references.")
    return retriever


class Material:
    """What rewards are made of, each part made when the first reward asks for it.

    sources   the training photos with their features, data set by data set, as they are in `data`
    features  the folder of the feature cache, where look-alikes that were found are kept as well
    names     of the data sets
    load      gives the retriever of a name (default: loads it)
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
        world: World = ALONE,
        load: Callable[[str], Retriever] | None = None,
    ):
        self.config, self.data, self.vocabulary, self.world = config, data, view.vocabulary, world
        self._sources, self._features, self.names = sources, features, names
        self._load = load or partial(load_retriever, device=str(device))
        self.content = content_words(self.vocabulary)
        self.source = np.repeat(np.arange(len(sources)), [len(examples) for _, examples in sources])  # (P,)

    def factors(self, reward: str) -> Tensor:
        """(P,) what the recipe multiplies the reward with for each photo"""
        of_sets = self.config.factors[reward]
        return torch.tensor([of_sets.get(name, 1.0) for name in self.names])[torch.from_numpy(self.source)]

    @cached_property
    def references(self) -> list[list[list[int]]]:
        """Word ids of each photo's captions, without the end."""
        if isinstance(self.vocabulary, RewardVocabulary):
            return [[self.vocabulary.encode(text) for text in example.captions] for example in self.data.examples]
        return [[caption[:-1] for caption in captions] for captions in self.data.captions]

    def consensus(self, measure: str) -> Consensus:
        if measure not in self._measures:
            end, count_end = self.vocabulary.eos, self.config.count_end
            self._measures[measure] = Consensus(self.references, end=end, measure=measure, count_end=count_end)
        return self._measures[measure]

    @cached_property
    def _measures(self) -> dict[str, Consensus]:
        return {}

    @cached_property
    def retriever(self) -> Retriever:
        return listener_of(self.config, self._load)

    @cached_property
    def listener(self) -> Listener:
        pooled = pooled_of(self.retriever, self._sources)
        return Listener.of_photos(self.retriever, self.vocabulary, pooled, torch.from_numpy(self.source))

    @cached_property
    def reader(self) -> Listener:
        retriever = reader_of(self.config, self._load)
        references = [example.captions for example in self.data.examples]
        return Listener.of_references(retriever, self.vocabulary, references, torch.from_numpy(self.source))

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
    def _groups(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        wanted = self.config.group * (_FARTHER if self.config.curriculum else 1)
        how = self.config.look_alikes
        if how not in _FOUND_BY:
            return self._from_file(Path(how), wanted)
        rule = Rule(how, k=wanted, retriever=self.retriever.name, retriever_sha256=self.retriever.sha256)  # type: ignore[arg-type]
        return self._mined(rule, self._by_listener)

    @cached_property
    def nearest(self) -> Tensor:
        """(P,) the photo most like each, by the Euclidean distance of pooled features (GLD); -1 where there is none"""
        parts = [stores.pooled(examples) for stores, examples in self._sources]
        vectors = torch.cat(parts).float().numpy()
        rule = Rule(metric="euclidean", k=1, retriever_sha256=hashlib.sha256(vectors.tobytes()).hexdigest())
        indices, _ = self._mined(rule, lambda rule: mine(self._photos(), vectors, rule))
        return torch.from_numpy(indices[:, 0].copy())

    def _by_listener(self, rule: Rule) -> Groups:
        captions = None
        if rule.by == "caption":
            texts = [text for example in self.data.examples for text in example.captions]
            of = np.repeat(np.arange(len(self.data)), [len(example.captions) for example in self.data.examples])
            captions = Captions(self.retriever.embed_captions(texts).float().cpu().numpy(), of)
        photos = self._photos(self.source.tolist())  # within a data set: another one's are told apart by their look
        return mine(photos, self.listener.images.float().cpu().numpy(), rule, captions)

    def _photos(self, within: Sequence[object] | None = None) -> list[Photo]:
        """The photos to compare, each with those that are `within` the same; copies count as any other photo."""
        return [
            Photo(str(example.file), str(position), example.id, "" if within is None else str(within[position]))
            for position, example in enumerate(self.data.examples)
        ]

    def _mined(self, rule: Rule, find: Callable[[Rule], Groups]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Found once and kept beside the features."""
        photos = [
            [str(example.id), int(of), *example.captions]
            for example, of in zip(self.data.examples, self.source, strict=True)
        ]
        asked = json.dumps([asdict(rule), photos])
        file = self._features / f"look_alikes-{hashlib.sha256(asked.encode()).hexdigest()[:16]}.npz"

        def make() -> tuple[NDArray[np.int64], NDArray[np.float32]]:
            if not file.exists():
                groups, buffer = find(rule), io.BytesIO()
                np.savez(buffer, indices=groups.indices, scores=groups.scores)
                files.replace(file, buffer.getvalue())
            with np.load(file, allow_pickle=False) as kept:
                return kept["indices"], kept["scores"]

        return self.world.in_turn(make)

    def _from_file(self, file: Path, wanted: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Look-alikes that `tellapart lookalikes` found, of these photos among themselves."""
        groups = group_files.load(file)
        place = {str(Path(example.file).absolute()): i for i, example in enumerate(self.data.examples)}
        number = np.array([place.get(str(Path(photo.file).absolute()), -1) for photo in groups.photos])
        there = np.flatnonzero(number >= 0)
        if len(there) < len(self.data):
            missing = next(e.id for i, e in enumerate(self.data.examples) if i not in set(number[there].tolist()))
            raise UserError(
                f"{file}: the training photo {missing} is not in it; were look-alikes found for another split?"
            )
        indices = np.full((len(self.data), groups.indices.shape[1]), -1)
        scores = np.zeros(indices.shape, np.float32)
        found = groups.indices[there]
        indices[number[there]] = np.where(found >= 0, number[found], -1)
        scores[number[there]] = -groups.scores[there] if groups.rule.metric == "euclidean" else groups.scores[there]
        order = (indices < 0).argsort(1, kind="stable")  # those of other splits are left out, the rest move up
        rows = np.arange(len(indices))[:, None]
        return indices[rows, order][:, :wanted], scores[rows, order][:, :wanted]


def pooled_of(retriever: Retriever, sources: Sequence[Source]) -> Tensor:
    """(P, D) the photos as the retriever's encoder sees them: by the features at hand, if they are of that encoder."""
    parts = []
    for stores, examples in sources:
        if not examples:
            continue
        same = [store for store in stores.values() if isinstance(store, FeatureStore) and _same_eyes(store, retriever)]
        if same:
            parts.append(same[0].pooled([same[0].row(example) for example in examples]).float())
            continue
        if retriever.encoder is None:
            raise UserError(f"{retriever.name} knows photos by their references; it cannot be shown photos.")
        seen = pooled_features(retriever.encoder, [str(example.file) for example in examples])
        if seen.failed:
            file, reason = next(iter(seen.failed.items()))
            raise UserError(f"{file}: {reason}; {retriever.name} has to see every photo.")
        parts.append(torch.from_numpy(seen.vectors))
    return torch.cat(parts)


def _same_eyes(store: FeatureStore, retriever: Retriever) -> bool:
    """Pooled features do not depend on the grid that is kept beside them."""
    if retriever.encoder is None:
        return False
    of_the_grid = ("grid", "pooling")
    ours, theirs = (
        {key: value for key, value in identity.items() if key not in of_the_grid}
        for identity in (store.seen_by, retriever.encoder.identity)
    )
    return ours == theirs


class Sentence:
    """A measure of word ids against references as a term."""

    def __init__(self, measure: Consensus):
        self._measure = measure

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(self._measure(sampled.words, sampled.photos, sampled.reference))


class MeteorSentence:
    """METEOR, which compares texts, as a term."""

    def __init__(self, measure: MeteorConsensus):
        self._measure = measure

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(self._measure(sampled.words, sampled.photos, sampled.reference, sampled.texts))


def _consensus(measure: str, material: Material) -> Term:
    return Sentence(material.consensus(measure))


def _meteor(material: Material) -> Term:
    references = [example.captions for example in material.data.examples]
    return MeteorSentence(MeteorConsensus(references, decode=material.vocabulary.decode))


def _local(material: Material) -> Term:
    config, consensus = material.config.local, material.consensus("CIDEr-D")
    if config.ngram_quantile or config.word_quantile:
        quantiles = {"ngram_quantile": config.ngram_quantile, "word_quantile": config.word_quantile}
        ngrams, words = thresholds(consensus, **quantiles, tf=config.tf)
        config = replace(
            config,
            threshold=ngrams if config.ngram_quantile else config.threshold,
            word_threshold=words if config.word_quantile else config.word_threshold,
        )
    contrast = config.qualify == "contrast"
    return LocalDiscriminative(
        consensus,
        config,
        look_alikes=material.look_alikes.numpy() if contrast else None,
        stop_words=~material.content if contrast else None,
    )


def _global(material: Material) -> Term:
    weights = closeness_weights(material.closeness) if material.config.per_photo else None
    return GlobalDiscriminative(material.listener, material.nearest, material.config.margin, per_photo=weights)


def _gap(kind: str, material: Material) -> Term:
    config = material.config
    return GroupGap(
        material.listener,
        material.look_alikes,
        kind,  # type: ignore[arg-type]
        k=config.group,
        curriculum=config.curriculum,
    )


def _unusual_order(material: Material) -> Term:
    texts = (text for example in material.data.examples for text in example.captions)  # whole: tokens may be cut
    people = WordOrder.of([*roles(split_words(text)), END] for text in texts)
    return UnusualOrder(people, roles_of(material.vocabulary), end=material.vocabulary.eos)


BUILDERS: dict[str, Callable[[Material], Term]] = {
    "cider_d": partial(_consensus, "CIDEr-D"),
    "cider_d_base2": partial(_consensus, "CIDEr-D"),
    "cider": partial(_consensus, "CIDEr"),
    "bleu_4": partial(_consensus, "BLEU-4"),
    "rouge_l": partial(_consensus, "ROUGE-L"),
    "meteor": _meteor,
    "gd": _global,
    "gd_neighbour": lambda m: HardNeighbour(m.listener, m.nearest, m.config.margin),
    "gd_batch": lambda m: InBatch(m.listener, m.config.margin),
    "ld": _local,
    "ld_diff": lambda m: Differences(m.consensus("CIDEr-D")),
    "geg_avg": partial(_gap, "average"),
    "geg_min": partial(_gap, "hardest"),
    "similarity": lambda m: OwnSimilarity(m.listener),
    "log_probability": lambda m: InBatchLogProbability(m.listener),
    "image_rank": lambda m: BoundedRank(m.listener, m.config.rank_base),
    "text_rank": lambda m: BoundedRank(m.reader, m.config.rank_base),
    "reference_gap": lambda m: ReferenceGap(m.consensus("CIDEr-D"), m.look_alikes[:, : m.config.group]),
    "retrieved": lambda m: Retrieved(m.listener),
    "faithful": lambda m: Faithful(m.references, m.content, end=m.vocabulary.eos),
    "different": lambda m: Different(gather=m.world.gather),
    "repetition": lambda m: Repetition(m.content, end=m.vocabulary.eos),
    "unusual_order": _unusual_order,
    "ending": lambda m: Ending(never_last(m.vocabulary), end=m.vocabulary.eos),
}
