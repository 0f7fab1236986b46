"""Build packages/capscore/src/capscore/data/scene_graph.npz: the weights of the caption parser, lemmas and synonyms.

    python scripts/build_scene_graph_lexicon.py --parses captions.conll --meteor meteor-1.5.jar \
        --captions coco.json.gz nocaps_val.json.gz --out packages/capscore/src/capscore/data/scene_graph.npz

parses    captions with a tag, a head and an arc's name for each word: lines of number, word, tag, head, name with tabs
          between them and an empty line after each caption; Penn Treebank tags, Universal Dependencies 1
warm-up   more of them, from another parser perhaps, that are gone through once at the beginning
meteor    the jar of METEOR 1.5, which holds WordNet 3.0's synonym sets and irregular forms
captions  files of captions {"images": [{"captions": [...]}]}: only synonyms of words that occur in them are kept
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from capscore.files import replace
from capscore.scene_graph import parser
from capscore.words import ENDINGS

# Tags whose difference the rules of scene_graph.py do not use
SAME_TAG = {"NNP": "NN", "NNPS": "NNS", "JJR": "JJ", "JJS": "JJ", "RBR": "RB", "RBS": "RB", "WP$": "PRP$", "FW": "NN"}
RARE = 10  # a tag or a name of arcs seen less often is not learnt: 10 in a training set of 100,000 words
BUCKETS = {"tagger": 1 << 17, "arcs": 1 << 18, "labeller": 1 << 17}
EPOCHS = 6

Floats = NDArray[np.float64]
Parsed = list[tuple[str, str, int, str]]  # word, tag, head, arc's name


Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Machine code that is not kept on disk: numba would not notice a change in the parser's file, which it calls."""
    return cast(Function, numba.njit(function))


class Corpus(NamedTuple):
    words: NDArray[np.int64]
    starts: NDArray[np.int64]
    tags: NDArray[np.int64]
    heads: NDArray[np.int64]
    labels: NDArray[np.int64]


def read_parses(path: Path) -> list[Parsed]:
    captions = []
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n")]
        captions.append(
            [(word.lower(), SAME_TAG.get(tag, tag), int(head), label) for _, word, tag, head, label in rows]
        )
    return captions


def names(seen: Counter[str], other: str) -> list[str]:
    """What is frequent enough to be learnt, `other` for the rest first."""
    return [other, *sorted(name for name, count in seen.items() if count >= RARE and name != other)]


def encode(captions: list[Parsed], tags: list[str], labels: list[str]) -> Corpus:
    words, starts = parser.flatten([[word for word, *_ in caption] for caption in captions])
    tag_ids, label_ids = {t: i for i, t in enumerate(tags)}, {n: i for i, n in enumerate(labels)}
    flat = [(tag_ids.get(t, 0), head, label_ids.get(n, 0), len(c)) for c in captions for _, t, head, n in c]
    heads = [head - 1 if head else count for _, head, _, count in flat]
    columns = [[row[0] for row in flat], heads, [row[2] for row in flat]]
    return Corpus(words, starts, *(np.array(column, np.int64) for column in columns))


@compiled
def update(weights: Floats, totals: Floats, features: NDArray[np.int64], right: int, wrong: int, time: int) -> None:
    """The perceptron's step; `totals` holds what the average over all steps needs."""
    for feature in features:
        weights[feature, right] += 1
        weights[feature, wrong] -= 1
        totals[feature, right] += time
        totals[feature, wrong] -= time


@compiled
def train_tagger(
    words: NDArray[np.int64],
    starts: NDArray[np.int64],
    gold: NDArray[np.int64],
    finite_words: NDArray[np.int64],
    order: NDArray[np.int64],
    weights: Floats,
    totals: Floats,
    time: int,
) -> int:
    features = np.zeros(len(parser.TAG_TEMPLATES), np.int64)
    allowed = np.ones(weights.shape[1], np.bool_)
    for caption in order:
        here = words[starts[caption] : starts[caption + 1]]
        truth = gold[starts[caption] : starts[caption + 1]]
        tags = truth.copy()
        finite = parser.says_finitely(here, finite_words)
        for i in range(len(here)):
            parser.tag_features(here, tags, i, finite, len(weights), features)
            tags[i] = parser.best(weights, features, allowed)
            time += 1
            if tags[i] != truth[i]:
                update(weights, totals, features, truth[i], tags[i], time)
    return time


