"""Taggers against people's words: average precision by word and by part of speech, beside chance and a linear probe.

results.json   {data: {tagger: {metric: value}}}: mAP and mAP[Fang], of all words and by part of speech (mAP[nouns] ...)
DATA.words.csv a line for each word: part of speech, photos that have it, chance, AP of the probe and of the taggers
DATA.html      photos with their ten most probable words
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from capscore.progress import Progress
from capscore.scene_graph import part_of_speech
from capscore.tables import csv_line
from tellapart.data import examples
from tellapart.data.examples import DataSet, Example
from tellapart.data.media.thumbnails import thumbnail
from tellapart.data.tokenizers import WordTokenizer, split_words
from tellapart.encoders.encoder import Encoder
from tellapart.errors import BadPhoto
from tellapart.features.extracted import pooled_features, safe_name
from tellapart.features.sources import Attributes, Encoded, Loaded
from tellapart.html import render_page
from tellapart.metrics.retrieval import average_precision, weighted_average_precision
from tellapart.models.sources import attributes
from tellapart.numerics import choose_device
from tellapart.parallel import batched, ordered_map
from tellapart.recipe import EncoderConfig
from tellapart.training.preparation import in_split
from tellapart.training.tagging import mentions

PROBE, CHANCE = "linear probe", "chance"
_KINDS = {"NN": "nouns", "VB": "verbs", "JJ": "adjectives"}  # by the beginning of Penn Treebank's tags
_SHOWN = 48  # photos on the page
_WORDS = 10  # of each
_BATCH = 32


@dataclass(frozen=True)
class Evaluated:
    """Metrics by tagger on a data set, and what could not be used."""

    name: str
    metrics: dict[str, dict[str, float]]
    problems: list[str]


def parts_of_speech(captions: Iterable[str]) -> dict[str, str]:
    """Word -> its most frequent kind in captions: nouns, verbs, adjectives or others."""
    counts: dict[str, Counter[str]] = {}
    sentences = [split_words(text) for text in captions]
    for words, tags in zip(sentences, part_of_speech(sentences), strict=True):
        for word, tag in zip(words, tags, strict=True):
            counts.setdefault(word, Counter())[_KINDS.get(tag[:2], "others")] += 1
    return {word: of_word.most_common(1)[0][0] for word, of_word in counts.items()}


def summary(
    scores: NDArray[np.floating], counts: NDArray[np.integer], captions: int, kinds: Sequence[str]
) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Means over words, all and by part of speech, and the average precision of each word (W,).

    scores, counts   (P, W): how probable a word is, and how many of the photo's captions have it
    """
    plain, weighted = average_precision(scores, counts > 0), weighted_average_precision(scores, counts, captions)
    metrics = {"mAP": float(np.nanmean(plain)), "mAP[Fang]": float(np.nanmean(weighted))}
    for kind in (*_KINDS.values(), "others"):
        of_kind = (np.array(kinds) == kind) & ~np.isnan(plain)
        if of_kind.any():
            metrics[f"mAP[{kind}]"] = float(plain[of_kind].mean())
    return metrics, plain


def linear_probe(pooled: Tensor, has: Tensor, penalty: float = 1.0) -> tuple[Tensor, Tensor]:
    """Ridge regression of each word on a photo's pooled features: its weights (W, D) and biases (W,).

    It has a closed form.  Logistic regression by six passes of AdamW takes minutes, and orders photos no better: on
    12,329 training and 1,500 validation photos of Flickr8k and COCO its mAP is .2542, that of this one .2603.

    pooled, has   (N, D), (N, W) of the training photos
    penalty       as a share of N, of features with mean 0 and variance 1; the best of .03 to 3 on those photos
    """
    mean, spread = pooled.mean(0), pooled.std(0, correction=0).clamp(min=1e-6)
    frequency = has.mean(0)
    scaled = (pooled - mean) / spread
    moments = (scaled.T @ scaled).double() + penalty * len(pooled) * torch.eye(pooled.shape[1], dtype=torch.double)
    weight = torch.linalg.solve(moments, (scaled.T @ (has - frequency)).double()).float().T / spread
    return weight, frequency - weight @ mean


