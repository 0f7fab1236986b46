"""The table of rewards: what captions are paid for, how each reward is made, and what it asks for.

    tokens -> words (`words.WordView`) -> SampledCaptions -> Combined -> each term of the recipe -> Reward

`build` makes that walk for a recipe; `Combined` takes it at every step.  A reward of your own is one more entry,
made by a plugin:

    REWARDS["brief"] = RewardEntry("minus the number of words", lambda context: brief)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from torch import Tensor

from capscore.errors import UserError
from capscore.measures import Table
from capscore.words import END, WordOrder, coco_order, roles
from tellapart.data.tokenizers import split_words
from tellapart.neighbours import groups as group_files
from tellapart.recipe import RewardsConfig
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards import Term
from tellapart.rewards.agreement import Agreement, MeteorConsensus, ReferenceGap
from tellapart.rewards.combine import Combined, gathered
from tellapart.rewards.context import FOUND_BY, RewardContext, image_retrievers_of, text_retriever_of
from tellapart.rewards.language_model import Fluency, UnusualOrder
from tellapart.rewards.local import Differences, LocalDiscriminative, with_thresholds
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
    InTurn,
    LogProbability,
    OwnSimilarity,
    closeness_weights,
)
from tellapart.rewards.words import Different, Ending, Faithful, Objects, Repetition, never_last

# Each is the part of `RewardContext` of that name; "detector" is what its `objects` come from.
Need = Literal["image_retriever", "text_retriever", "look_alikes", "references", "detector"]
Needs = Callable[[RewardsConfig], set[Need]]


def asks(*needs: Need, look_alikes: Callable[[RewardsConfig], bool] = lambda config: False) -> Needs:
    """The needs of a reward; look-alikes also where that is true of the recipe."""
    return lambda config: {*needs, "look_alikes"} if look_alikes(config) else {*needs}


@dataclass(frozen=True)
class RewardEntry:
    """description  what captions are paid for, in a line
    build        makes the reward from what the training photos offer
    needs        what it asks of that, by the recipe: it is checked before anything else is done.  Where no reward
                 needs references, photos without captions can be learned from
    """

    description: str
    build: Callable[[RewardContext], Term]
    needs: Needs = lambda config: set()


def needs_of(config: RewardsConfig) -> set[Need]:
    """The needs of a recipe's rewards.  Look-alikes are found by the image retriever if no file has them."""
    needs = {need for name in config.weights for need in REWARDS[name].needs(config)}
    if "look_alikes" in needs and config.look_alikes in FOUND_BY:
        needs.add("image_retriever")
        if config.look_alikes == "caption":
            needs.add("references")
    return needs