@compiled
def free_moves(
    stack: NDArray[np.int64], depth: int, front: int, truth: NDArray[np.int64], out: NDArray[np.bool_]
) -> None:
    """The dynamic oracle: which moves lose no arc of the truth that could still be built."""
    count = len(truth)
    parser.may(depth, front, count, out)
    if depth == 0:
        return
    top = stack[depth - 1]
    head = truth[top]
    if out[0]:  # shifting loses the arcs between the front word and the stack, but for one from the top to it
        for place in range(depth):
            below = stack[place]
            if truth[below] == front or (truth[front] == below and place < depth - 1):
                out[0] = False
    lost = front < head  # a head further on, the root included
    for word in range(front, count):  # popping loses the top's arcs to words that are still to come
        if truth[word] == top:
            lost = True
    if lost:
        out[1:] = False
    if depth > 1 and head == stack[depth - 2]:
        out[2] = False
    if head == front:
        out[1] = False
    if not out.any():  # what was wrong before cannot be put right
        parser.may(depth, front, count, out)


@compiled
def train_arcs(
    words: NDArray[np.int64],
    starts: NDArray[np.int64],
    tags: NDArray[np.int64],
    heads: NDArray[np.int64],
    finite_words: NDArray[np.int64],
    order: NDArray[np.int64],
    weights: Floats,
    totals: Floats,
    time: int,
    explore: bool,
) -> int:
    features = np.zeros(len(parser.ARC_TEMPLATES), np.int64)
    allowed, free = np.zeros(parser.MOVES, np.bool_), np.zeros(parser.MOVES, np.bool_)
    for caption in order:
        here = words[starts[caption] : starts[caption + 1]]
        t = tags[starts[caption] : starts[caption + 1]]
        truth = heads[starts[caption] : starts[caption + 1]]
        count = len(here)
        finite = parser.says_finitely(here, finite_words)
        stack, found = np.zeros(count + 1, np.int64), np.zeros(count, np.int64)
        children = np.full((count + 1, 6), -1)
        children[:, 4:] = 0
        depth, front = 0, 0
        while depth or front < count:
            parser.may(depth, front, count, allowed)
            free_moves(stack, depth, front, truth, free)
            parser.arc_features(here, t, stack, depth, front, children, finite, len(weights), features)
            guess = parser.best(weights, features, allowed)
            time += 1
            move = guess
            if not free[guess]:
                right = parser.best(weights, features, free)
                update(weights, totals, features, right, guess, time)
                if not explore:
                    move = right
            depth, front = parser.do(move, stack, depth, front, found, children)
    return time


@compiled
def train_labeller(
    words: NDArray[np.int64],
    starts: NDArray[np.int64],
    tags: NDArray[np.int64],
    heads: NDArray[np.int64],
    gold_heads: NDArray[np.int64],
    gold: NDArray[np.int64],
    finite_words: NDArray[np.int64],
    order: NDArray[np.int64],
    weights: Floats,
    totals: Floats,
    time: int,
) -> int:
    """On the arcs that the parser finds: it must name these, and a wrong arc has no right name."""
    features = np.zeros(len(parser.LABEL_TEMPLATES), np.int64)
    allowed = np.ones(weights.shape[1], np.bool_)
    for caption in order:
        start, stop = starts[caption], starts[caption + 1]
        here, t, h = words[start:stop], tags[start:stop], heads[start:stop]
        count = stop - start
        finite = parser.says_finitely(here, finite_words)
        children, again = np.full((count + 1, 6), -1), np.zeros(count, np.int64)
        children[:, 4:] = 0
        for i in range(count):  # outermost last, as the parser attaches them
            if h[i] < i:
                parser.attach(i, h[i], again, children)
        for i in range(count - 1, -1, -1):
            if h[i] > i:
                parser.attach(i, h[i], again, children)
        for i in range(count):
            if h[i] != gold_heads[start + i]:
                continue
            parser.label_features(here, t, h, children, i, finite, len(weights), features)
            guess = parser.best(weights, features, allowed)
            time += 1
            if guess != gold[start + i]:
                update(weights, totals, features, gold[start + i], guess, time)
    return time