def evaluate(
    names: Sequence[str],
    data: Sequence[str],
    *,
    split: str,
    training: str = "train",
    photos: int | None = None,
    features: Path | None = None,
    out: Path | None = None,
    device: str = "auto",
) -> list[Evaluated]:
    """names      folders of taggers' runs, all with the same words
    training   the split of all data files that the probe learns from
    photos     at most as many of a data set, chosen at random
    features   where features of the default encoder may be cached
    """
    sources = {
        name: attributes(EncoderConfig(name, most=_WORDS), choose_device(device)) for name in dict.fromkeys(names)
    }
    words = sources[names[0]].words
    for name, source in sources.items():
        if source.words != words:
            raise UserError(f"{name} has other words than {names[0]}; only the same words can be compared.")
    if len({source.name for source in sources.values()}) == len(sources):
        sources = {source.name: source for source in sources.values()}
    datasets = [examples.read(Path(file)) for file in data]
    chosen = [_chosen(dataset, split, photos) for dataset in datasets]
    encoder = Encoder(EncoderConfig())
    learned = [[e for e in in_split(dataset.examples, training) if e.captions] for dataset in datasets]
    kind_of = parts_of_speech(text for part in learned for example in part for text in example.captions)
    kinds = [kind_of.get(word, "others") for word in words]
    pooled = [_pooled(encoder, dataset.name, part, features) for dataset, part in zip(datasets, learned, strict=True)]
    probe = None
    if captions := [example.captions for part, _ in pooled for example in part]:
        has = torch.from_numpy(mentions(captions, WordTokenizer(words)) > 0).float()
        probe = linear_probe(torch.cat([vectors for _, vectors in pooled]), has)
    results = []
    for dataset, wanted in zip(datasets, chosen, strict=True):
        readable, vectors = _pooled(encoder, dataset.name, wanted, features)
        tagged = {name: _tag(source, readable, dataset.name, features) for name, source in sources.items()}
        usable = np.all([np.isfinite(scores).all(1) for scores in tagged.values()], 0)  # by each, so that all compare
        readable = [example for example, is_usable in zip(readable, usable, strict=True) if is_usable]
        if not readable:
            raise UserError(f"{dataset.name}: none of the {len(wanted)} photos can be read.")
        counts = mentions([example.captions for example in readable], WordTokenizer(words))
        scores_of = {CHANCE: np.zeros(counts.shape)}
        if probe is not None:
            scores_of[PROBE] = F.linear(vectors, *probe).double().numpy()[usable]
        scores_of |= {name: scores[usable] for name, scores in tagged.items()}
        most = max(len(example.captions) for example in readable)
        metrics, per_word = dict[str, dict[str, float]](), dict[str, NDArray[np.float64]]()
        for name, scores in scores_of.items():
            metrics[name], per_word[name] = summary(scores, counts, most, kinds)
        if out:
            best, safe = list(sources)[-1], safe_name(dataset.name)
            files.replace(out / f"{safe}.words.csv", _csv(words, kinds, (counts > 0).sum(0), per_word))
            page = _page(dataset.name, best, readable, scores_of[best], words, metrics[best])
            files.replace(out / f"{safe}.html", page)
        ids = {example.id for example in readable}
        problems = [f"{example.file}: cannot be read" for example in wanted if example.id not in ids]
        results.append(Evaluated(dataset.name, metrics, [*dataset.problems, *problems]))
    if out:
        by_name = {result.name: result.metrics for result in results}
        files.replace(out / "results.json", (json.dumps(by_name, indent=1) + "\n").encode())
    return results