def check(config: RewardsConfig) -> None:
    """Refuses what the types of a recipe cannot say."""
    if not config.weights:
        raise UserError("objective.rewards.weights names no reward; `tellapart models` lists them.")
    for field, names in (("weights", [*config.weights]), ("unbalanced", config.unbalanced)):
        for name in names:
            if name not in REWARDS:
                raise UserError(
                    f"objective.rewards.{field}: there is no reward {name!r}; there are {', '.join(REWARDS)}."
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
    for reward, of_sets in config.dataset_weights.items():
        for name in of_sets:
            if name not in names:
                raise UserError(
                    f"objective.rewards.dataset_weights.{reward}: there is no data set {name!r}; "
                    f"there are {', '.join(names)}.  For none: --objective.rewards.dataset_weights '{{}}'."
                )
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


def build(context: RewardContext, wrap: Callable[[str, Term], Term] | None = None) -> Combined:
    """The weighted sum of the recipe's terms.

    wrap  what becomes of each of them, by its name (default: nothing)
    """
    config = context.config
    check(config)
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


def _agreement(measure: str) -> Callable[[RewardContext], Term]:
    return lambda context: Agreement(context.consensus(measure))


def _meteor(context: RewardContext) -> Term:
    meteor = MeteorConsensus([example.captions for example in context.data.examples])
    return lambda sampled: sampled.reward(meteor(context.texts(sampled), sampled.photos, sampled.reference))


def _local(context: RewardContext) -> Term:
    consensus = context.consensus("CIDEr-D")
    config = with_thresholds(context.config.ld, consensus)
    if config.qualify == "rare":
        return LocalDiscriminative(consensus, config)
    look_alikes, stop_words = context.look_alikes.numpy(), ~context.content
    return LocalDiscriminative(consensus, config, look_alikes=look_alikes, stop_words=stop_words)


def _global(context: RewardContext) -> Term:
    weights = closeness_weights(context.closeness) if context.config.weight_by_closeness else None
    return GlobalDiscriminative(context.image_retriever, context.nearest, context.config.margin, weights)


def _group_gap(kind: Literal["average", "hardest"]) -> Callable[[RewardContext], Term]:
    return lambda context: GroupGap(
        context.image_retriever, context.look_alikes, kind, context.config.group_size, context.config.curriculum
    )


def _in_turn(make: Callable[[RewardContext, FrozenRetriever], Term]) -> Callable[[RewardContext], Term]:
    """A reward of each retriever, which take turns where there are several."""

    def build(context: RewardContext) -> Term:
        terms = [make(context, retriever) for retriever in context.image_retrievers]
        return terms[0] if len(terms) == 1 else InTurn(terms)

    return build


def _distractors(context: RewardContext) -> Tensor | None:
    return context.look_alikes if context.config.candidates == "look_alikes" else None


def _unusual_order(context: RewardContext) -> Term:
    texts = [text for example in context.data.examples for text in example.captions]  # whole: tokens may be cut
    captions = ([*roles(split_words(text)), END] for text in texts)
    people = WordOrder.of(captions) if any(texts) else coco_order()
    return UnusualOrder(people, context.vocabulary)


_REFERENCES, _IMAGE_RETRIEVER, _GROUPS = (
    asks("references"),
    asks("image_retriever"),
    asks("image_retriever", "look_alikes"),
)
_GAME = asks("image_retriever", look_alikes=lambda config: config.candidates == "look_alikes")

REWARDS: Table[RewardEntry] = Table(
    "reward",
    {
        "cider_d": RewardEntry("CIDEr-D against the photo's references (R_C)", _agreement("CIDEr-D"), _REFERENCES),
        "cider": RewardEntry("CIDEr against the references", _agreement("CIDEr"), _REFERENCES),
        "bleu_4": RewardEntry("BLEU-4 against the references", _agreement("BLEU-4"), _REFERENCES),
        "rouge_l": RewardEntry("ROUGE-L against the references", _agreement("ROUGE-L"), _REFERENCES),
        "meteor": RewardEntry("METEOR against the references; slow", _meteor, _REFERENCES),
        "gd": RewardEntry(
            "global discriminability: R_H + R_B (GLD, Eqs. 5-8)",
            _global,
            asks("image_retriever", look_alikes=lambda config: config.weight_by_closeness),
        ),
        "gd_neighbour": RewardEntry(
            "R_H: minus the hinge loss against the most similar photo (GLD)",
            lambda context: HardNeighbour(context.image_retriever, context.nearest, context.config.margin),
            _IMAGE_RETRIEVER,
        ),
        "gd_batch": RewardEntry(
            "R_B: minus the hinge losses against the photos and captions of the batch (Luo et al.)",
            lambda context: InBatch(context.image_retriever, context.config.margin),
            _IMAGE_RETRIEVER,
        ),
        "ld": RewardEntry(
            "CIDEr-D, and for each word a reward for the rare n-grams that it is in (R_LD; GLD, Eqs. 9-10)",
            _local,
            asks("references", look_alikes=lambda config: config.ld.qualify == "contrast"),
        ),
        "ld_diff": RewardEntry(
            "CIDEr-D, and for each word the increase of CIDEr-D by it (LD-Diff, GLD)",
            lambda context: Differences(context.consensus("CIDEr-D")),
            _REFERENCES,
        ),
        "geg_avg": RewardEntry(
            "similarity of caption and photo minus its mean over the photo's look-alikes (G_avg; GEG, Eq. 3)",
            _group_gap("average"),
            _GROUPS,
        ),
        "geg_min": RewardEntry(
            "similarity of caption and photo minus its maximum over the photo's look-alikes (G_min; GEG, Eq. 4)",
            _group_gap("hardest"),
            _GROUPS,
        ),
        "similarity": RewardEntry(
            "similarity of caption and photo (ER, GEG)",
            _in_turn(lambda context, retriever: OwnSimilarity(retriever)),
            _IMAGE_RETRIEVER,
        ),
        "log_probability": RewardEntry(
            "log-probability of the photo among those of the batch, or its look-alikes, given the caption (DiscriTune)",
            _in_turn(lambda context, retriever: LogProbability(retriever, context.config.scale, _distractors(context))),
            _GAME,
        ),
        "accuracy": RewardEntry(
            "1 if the caption retrieves its photo among those of the batch, or its look-alikes, else 0 (DiscriTune)",
            _in_turn(lambda context, retriever: Accuracy(retriever, _distractors(context))),
            _GAME,
        ),
        "hard_positives": RewardEntry(
            "log-probability of the least similar view of the photo among the photos of the batch (RRG)",
            lambda context: HardPositives(
                context.image_retriever, context.views(context.config.positives), context.config.scale
            ),
            _IMAGE_RETRIEVER,
        ),
        "image_rank": RewardEntry(
            "rank of the photo in its data set by the image retriever, bounded",
            lambda context: BoundedRank(context.image_retriever, context.config.rank_base),
            _IMAGE_RETRIEVER,
        ),
        "text_rank": RewardEntry(
            "rank of the photo in its data set by the text retriever, bounded",
            lambda context: BoundedRank(context.text_retriever, context.config.rank_base),
            asks("text_retriever", "references"),
        ),
        "reference_gap": RewardEntry(
            "CIDEr-D against the photo's references minus that against the look-alikes' references",
            lambda context: ReferenceGap(
                context.consensus("CIDEr-D"), context.look_alikes[:, : context.config.group_size]
            ),
            asks("look_alikes", "references"),
        ),
        "faithful": RewardEntry(
            "share of content words that are in the references (H)",
            lambda context: Faithful(context.references, context.content, end=context.vocabulary.eos),
            _REFERENCES,
        ),
        "objects": RewardEntry(
            "named objects that the recipe's detector sees less those that it does not, as a share of those named",
            lambda context: Objects(context.objects, context.vocabulary),
            asks("detector"),
        ),
        "preference": RewardEntry(
            "log-probability that people prefer the caption to those they liked, learned from their reviews",
            lambda context: PreferenceReward(Preference.load(Path(context.config.preferences)), context.texts),
        ),
        "different": RewardEntry(
            "minus the logarithm of how often the same caption was recently sampled for other photos",
            lambda context: Different(gather=context.world.gather),
        ),
        "repetition": RewardEntry(
            "minus the number of repeated content words and word pairs, and of words that follow themselves",
            lambda context: Repetition(context.content, end=context.vocabulary.eos),
        ),
        "unusual_order": RewardEntry(
            'minus the number of words that rarely follow the three words before them ("a toilet in it on it")',
            _unusual_order,
        ),
        "fluency": RewardEntry(
            "minus what words fall short of people's captions in how expected they are, on average and at worst (SLOR)",
            lambda context: Fluency(context.language_model, context.vocabulary),
        ),
        "ending": RewardEntry(
            'minus 1 for an incomplete caption, such as "a dog on a"',
            lambda context: Ending(never_last(context.vocabulary), end=context.vocabulary.eos),
        ),
    },
    RewardEntry,
)