def averaged(weights: Floats, totals: Floats, time: int) -> NDArray[np.int8]:
    """The mean of the weights over all steps, in 8 bits; what is near 0 becomes 0, which is most of it."""
    mean = weights - totals / time
    scale = 100 / np.quantile(np.abs(mean[np.abs(mean) > 0.5]), 0.999)
    rounded: NDArray[np.int8] = np.clip(np.round(mean * scale), -127, 127).astype(np.int8)
    return rounded


class Model(NamedTuple):
    tagger: NDArray[np.int8]
    arcs: NDArray[np.int8]
    labeller: NDArray[np.int8]


def train(corpus: Corpus, tags: int, labels: int, warm_up: int, epochs: int = EPOCHS) -> Model:
    """The first `warm_up` captions are gone through once, before the others."""
    rng = np.random.default_rng(0)
    captions = len(corpus.starts) - 1
    orders = [rng.permutation(warm_up), *(warm_up + rng.permutation(captions - warm_up) for _ in range(epochs))]

    def tables(name: str, classes: int) -> tuple[Floats, Floats]:
        return np.zeros((BUCKETS[name], classes)), np.zeros((BUCKETS[name], classes))

    def begin(epoch: int, totals: Floats, time: int) -> tuple[Floats, int]:
        """The average is over what comes after the warm-up."""
        return (np.zeros_like(totals), 0) if epoch == 1 else (totals, time)

    def fit_tagger(chosen: NDArray[np.bool_]) -> NDArray[np.int8]:
        weights, totals = tables("tagger", tags)
        time = 0
        for epoch, order in enumerate(orders):
            totals, time = begin(epoch, totals, time)
            mine = order[chosen[order]]
            time = train_tagger(corpus.words, corpus.starts, corpus.tags, parser.FINITE, mine, weights, totals, time)
        return averaged(weights, totals, time)

    def fit_arcs(seen_tags: NDArray[np.int64], chosen: NDArray[np.bool_]) -> NDArray[np.int8]:
        weights, totals = tables("arcs", parser.MOVES)
        time = 0
        for epoch, order in enumerate(orders):
            totals, time = begin(epoch, totals, time)
            mine = order[chosen[order]]
            time = train_arcs(
                corpus.words,
                corpus.starts,
                seen_tags,
                corpus.heads,
                parser.FINITE,
                mine,
                weights,
                totals,
                time,
                epoch > 1,
            )
        return averaged(weights, totals, time)

    # Each stage learns from what the stages before it say of captions they have not seen, mistakes included.
    half = np.arange(captions) % 2 == 0
    in_half = np.repeat(half, np.diff(corpus.starts))
    nothing = np.zeros((BUCKETS["arcs"], parser.MOVES), np.int8)
    no_labels = np.zeros((BUCKETS["labeller"], labels), np.int8)
    seen_tags, seen_heads = corpus.tags.copy(), corpus.heads.copy()
    for chosen, words in ((half, ~in_half), (~half, in_half)):
        found = parser.parse(corpus.words, corpus.starts, fit_tagger(chosen), nothing, no_labels)
        seen_tags[words] = found.tags[words]
    for chosen, words in ((half, ~in_half), (~half, in_half)):
        found = parser.parse(corpus.words, corpus.starts, fit_tagger(chosen), fit_arcs(seen_tags, chosen), no_labels)
        seen_heads[words] = found.heads[words]
    every = np.ones(captions, np.bool_)
    tagger, arcs = fit_tagger(every), fit_arcs(seen_tags, every)
    weights, totals = tables("labeller", labels)
    time = 0
    for epoch, order in enumerate(orders):
        totals, time = begin(epoch, totals, time)
        time = train_labeller(
            corpus.words, corpus.starts, seen_tags, seen_heads, corpus.heads, corpus.labels, parser.FINITE, order,
            weights, totals, time,
        )  # fmt: skip
    return Model(tagger, arcs, averaged(weights, totals, time))