def _chosen(dataset: DataSet, split: str, photos: int | None) -> list[Example]:
    captioned = [example for example in in_split(dataset.examples, split) if example.captions]
    if not captioned:
        raise UserError(f"{dataset.name} has no photo with captions in the split {split!r}.")
    return [captioned[n] for n in sorted(np.random.default_rng(0).permutation(len(captioned))[:photos].tolist())]


def _pooled(
    encoder: Encoder, dataset: str, wanted: Sequence[Example], features: Path | None
) -> tuple[list[Example], Tensor]:
    """Photos that have pooled features of the default encoder, and these: stored ones first, the others made now."""
    store = Encoded(encoder).open(features, dataset) if features else None
    kept = [example for example in wanted if store is not None and example in store]
    vectors = [store.pooled([store.row(example) for example in kept]).float()] if store is not None and kept else []
    ids = {example.id for example in kept}
    if rest := [example for example in wanted if example.id not in ids]:
        pooled = pooled_features(encoder, list(dict.fromkeys(str(example.file) for example in rest)))
        row_of = {file: row for row, file in enumerate(pooled.files)}
        rest = [example for example in rest if str(example.file) in row_of]
        vectors.append(torch.from_numpy(pooled.vectors)[[row_of[str(example.file)] for example in rest]].float())
    return kept + rest, torch.cat(vectors or [torch.zeros(0, encoder.pooled_size)])


def _tag(source: Attributes, photos: Sequence[Example], dataset: str, features: Path | None) -> NDArray[np.float64]:
    """Probabilities of all words, (P, W), from stored features where there are some; NaN where a photo is unreadable"""
    if features and source.regions is not None:
        names = [(str(example.file), str(example.id)) for example in photos]
        source = source.reading(source.regions.kept(features, [(dataset, names)]))

    def read(example: Example) -> Loaded | None:
        try:
            return source.load(example.file)
        except BadPhoto:
            return None

    scores = np.full((len(photos), len(source.words)), np.nan)
    with Progress(f"{source.name} on {dataset}", len(photos)) as bar:
        for batch in batched(enumerate(ordered_map(read, photos)), _BATCH):
            good = [(row, content) for row, content in batch if content is not None]
            if good:
                scores[[row for row, _ in good]] = source.probabilities([content for _, content in good]).cpu().numpy()
            bar.advance(len(batch))
    return scores


def _csv(
    words: Sequence[str], kinds: Sequence[str], photos_with: NDArray[np.int64], scores: dict[str, NDArray[np.float64]]
) -> bytes:
    lines = [csv_line(["word", "part of speech", "photos", *scores])]
    for row, word in enumerate(words):
        numbers = [f"{column[row]:.4f}" if np.isfinite(column[row]) else "" for column in scores.values()]
        lines.append(csv_line([word, kinds[row], int(photos_with[row]), *numbers]))
    return "".join(lines).encode()


def _page(
    name: str,
    tagger: str,
    photos: Sequence[Example],
    scores: NDArray[np.float64],
    words: Sequence[str],
    metrics: dict[str, float],
) -> bytes:
    """A page of photos, the same each time; words that people use of the photo stand out."""
    figures = []
    for row in sorted(np.random.default_rng(0).permutation(len(photos))[:_SHOWN].tolist()):
        people = {word for text in photos[row].captions for word in split_words(text)}
        best = np.argsort(-scores[row], kind="stable")[:_WORDS]
        with suppress(BadPhoto):
            picture = thumbnail(photos[row].file, 240)
            shown = [(words[word], words[word] in people, scores[row, word]) for word in best]
            figures.append((picture, photos[row].file.name, shown))
    return render_page(
        "evaluation/pages/taggers.html",
        title=f"Words of photos: {name}",
        subtitle=f"{tagger}: the {_WORDS} most probable words; those in bold are in people's captions of the photo",
        footer=", ".join(f"{metric} {100 * value:.1f}" for metric, value in metrics.items()),
        more_style="figcaption span { white-space: nowrap; }\n",  # a word and its number stay together
        figures=figures,
    )
