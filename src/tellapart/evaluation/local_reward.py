"""LD in figures: how much n-grams of the training references weigh (Figs. 3-4), and what words earn by it (Fig. 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

from capscore.errors import UserError
from capscore.ngrams import ORDERS
from capscore.progress import Progress
from tellapart.data import examples as data_files
from tellapart.data.batches import padded
from tellapart.data.examples import Example
from tellapart.data.media.thumbnails import LONG_SIDE
from tellapart.data.tokenizers import WordTokenizer, split_words
from tellapart.evaluation import plots
from tellapart.evaluation.cards import Pictures
from tellapart.evaluation.plots import Figure, Mark, Series, side_by_side
from tellapart.html import render
from tellapart.recipe import LocalConfig, RewardsConfig
from tellapart.rewards import SampledCaptions
from tellapart.rewards.agreement import Consensus
from tellapart.rewards.local import LocalDiscriminative, ngram_weights, with_thresholds

if TYPE_CHECKING:
    from tellapart.evaluation.compare import Run

_SEED = 0
_WORD_REWARDS = 3  # photos whose words' rewards are drawn
_LOOKED_AT = 20_000  # n-grams among which examples are found
_EXAMPLES = 6
_SHOWN = 0.999  # of all n-grams of a length, the share that axes reach


@dataclass(frozen=True)
class Weights:
    """The weights of all n-grams of one length.  Of `edges` (M+1,) and `shares` (M,): how many lie between two.

    What a reference says again and again can weigh twice as much as all else: the last share has that too.
    """

    order: int
    edges: NDArray[np.float64]
    shares: NDArray[np.float64]
    examples: list[tuple[float, str]]  # frequent ones from light to heavy, and what each weighs


@dataclass(frozen=True)
class Earned:
    """Rewards of the words of a caption: CIDEr-D for all of them, and LD's bonus besides."""

    words: list[str]
    sentence: float
    each: list[float]

    @property
    def most(self) -> float:
        """The largest bonus."""
        return max(self.each, default=self.sentence) - self.sentence


