"""Taggers against people's words: average precision by word and by part of speech, beside chance and a linear probe.

results.json   {data: {tagger: {metric: value}}}: mAP and mAP[Fang], of all words and by part of speech (mAP[nouns] ...)
DATA.words.csv a line for each word: part of speech, photos that have it, chance, AP of the probe and of the taggers
DATA.html      photos with their ten most probable words
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tellapart import files
from tellapart.data import examples
from tellapart.data.examples import DataSet, Example
from tellapart.data.media.thumbnails import thumbnail
from tellapart.data.tokenizers import WordTokenizer, split_words
from tellapart.encoders.encoder import Encoder
from tellapart.errors import BadPhoto, UserError
from tellapart.features.attributes import AttributeSource
from tellapart.features.extracted import safe_name, stored
from tellapart.features.pooled import pooled_features
from tellapart.html import escaped, page
from tellapart.metrics.average_precision import average_precision, weighted_average_precision
from tellapart.metrics.scene_graph.scorer import part_of_speech
from tellapart.models.attributes import load
from tellapart.numerics import choose_device
from tellapart.parallel import batched, ordered_map
from tellapart.progress import Progress
from tellapart.recipe import EncoderConfig
from tellapart.training.data import in_split
from tellapart.training.tagging import mentions

PROBE, CHANCE = "linear probe", "chance"
_KINDS = {"NN": "nouns", "VB": "verbs", "JJ": "adjectives"}  # by the beginning of Penn Treebank's tags
_SHOWN = 48  # photos on the page
_WORDS = 10  # of each
_BATCH = 32


@dataclass(frozen=True)
class Evaluated:
    """Of a data set: metrics by tagger, and what could not be used."""

    name: str
    metrics: dict[str, dict[str, float]]
    problems: list[str]


def parts_of_speech(captions: Iterable[str]) -> dict[str, str]:
    """What each word is most often in captions: nouns, verbs, adjectives or others."""
    counts: dict[str, Counter[str]] = {}
    sentences = [split_words(text) for text in captions]
    for words, tags in zip(sentences, part_of_speech(sentences), strict=True):
        for word, own in zip(words, tags, strict=True):
            counts.setdefault(word, Counter())[_KINDS.get(own[:2], "others")] += 1
    return {word: found.most_common(1)[0][0] for word, found in counts.items()}


def summary(
    scores: NDArray[np.floating], found: NDArray[np.integer], captions: int, kinds: Sequence[str]
) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Means over words, all and by part of speech, and the average precision of each word (W,).

    scores, found   (P, W): how probable a word is, and how many of the photo's captions have it
    """
    plain, weighted = average_precision(scores, found > 0), weighted_average_precision(scores, found, captions)
    metrics = {"mAP": float(np.nanmean(plain)), "mAP[Fang]": float(np.nanmean(weighted))}
    for kind in (*_KINDS.values(), "others"):
        own = np.array([one == kind for one in kinds]) & ~np.isnan(plain)
        if own.any():
            metrics[f"mAP[{kind}]"] = float(plain[own].mean())
    return metrics, plain


def linear_probe(pooled: Tensor, has: Tensor, *, epochs: int = 6, batch: int = 64) -> tuple[Tensor, Tensor]:
    """Logistic regression of each word on a photo's pooled features: its weights (W, D) and biases (W,).

    pooled, has   (N, D), (N, W) of the training photos
    """
    generator = torch.Generator().manual_seed(0)
    frequency = has.mean(0).clamp(1e-5, 1 - 1e-5)
    weight = torch.randn(has.shape[1], pooled.shape[1], generator=generator).mul_(0.01).requires_grad_()
    bias = torch.logit(frequency).requires_grad_()
    optimizer = torch.optim.AdamW([weight, bias], lr=1e-3)
    steps = epochs * -(-len(pooled) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(pooled), generator=generator).split(batch):  # type: ignore[no-untyped-call]
            logits = F.linear(pooled[rows], weight, bias)
            loss = F.binary_cross_entropy_with_logits(logits, has[rows], reduction="sum") / len(rows)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return weight.detach(), bias.detach()


def evaluate(
    names: Sequence[str],
    data: Sequence[str],
    *,
    split: str,
    training: str = "train",
    features: Path | None = None,
    out: Path | None = None,
    device: str = "auto",
) -> list[Evaluated]:
    """names      folders of taggers' runs, all with the same words
    training   the split of all data files that the probe learns from
    features   where features of the default encoder may be cached
    """
    sources = {Path(name).name: load(EncoderConfig(name, most=_WORDS), choose_device(device)) for name in names}
    words = next(iter(sources.values())).words
    for name, source in sources.items():
        if source.words != words:
            raise UserError(f"{name} has other words than {next(iter(sources))}; only the same words can be compared.")
    tokenizer = WordTokenizer(words)
    sets = [examples.read(Path(file)) for file in data]
    learned = [[one for one in in_split(dataset.examples, training) if one.captions] for dataset in sets]
    kinds = parts_of_speech(text for part in learned for one in part for text in one.captions)
    of_word = [kinds.get(word, "others") for word in words]
    pooled = [_pooled(dataset.name, part, features) for dataset, part in zip(sets, learned, strict=True)]
    known = [one for photos, _ in pooled for one in photos]
    probe = None
    if known:
        has = torch.from_numpy(mentions([one.captions for one in known], tokenizer) > 0).float()
        probe = linear_probe(torch.cat([vectors for _, vectors in pooled]), has)
    results = [_of_data(dataset, sources, split, of_word, probe, features, out) for dataset in sets]
    if out:
        found = {one.name: one.metrics for one in results}
        files.replace(out / "results.json", (json.dumps(found, indent=1) + "\n").encode())
    return results


