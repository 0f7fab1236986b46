"""The captioners whose training steps are timed, and what they learn from: see `objectives`."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from capscore.caption_files import read_references
from tellapart.album import HERE
from tellapart.captioners.up_down import UpDown, UpDownConfig
from tellapart.data.batches import Batch, padded
from tellapart.data.media import photos as photo_files
from tellapart.data.streams import region_inputs
from tellapart.data.tokenizers import WordTokenizer, split_words
from tellapart.decoding.rules import Rules
from tellapart.decoding.score import caption_mask
from tellapart.models import encoder_of, load
from tellapart.models.retrievers import load as load_retriever
from tellapart.objectives import StepInfo
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.objectives.policy_gradient import PolicyGradient
from tellapart.recipe import LocalConfig, PolicyConfig
from tellapart.rewards import SampledCaptions, Term
from tellapart.rewards.agreement import Agreement, Consensus
from tellapart.rewards.combine import Combined
from tellapart.rewards.local import LocalDiscriminative
from tellapart.rewards.retrieval import FrozenRetriever, GlobalDiscriminative, GroupGap
from tellapart.rewards.words import WordView

PHOTOS, SAMPLES, MAX_WORDS, WORDS = 16, 5, 16, 9487
TAUGHT = 60  # steps of cross-entropy

ROWS = {"SCST": ("cider_d",), "GLD": ("ld", "gd"), "GEG": ("cider_d", "geg_avg")}


@dataclass
class Setting:
    """A captioner and what it learns from."""

    name: str
    captioner: nn.Module
    words: WordTokenizer
    features: Tensor  # (16, R, D)
    references: list[list[list[int]]]  # token ids, of all photos of the data

    def __post_init__(self) -> None:
        self.captioner.requires_grad_(True).eval()
        self.optimizer = torch.optim.AdamW(self.captioner.parameters(), lr=0.0, fused=True)
        self.mask = torch.ones(self.features.shape[:2], dtype=torch.bool)
        self.photos = torch.arange(PHOTOS).repeat_interleave(SAMPLES)
        self.rules = Rules.of(self.words, max_words=MAX_WORDS)

    @cached_property
    def consensus(self) -> Consensus:
        return Consensus(self.references, end=self.words.eos)

    @cached_property
    def retriever(self) -> FrozenRetriever:
        """It has seen photos of noise: captions take as long."""
        pooled = torch.randn(len(self.references), 1280)
        retriever = load_retriever("word", device="cpu")
        return FrozenRetriever.of_photos(retriever, self.words, pooled, torch.zeros(len(pooled), dtype=torch.long))

    @cached_property
    def terms(self) -> dict[str, Term]:
        look_alikes = torch.randint(len(self.references), (len(self.references), 5))
        return {
            "cider_d": Agreement(self.consensus),
            "ld": LocalDiscriminative(self.consensus, LocalConfig()),
            "gd": GlobalDiscriminative(self.retriever, look_alikes[:, 0]),
            "geg_avg": GroupGap(self.retriever, look_alikes),
        }

    def learn(self, loss: Tensor) -> None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.captioner.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def said(self, tokens: Tensor) -> SampledCaptions:
        return SampledCaptions(tokens, caption_mask(tokens, self.words.eos), self.photos)

    def step(self, terms: Sequence[str], baseline: str, temperature: float = 1.0) -> Callable[[], None]:
        """A whole step of ours."""
        objective = PolicyGradient(
            self.captioner,
            self.words,
            Combined({name: self.terms[name] for name in terms}, dict.fromkeys(terms, 1.0)),
            PolicyConfig(samples=SAMPLES, baseline=baseline, temperature=temperature),  # type: ignore[arg-type]
            max_words=MAX_WORDS,
            view=WordView(self.words, self.words),
        )
        references = [[*caption, self.words.eos] for photo in self.references[:PHOTOS] for caption in photo[:SAMPLES]]
        batch = Batch(np.arange(PHOTOS), region_inputs(self.features, self.mask), *padded(references, self.words.pad))
        return lambda: self.learn(objective(batch, StepInfo(0, 0.0)).loss)


# What is learned from


def captions(file: Path | None) -> list[list[str]]:
    """Five of each photo."""
    if file is not None:
        return [texts[:5] for texts in read_references(file).by_id.values() if len(texts) >= 5]
    with gzip.open(Path(__file__).parents[1] / "tests" / "golden" / "loo1000.json.gz") as file:
        return [[image["caption"], *image["references"]] for image in json.load(file)["images"]]


def encoded(texts: list[list[str]], words: WordTokenizer) -> list[list[list[int]]]:
    return [[words.encode(text)[:MAX_WORDS] for text in photo] for photo in texts]


def up_down(texts: list[list[str]]) -> Setting:
    real = Counter(word for photo in texts for text in photo for word in split_words(text))
    common = [word for word, _ in real.most_common(WORDS)]
    words = WordTokenizer([*common, *(f"word{i}" for i in range(WORDS - len(common)))])
    captioner = UpDown(UpDownConfig(len(words), feature_size=2048))
    setting = Setting("Up-Down", captioner, words, torch.randn(PHOTOS, 36, 2048).relu(), encoded(texts, words))
    optimizer = torch.optim.Adam(captioner.parameters(), lr=1e-3)
    for _ in range(TAUGHT):
        chosen = np.random.choice(len(texts), PHOTOS)
        tokens, mask = padded(
            [[*setting.references[photo][0][: MAX_WORDS - 1], words.eos] for photo in chosen], words.pad
        )
        batch = Batch(chosen, region_inputs(setting.features, setting.mask), tokens, mask)
        cross_entropy_step(captioner, batch, bos=words.bos).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return setting


def transformer(texts: list[list[str]]) -> Setting:
    model = load("plain", torch.device("cpu"))
    encoder = encoder_of(model, torch.device("cpu"))
    files = sorted((HERE / "photos").iterdir())[:PHOTOS]
    pixels = torch.stack([torch.as_tensor(photo_files.read(file, encoder.config.image_size).pixels) for file in files])
    words = model.tokenizer
    return Setting("Transformer", model.captioner, words, encoder(pixels).grid.clone(), encoded(texts, words))


# Where the time of a step goes