class LocalReward:
    """LD, with a vocabulary and the references that say how frequent n-grams are.

    source  whose references, a sentence
    used    whose thresholds, behind "The thresholds are"
    """

    def __init__(
        self,
        tokenizer: WordTokenizer,
        references: Sequence[Sequence[str]],
        local: LocalConfig,
        *,
        source: str,
        used: str,
        count_end: bool,
    ):
        self._tokenizer, self._local, self._count_end = tokenizer, local, count_end
        self._source, self._used = source, used
        with Progress("references", len(references)) as bar:
            self._consensus = self._consensus_of(references, advance=bar.advance)

    @classmethod
    def of_run(cls, run: Run) -> LocalReward:
        """As the run's recipe has it, with the run's vocabulary and the references that it was trained on."""
        rewards = run.recipe.objective.rewards
        if rewards.ld.qualify == "contrast":
            raise UserError(f"{run.name} rewards words by comparing with look-alikes, which only training photos have.")
        return cls(
            WordTokenizer.load(run.folder),
            _trained_on(run),
            rewards.ld,
            source=f"By the training references and the vocabulary of {run.name}.",
            used="those of its reward"
            if "ld" in run.rewards
            else "those of its recipe, whose reward does not use them",
            count_end=rewards.count_end,
        )

    @classmethod
    def of_references(cls, references: Sequence[Sequence[str]]) -> LocalReward:
        """With the defaults of recipes, and all words of these references."""
        rewards = RewardsConfig()
        return cls(
            WordTokenizer.build([text for texts in references for text in texts], min_count=1),
            references,
            rewards.ld,
            source="By the references of these photos.",
            used="the defaults",
            count_end=rewards.count_end,
        )

    @cached_property
    def config(self) -> LocalConfig:
        """With the thresholds that the references say, where the recipe asks for it."""
        return with_thresholds(self._local, self._consensus)

    @property
    def sources(self) -> str:
        """Two sentences: whose references, and whose thresholds."""
        both = f"λ = {self.config.threshold:.3g} and η = {self.config.word_threshold:.3g}"
        return f"{self._source} The thresholds {both} are {self._used}."

    def weights(self, bins: int = 40) -> list[Weights]:
        """For n = 1..4, on the same edges."""
        lengths = [ngram_weights(self._consensus, order, tf=self.config.tf) for order in range(1, ORDERS + 1)]
        lengths = [(ngrams, weights) for ngrams, weights in lengths if len(weights)]
        top = max(float(np.quantile(weights, _SHOWN)) for _, weights in lengths) + 1e-9
        edges = np.linspace(0, top, bins + 1)
        return [
            Weights(
                ngrams.shape[1],
                edges,
                np.histogram(np.minimum(weights, top), edges)[0] / len(weights),
                self._examples(ngrams[weights <= top], weights[weights <= top]),
            )
            for ngrams, weights in lengths
        ]

    def earned(self, captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[Earned]:
        """LD's rewards for captions of photos with these references."""
        eos, pad = self._tokenizer.eos, self._tokenizer.pad
        tokens, mask = padded([[*self._tokenizer.encode(caption), eos] for caption in captions], pad)
        sampled = SampledCaptions(tokens, mask, torch.arange(len(captions)))
        reward = LocalDiscriminative(self._consensus_of(references, self._consensus), self.config)(sampled)
        each = reward.sentence[:, None] + (0 if reward.words is None else reward.words)
        earned = []
        for caption, sentence, row in zip(captions, reward.sentence, each, strict=True):
            words = split_words(caption)
            earned.append(Earned(words, sentence.item(), row[: len(words)].tolist()))
        return earned

    def _consensus_of(
        self,
        references: Sequence[Sequence[str]],
        of: Consensus | None = None,
        advance: Callable[[], None] = lambda: None,
    ) -> Consensus:
        """Document frequencies are those of another consensus, or of the references themselves."""
        tokens = []
        for texts in references:
            tokens.append([self._tokenizer.encode(text) for text in texts])
            advance()
        return Consensus(
            tokens,
            end=self._tokenizer.eos,
            count_end=self._count_end,
            frequencies=of.frequencies if of else None,
        )

    def _examples(self, ngrams: NDArray[np.int32], weights: NDArray[np.float64]) -> list[tuple[float, str]]:
        """The most frequent n-gram of each sixth of the way from the lightest to the heaviest, by a drawn sample."""
        usable = np.flatnonzero(~np.isin(ngrams, [self._tokenizer.unk, self._tokenizer.eos]).any(1))
        if len(usable) > _LOOKED_AT:
            usable = np.random.default_rng(_SEED).choice(usable, _LOOKED_AT, replace=False)
        different, first, counts = np.unique(ngrams[usable], axis=0, return_index=True, return_counts=True)
        heavy = weights[usable][first]
        steps = np.linspace(heavy.min(initial=np.inf), heavy.max(initial=-np.inf), _EXAMPLES + 1)
        chosen = []
        for low, high in pairwise(steps):
            inside = np.flatnonzero((heavy >= low) & (heavy <= high))
            if len(inside):
                best = inside[counts[inside].argmax()]
                chosen.append((float(heavy[best]), " ".join(self._tokenizer.words[t] for t in different[best])))
        return list(dict.fromkeys(chosen))


def _trained_on(run: Run) -> list[tuple[str, ...]]:
    data, references = run.recipe.data, []
    splits = data.train_split.split("+")
    for file in data.files:
        photos = [e for e in data_files.read(Path(file), needs_files=False).examples if e.split in splits]
        references += [example.captions for example in photos[: data.limit or None] if example.captions]
    if not references:
        raise UserError(f"{run.folder}: its recipe names no references that words could be weighed by.")
    return references


def weights(local: LocalReward, drawn: dict[str, Markup]) -> Figure:
    """The figure of n-grams' weights, with examples (Figs. 3-4 of the GLD paper)."""
    lengths, series = local.weights(), []
    for length in lengths:
        centres = ((length.edges[1:] + length.edges[:-1]) / 2).tolist()
        points = list(zip(centres, (100 * length.shares).tolist(), strict=True))
        series.append(Series(f"n = {length.order}", points, length.order + 3))
    marks = [Mark(local.config.word_threshold, "η, words"), Mark(local.config.threshold, "λ, n-grams")]
    chart = plots.lines("Share of n-grams (%) by weight", series, x="TF-IDF weight", marks=marks)
    examples = render("evaluation/pages/ngrams.html", lengths=lengths)
    return Figure("What n-grams weigh", local.sources, side_by_side({"weights": chart}, drawn) + examples)


def word_rewards(
    local: LocalReward,
    photos: Sequence[Example],
    captions: Mapping[str, Sequence[str]],
    pictures: Pictures,
    drawn: dict[str, Markup],
) -> Figure:
    """The reward of each word of a caption (Fig. 5), of the photos where a word of the last model gets most."""
    references = [photo.captions for photo in photos]
    earned = {name: local.earned(texts, references) for name, texts in captions.items()}
    last, best = list(earned.items())[-1]
    parts = []
    for number in sorted(range(len(best)), key=lambda number: -best[number].most)[:_WORD_REWARDS]:
        photo, charts = photos[number], {}
        for colour, (name, captions_earned) in enumerate(earned.items()):
            reward = captions_earned[number]
            if reward.words:
                of_words = [(float(place), value) for place, value in enumerate(reward.each)]
                flat = [(place, reward.sentence) for place, _ in of_words]
                series = [Series("LD", of_words, colour), Series("CIDEr-D", flat, colour, dashed=True)]
                charts[f"words.{photo.id}.{name}"] = plots.lines(name, series, x="word", words=reward.words)
        parts.append((pictures.show(photo.file, LONG_SIDE), side_by_side(charts, drawn)))
    note = (
        "What LD, the local discriminative reward, gives each word of a caption; dashed: CIDEr-D, which all words get. "
        f"Shown are the photos where a word of {last} gets most. {local.sources}"
    )
    return Figure("What words earn", note, render("evaluation/pages/word_rewards.html", photos=parts))