def _of_data(
    dataset: DataSet,
    sources: dict[str, AttributeSource],
    split: str,
    kinds: Sequence[str],
    probe: tuple[Tensor, Tensor] | None,
    features: Path | None,
    out: Path | None,
) -> Evaluated:
    words = next(iter(sources.values())).words
    asked = [one for one in in_split(dataset.examples, split) if one.captions]
    seen, vectors = _pooled(dataset.name, asked, features)
    if not seen:
        raise UserError(f"{dataset.name} has no photo with captions that can be read in the split {split!r}.")
    problems = [f"{one.file}: cannot be read" for one in asked if one not in seen]
    found = mentions([one.captions for one in seen], WordTokenizer(words))
    rows = {CHANCE: np.zeros(found.shape)}
    if probe:
        rows[PROBE] = F.linear(vectors, *probe).double().numpy()
    for name, source in sources.items():
        rows[name] = _look(source, seen, f"{name} on {dataset.name}")
    captions = max(len(one.captions) for one in seen)
    metrics, per_word = dict[str, dict[str, float]](), dict[str, NDArray[np.float64]]()
    for name, row in rows.items():
        metrics[name], per_word[name] = summary(row, found, captions, kinds)
    if out:
        best, safe = list(sources)[-1], safe_name(dataset.name)
        files.replace(out / f"{safe}.words.csv", _csv(words, kinds, (found > 0).sum(0), per_word))
        files.replace(out / f"{safe}.html", _page(dataset.name, best, seen, rows[best], words, metrics[best]))
    return Evaluated(dataset.name, metrics, [*dataset.problems, *problems])


def _pooled(dataset: str, wanted: Sequence[Example], features: Path | None) -> tuple[list[Example], Tensor]:
    """Pooled features of the default encoder, and the photos that have them."""
    encoder = Encoder(EncoderConfig())
    store = stored(features, dataset, encoder) if features else None
    if store is not None and all(one in store for one in wanted):
        return list(wanted), store.pooled([store.row(one) for one in wanted])
    looked = pooled_features(encoder, list(dict.fromkeys(str(one.file) for one in wanted)))
    place = {file: row for row, file in enumerate(looked.files)}
    there = [one for one in wanted if str(one.file) in place]
    return there, torch.from_numpy(looked.vectors)[[place[str(one.file)] for one in there]].float()


def _look(source: AttributeSource, seen: Sequence[Example], title: str) -> NDArray[np.float64]:
    """Probabilities of all words, (P, W)"""
    parts = []
    with Progress(title, len(seen)) as bar:
        for batch in batched(ordered_map(lambda one: source.prepare(one.file)[0], seen), _BATCH):
            parts.append(source.probabilities(batch).cpu())
            bar.advance(len(batch))
    return torch.cat(parts).double().numpy()


def _csv(
    words: Sequence[str], kinds: Sequence[str], photos_with: NDArray[np.int64], scores: dict[str, NDArray[np.float64]]
) -> bytes:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["word", "part of speech", "photos", *scores])
    for row, word in enumerate(words):
        numbers = [f"{own[row]:.4f}" if np.isfinite(own[row]) else "" for own in scores.values()]
        lines.writerow([word, kinds[row], int(photos_with[row]), *numbers])
    return text.getvalue().encode()


def _page(
    name: str,
    tagger: str,
    seen: Sequence[Example],
    scores: NDArray[np.float64],
    words: Sequence[str],
    metrics: dict[str, float],
) -> bytes:
    """The same photos whoever asks; words that people use of the photo stand out."""
    figures = []
    chosen = np.random.default_rng(0).permutation(len(seen))[:_SHOWN]
    for row in sorted(chosen.tolist()):
        people = {word for text in seen[row].captions for word in split_words(text)}
        best = [words[word] for word in np.argsort(-scores[row], kind="stable")[:_WORDS]]
        shown = [
            f"{f'<b>{escaped(word)}</b>' if word in people else escaped(word)} {chance:.2f}"
            for word, chance in zip(best, -np.sort(-scores[row])[:_WORDS], strict=True)
        ]
        try:
            width, height, url = thumbnail(seen[row].file, 240)
        except BadPhoto:
            continue
        picture = f'<img src="{url}" width="{width}" height="{height}" alt="{escaped(seen[row].file.name)}">'
        figures.append(
            f'<figure><div class="photo">{picture}</div><figcaption>{", ".join(shown)}</figcaption></figure>'
        )
    subtitle = f"{tagger}: the {_WORDS} most probable words; those in bold are in people's captions of the photo"
    footer = ", ".join(f"{metric} {100 * value:.1f}" for metric, value in metrics.items())
    return page(f"Words of photos: {name}", subtitle, f'<div class="row">\n{"".join(figures)}</div>\n', footer=footer)
