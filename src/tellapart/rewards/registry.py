"""The table of rewards: what each is paid for, how it is made, and what it asks for.

A reward of your own is one more entry, made by a plugin:

    REWARDS["brief"] = RewardEntry("minus the number of words", lambda context: brief)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from torch import Tensor

from capscore.errors import UserError
from capscore.table import Table
from capscore.unusual_order import END, WordOrder, roles
from capscore.unusual_order import coco as coco_order
from tellapart.data.tokenizers import split_words
from tellapart.neighbours import groups as group_files
from tellapart.recipe import RewardsConfig
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import Reward, SampledCaptions, Term
from tellapart.rewards.agreement import Consensus, MeteorConsensus, ReferenceGap
from tellapart.rewards.combine import Combined, gathered
from tellapart.rewards.context import FOUND_BY, RewardContext, image_retrievers_of, text_retriever_of
from tellapart.rewards.language_model import Fluency, UnusualOrder, roles_of
from tellapart.rewards.local import Differences, LocalDiscriminative, thresholds
from tellapart.rewards.preference import Preference, PreferenceReward
from tellapart.rewards.retrieval import (
    Accuracy,
    BoundedRank,
    FrozenRetriever,
    GlobalDiscriminative,
    GroupGap,
    HardNeighbour,
    HardPositives,
    InBatch,
    InBatchLogProbability,
    InTurn,
    OwnSimilarity,
    closeness_weights,
)
from tellapart.rewards.words import Different, Ending, Faithful, Objects, Repetition, never_last

Need = Literal["image_retriever", "text_retriever", "look_alikes", "references", "detector"]
Needs = Callable[[RewardsConfig], frozenset[Need]]


def asks(*needs: Need) -> Needs:
    """What a reward needs, whatever the recipe."""
    return lambda config: frozenset(needs)


@dataclass(frozen=True)
class RewardEntry:
    """description  what captions are paid for, in a line
    build        makes the reward from what the training photos offer
    needs        what it asks of that, by the recipe: it is checked before anything else is done.  Where no reward
                 needs references, photos without captions can be learned from
    """

    description: str
    build: Callable[[RewardContext], Term]
    needs: Needs = lambda config: frozenset()


def build(context: RewardContext, wrap: Callable[[str, Term], Term] | None = None) -> Combined:
    """The weighted sum of the recipe's terms.

    wrap  what becomes of each of them, by its name (default: nothing)
    """
    config = context.config
    check(config)
    check_factors(config, context.names)
    terms = {name: make(name, context) for name in config.weights}
    if wrap is not None:
        terms = {name: wrap(name, term) for name, term in terms.items()}
    return Combined(
        terms,
        config.weights,
        balance=config.balance,
        unbalanced=frozenset(config.unbalanced) & terms.keys(),
        factors={name: context.factors(name) for name in config.dataset_weights},
        total=context.world.sum,
        gather=partial(gathered, context.world) if context.world.size > 1 else None,
    )


def make(name: str, context: RewardContext) -> Term:
    """A reward of the table."""
    term = REWARDS[name].build(context)
    if not callable(term):
        raise UserError(f"{REWARDS.named(name)} is built as a {type(term).__name__}, not as a function of captions.")
    return term


def check(config: RewardsConfig) -> None:
    """What the types of a recipe cannot say."""
    if not config.weights:
        raise UserError("objective.rewards.weights names no reward; `tellapart models` lists them.")
    for name in config.weights:
        if name not in REWARDS:
            raise UserError(f"objective.rewards.weights: there is no reward {name!r}; there are {', '.join(REWARDS)}.")
    for name in config.unbalanced:
        if name not in REWARDS:
            raise UserError(
                f"objective.rewards.unbalanced: there is no reward {name!r}; there are {', '.join(REWARDS)}."
            )
    for name in config.dataset_weights:
        if name not in config.weights:
            raise UserError(
                f"objective.rewards.dataset_weights: {name!r} is none of the terms {', '.join(config.weights)}."
            )
    if config.near_duplicates < 1 and config.look_alikes != "image":
        raise UserError("objective.rewards.near_duplicates: they are left out where look-alikes are found by image.")
    if "preference" in config.weights and not config.preferences:
        raise UserError("objective.rewards.preferences: name the file of preferences that `adapt --feedback` made.")
    if "text_retriever" in needs_of(config) and not config.text_retriever:
        raise UserError(
            "objective.rewards.text_retriever: a reward needs a retriever from text to text, such as a run of "
            "the recipe retrievers/text."
        )


def require(config: RewardsConfig, names: Sequence[str], load: Callable[[str], Retriever]) -> None:
    """Refuses rewards that could not be made of data sets of these names; retrievers that they ask are loaded."""
    check_factors(config, names)
    needs = needs_of(config)
    if "image_retriever" in needs:
        image_retrievers_of(config, load)
    if "text_retriever" in needs:
        text_retriever_of(config, load)
    if "look_alikes" in needs and config.look_alikes not in FOUND_BY:
        group_files.load(Path(config.look_alikes))
    if "preference" in config.weights:
        Preference.load(Path(config.preferences))
    for file in config.fluency_text if "fluency" in config.weights else []:
        if not Path(file).is_file():
            raise UserError(f"objective.rewards.fluency_text: there is no file {file}.")


def check_factors(config: RewardsConfig, names: Sequence[str]) -> None:
    for reward, of_sets in config.dataset_weights.items():
        for name in of_sets:
            if name not in names:
                raise UserError(
                    f"objective.rewards.dataset_weights.{reward}: there is no data set {name!r}; "
                    f"there are {', '.join(names)}.  For none: --objective.rewards.dataset_weights '{{}}'."
                )


def needs_of(config: RewardsConfig) -> set[Need]:
    """What the rewards of a recipe ask for.  Look-alikes are found by the image retriever if no file has them."""
    needs = {need for name in config.weights for need in REWARDS[name].needs(config)}
    if "look_alikes" in needs and config.look_alikes in FOUND_BY:
        needs.add("image_retriever")
        if config.look_alikes == "caption":
            needs.add("references")
    return needs


class Sentence:
    """A measure of word ids against references as a term."""

    def __init__(self, measure: Consensus):
        self._measure = measure

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(self._measure(sampled.ids, sampled.photos, sampled.reference))


class MeteorSentence:
    """METEOR, which compares texts, as a term."""

    def __init__(self, measure: MeteorConsensus, texts: Callable[[SampledCaptions], Sequence[str]]):
        self._measure, self._texts = measure, texts

    def __call__(self, sampled: SampledCaptions) -> Reward:
        scores = self._measure(self._texts(sampled), sampled.photos, sampled.reference)
        return Reward(scores.to(sampled.words.device))


def _consensus(measure: str, context: RewardContext) -> Term:
    return Sentence(context.consensus(measure))


def _meteor(context: RewardContext) -> Term:
    references = [example.captions for example in context.data.examples]
    return MeteorSentence(MeteorConsensus(references), context.texts)


def _local(context: RewardContext) -> Term:
    config, consensus = context.config.ld, context.consensus("CIDEr-D")
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
        look_alikes=context.look_alikes.numpy() if contrast else None,
        stop_words=~context.content if contrast else None,
    )


def _global(context: RewardContext) -> Term:
    weights = closeness_weights(context.closeness) if context.config.weight_by_closeness else None
    return GlobalDiscriminative(context.image_retriever, context.nearest, context.config.margin, per_photo=weights)


def _gap(kind: str, context: RewardContext) -> Term:
    config = context.config
    return GroupGap(
        context.image_retriever,
        context.look_alikes,
        kind,  # type: ignore[arg-type]
        k=config.group_size,
        curriculum=config.curriculum,
    )


def _distractors(context: RewardContext) -> Tensor | None:
    return context.look_alikes if context.config.candidates == "look_alikes" else None


def _in_turn(make: Callable[[RewardContext, FrozenRetriever], Term]) -> Callable[[RewardContext], Term]:
    """A reward of each retriever, which take turns where there are several."""

    def build(context: RewardContext) -> Term:
        terms = [make(context, retriever) for retriever in context.image_retrievers]
        return terms[0] if len(terms) == 1 else InTurn(terms)

    return build


def _unusual_order(context: RewardContext) -> Term:
    texts = [text for example in context.data.examples for text in example.captions]  # whole: tokens may be cut
    people = WordOrder.of([*roles(split_words(text)), END] for text in texts) if any(texts) else coco_order()
    return UnusualOrder(people, roles_of(context.vocabulary), end=context.vocabulary.eos)


def _ld_asks(config: RewardsConfig) -> frozenset[Need]:
    return frozenset({"references", "look_alikes"} if config.ld.qualify == "contrast" else {"references"})


def _game_asks(config: RewardsConfig) -> frozenset[Need]:
    return frozenset({"image_retriever", "look_alikes"} if config.candidates == "look_alikes" else {"image_retriever"})


def _gd_asks(config: RewardsConfig) -> frozenset[Need]:
    return frozenset({"image_retriever", "look_alikes"} if config.weight_by_closeness else {"image_retriever"})


_REFERENCES = asks("references")

REWARDS: Table[RewardEntry] = Table(
    "reward",
    {
        "cider_d": RewardEntry(
            "CIDEr-D against the photo's references (R_C)", partial(_consensus, "CIDEr-D"), _REFERENCES
        ),
        "cider": RewardEntry("CIDEr against the references", partial(_consensus, "CIDEr"), _REFERENCES),
        "bleu_4": RewardEntry("BLEU-4 against the references", partial(_consensus, "BLEU-4"), _REFERENCES),
        "rouge_l": RewardEntry("ROUGE-L against the references", partial(_consensus, "ROUGE-L"), _REFERENCES),
        "meteor": RewardEntry("METEOR against the references; slow", _meteor, _REFERENCES),
        "gd": RewardEntry("global discriminability: R_H + R_B (GLD, Eqs. 5-8)", _global, _gd_asks),
        "gd_neighbour": RewardEntry(
            "R_H: minus the hinge loss against the most similar photo (GLD)",
            lambda m: HardNeighbour(m.image_retriever, m.nearest, m.config.margin),
            asks("image_retriever"),
        ),
        "gd_batch": RewardEntry(
            "R_B: minus the hinge losses against the photos and captions of the batch (Luo et al.)",
            lambda m: InBatch(m.image_retriever, m.config.margin),
            asks("image_retriever"),
        ),
        "ld": RewardEntry(
            "CIDEr-D, and for each word a reward for the rare n-grams that it is in (R_LD; GLD, Eqs. 9-10)",
            _local,
            _ld_asks,
        ),
        "ld_diff": RewardEntry(
            "CIDEr-D, and for each word the increase of CIDEr-D by it (LD-Diff, GLD)",
            lambda m: Differences(m.consensus("CIDEr-D")),
            _REFERENCES,
        ),
        "geg_avg": RewardEntry(
            "similarity of caption and photo minus its mean over the photo's look-alikes (G_avg; GEG, Eq. 3)",
            partial(_gap, "average"),
            asks("image_retriever", "look_alikes"),
        ),
        "geg_min": RewardEntry(
            "similarity of caption and photo minus its maximum over the photo's look-alikes (G_min; GEG, Eq. 4)",
            partial(_gap, "hardest"),
            asks("image_retriever", "look_alikes"),
        ),
        "similarity": RewardEntry(
            "similarity of caption and photo (ER, GEG)",
            _in_turn(lambda m, retriever: OwnSimilarity(retriever)),
            asks("image_retriever"),
        ),
        "log_probability": RewardEntry(
            "log-probability of the photo among those of the batch, or its look-alikes, given the caption (DiscriTune)",
            _in_turn(lambda m, retriever: InBatchLogProbability(retriever, m.config.scale or None, _distractors(m))),
            _game_asks,
        ),
        "accuracy": RewardEntry(
            "1 if the caption retrieves its photo among those of the batch, or its look-alikes, else 0 (DiscriTune)",
            _in_turn(lambda m, retriever: Accuracy(retriever, _distractors(m))),
            _game_asks,
        ),
        "hard_positives": RewardEntry(
            "log-probability of the least similar view of the photo among the photos of the batch (RRG)",
            lambda m: HardPositives(m.image_retriever, m.views(m.config.positives), m.config.scale or None),
            asks("image_retriever"),
        ),
        "image_rank": RewardEntry(
            "rank of the photo in its data set by the image retriever, bounded",
            lambda m: BoundedRank(m.image_retriever, m.config.rank_base),
            asks("image_retriever"),
        ),
        "text_rank": RewardEntry(
            "rank of the photo in its data set by the text retriever, bounded",
            lambda m: BoundedRank(m.reader, m.config.rank_base),
            asks("text_retriever", "references"),
        ),
        "reference_gap": RewardEntry(
            "CIDEr-D against the photo's references minus that against the look-alikes' references",
            lambda m: ReferenceGap(m.consensus("CIDEr-D"), m.look_alikes[:, : m.config.group_size]),
            asks("look_alikes", "references"),
        ),
        "faithful": RewardEntry(
            "share of content words that are in the references (H)",
            lambda m: Faithful(m.references, m.content, end=m.vocabulary.eos),
            _REFERENCES,
        ),
        "objects": RewardEntry(
            "named objects that the recipe's detector sees less those that it does not, as a share of those named",
            lambda m: Objects(m.objects, m.vocabulary),
            asks("detector"),
        ),
        "preference": RewardEntry(
            "log-probability that people prefer the caption to those they liked, learned from their reviews",
            lambda m: PreferenceReward(Preference.load(Path(m.config.preferences)), m.texts),
        ),
        "different": RewardEntry(
            "minus the logarithm of how often the same caption was recently sampled for other photos",
            lambda m: Different(gather=m.world.gather),
        ),
        "repetition": RewardEntry(
            "minus the number of repeated content words and word pairs, and of words that follow themselves",
            lambda m: Repetition(m.content, end=m.vocabulary.eos),
        ),
        "unusual_order": RewardEntry(
            'minus the number of words that rarely follow the three words before them ("a toilet in it on it")',
            _unusual_order,
        ),
        "fluency": RewardEntry(
            "minus what words fall short of people's captions in how expected they are, on average and at worst (SLOR)",
            lambda m: Fluency(m.language_model, m.vocabulary),
        ),
        "ending": RewardEntry(
            'minus 1 for an incomplete caption, such as "a dog on a"',
            lambda m: Ending(never_last(m.vocabulary), end=m.vocabulary.eos),
        ),
    },
    RewardEntry,
)