def accuracy(model: Model, corpus: Corpus) -> dict[str, float]:
    found = parser.parse(corpus.words, corpus.starts, *model)
    right = found.heads == corpus.heads
    return {
        "tags": float((found.tags == corpus.tags).mean()),
        "heads": float(right.mean()),
        "heads and names": float((right & (found.labels == corpus.labels)).mean()),
    }


def vocabulary(paths: list[Path]) -> set[str]:
    words: set[str] = set()
    for path in paths:
        for image in json.loads(gzip.decompress(path.read_bytes()))["images"]:
            for caption in image["captions"]:
                words.update(re.findall(r"[a-z][a-z'-]*", caption.lower()))
    return words


def wordnet(jar: Path, words: set[str]) -> tuple[list[str], list[str]]:
    """Lines of "base form" for irregular forms, and of "word set set" for synonym sets."""
    with zipfile.ZipFile(jar) as archive:
        exceptions = archive.read("synonym/english.exceptions").decode().split("\n")
        synsets = archive.read("synonym/english.synsets").decode().split("\n")
    bases: dict[str, str] = {}
    for base, forms in zip(exceptions[::2], exceptions[1::2], strict=False):
        for form in forms.split():
            bases.setdefault(form, base)
    irregular = [f"{base} {form}" for form, base in sorted(bases.items()) if form in words and base != form]
    kept = words | {bases[form] for form in words if form in bases}
    kept |= {word[: -len(ending)] + end for word in words for ending, end in ENDINGS if word.endswith(ending)}
    sets = {word: numbers.split() for word, numbers in zip(synsets[::2], synsets[1::2], strict=False) if word in kept}
    short = {number: str(place) for place, number in enumerate(sorted({n for ns in sets.values() for n in ns}))}
    synonyms = [" ".join([word, *(short[number] for number in numbers)]) for word, numbers in sorted(sets.items())]
    return irregular, synonyms


def sparse(name: str, weights: NDArray[np.int8], least: int = 3) -> dict[str, NDArray[np.generic]]:
    """The weights that matter: how far each is from the one before it, and its value."""
    flat = weights.ravel()
    places = np.flatnonzero(np.abs(flat.astype(np.int16)) >= least)
    steps = np.diff(places, prepend=-1)
    kind = np.uint16 if steps.max(initial=0) < 1 << 16 else np.uint32
    return {
        f"{name}_shape": np.array(weights.shape),
        f"{name}_steps": steps.astype(kind),
        f"{name}_values": flat[places],
    }


def text(lines: list[str]) -> NDArray[np.uint8]:
    return np.frombuffer("\n".join(lines).encode(), np.uint8)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--parses", type=Path, required=True)
    arguments.add_argument("--warm-up", type=Path)
    arguments.add_argument("--meteor", type=Path, required=True)
    arguments.add_argument("--captions", type=Path, nargs="+", required=True)
    arguments.add_argument("--out", type=Path, required=True)
    options = arguments.parse_args()

    captions = read_parses(options.parses)
    tags = names(Counter(tag for caption in captions for _, tag, _, _ in caption), "NN")
    labels = names(Counter(label for caption in captions for *_, label in caption), "dep")
    warm_up = read_parses(options.warm_up) if options.warm_up else []

    def fit(chosen: list[Parsed]) -> Model:
        return train(encode(warm_up + chosen, tags, labels), len(tags), len(labels), len(warm_up))

    held_out = len(captions) // 10
    trial = fit(captions[held_out:])
    print(f"{held_out} captions held out:", accuracy(trial, encode(captions[:held_out], tags, labels)))
    model = fit(captions)
    irregular, synonyms = wordnet(options.meteor, vocabulary(options.captions))
    content: dict[str, Any] = {
        "tags": text(tags),
        "labels": text(labels),
        "irregular": text(irregular),
        "synonyms": text(synonyms),
    }
    for name, weights in model._asdict().items():
        content |= sparse(name, weights)
    file = io.BytesIO()
    np.savez_compressed(file, **content)
    replace(options.out, file.getvalue())
    print(f"{options.out}: {len(file.getvalue()):,} bytes")


if __name__ == "__main__":
    main()
