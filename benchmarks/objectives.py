"""A step of distinctive training: where its time goes, what distinctive rewards add, and how the field's scripts do it.

    python benchmarks/objectives.py [CAPTIONS.json] [--repeats 5]

16 photos with 5 sampled captions each, one thread, CPU time, features given.  References are those of CAPTIONS.json, or
the thousand photos of tests/golden.  Two captioners: Up-Down (TDA) at the width of the GLD paper, 36 regions of 2048
numbers and 9,487 words, taught by a few steps of cross-entropy so that its captions end as captions do; and the
Transformer of `plain` on photos of the album.

parts   of one step, in milliseconds and as a share: Table VI of the GLD paper for all of it.  "reward" is every term;
        all hear the same captions once, so that the first term that asks the listener pays for it.
steps   whole steps of `PolicyGradient` with the rewards of the papers' rows, beside that of SCST.
weights a step of SCST with the gradient of a weight that every word uses made in one product over all words, and by
        autograd word by word.
sharing a step of SCST with captions that begin alike as one row until they part, and with a row for each.
script  a step of SCST, one with GD beside CIDEr-D and one of GLD, as scripts for self-critical training write them:
        the features of a photo are copied for each of its captions, words are drawn by torch.multinomial, the greedy
        caption (in GLD's program a second sample) is decoded for every copy, tokens become strings, CIDEr-D and LD are
        computed from dictionaries of n-grams that are made anew for every caption and every reference, and the
        retriever hears one caption at a time.  The captioner is ours in both.  The rewards and the loss of the same
        captions must agree, or the timing means nothing.

The learning rate is 0, so that every repetition has the same captioner; each repetition has another seed, and all that
is compared within it has the same one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from timing import side_by_side, table
from torch import Tensor, nn

from tellapart.album import HERE
from tellapart.captioners.transformer import Transformer
from tellapart.captioners.up_down import UpDown, UpDownConfig
from tellapart.data.batches import Batch, padded
from tellapart.data.media import photos as photo_files
from tellapart.data.streams import region_inputs
from tellapart.data.tokenizers import WordTokenizer, split_words
from tellapart.decoding.sample import greedy, sample
from tellapart.decoding.score import caption_mask, score
from tellapart.metrics.caption_files import read_references
from tellapart.models import encoder_of, load
from tellapart.models.retrievers import load as load_retriever
from tellapart.objectives import StepInfo, baselines
from tellapart.objectives.cross_entropy import cross_entropy_step
from tellapart.objectives.policy_gradient import PolicyGradient, policy_gradient
from tellapart.recipe import LocalConfig, PolicyConfig
from tellapart.rewards import Reward, SampledCaptions, Term
from tellapart.rewards.combine import Combined
from tellapart.rewards.consensus import Consensus
from tellapart.rewards.global_discriminative import MARGIN, GlobalDiscriminative
from tellapart.rewards.group_gap import GroupGap
from tellapart.rewards.listener import Listener
from tellapart.rewards.local_discriminative import LocalDiscriminative
from tellapart.rewards.registry import Sentence
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
        self.rules = {
            "bos": self.words.bos,
            "eos": self.words.eos,
            "pad": self.words.pad,
            "banned": self.words.banned_ids,
            "max_words": MAX_WORDS,
        }

    @cached_property
    def consensus(self) -> Consensus:
        return Consensus(self.references, end=self.words.eos)

    @cached_property
    def listener(self) -> Listener:
        """It has seen photos of noise: what it hears takes as long."""
        pooled = torch.randn(len(self.references), 1280)
        retriever = load_retriever("word", device="cpu")
        return Listener.of_photos(retriever, self.words, pooled, torch.zeros(len(pooled), dtype=torch.long))

    @cached_property
    def terms(self) -> dict[str, Term]:
        look_alikes = torch.randint(len(self.references), (len(self.references), 5))
        return {
            "cider_d": Sentence(self.consensus),
            "ld": LocalDiscriminative(self.consensus, LocalConfig()),
            "gd": GlobalDiscriminative(self.listener, look_alikes[:, 0]),
            "geg_avg": GroupGap(self.listener, look_alikes),
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


def parts(setting: Setting, repeats: int) -> list[dict[str, str]]:
    took: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        began = time.process_time()
        yield
        took[part].append(time.process_time() - began)

    captioner, rules = setting.captioner, setting.rules
    at_once = getattr(captioner, "all_words_at_once", False)
    for turn in range(repeats + 1):  # the first warms up
        torch.manual_seed(turn)
        with timed("encode"):
            memory = captioner.encode(region_inputs(setting.features, setting.mask))
        with timed("sample"), torch.set_grad_enabled(not at_once):
            rollout = sample(captioner, memory, samples=SAMPLES, **rules)
        logp = rollout.logp
        if at_once:
            with timed("score"):
                logp = score(captioner, memory, rollout.tokens, rollout.mask, bos=rules["bos"])
        said, rewards = setting.said(rollout.tokens), {}
        with torch.no_grad():
            for name, term in setting.terms.items():
                with timed(f"reward: {name}"):
                    rewards[name] = term(said)
            with timed("reward: geg_avg, alone"):
                setting.terms["geg_avg"](setting.said(rollout.tokens))
        with timed("backward"):
            baseline = baselines.leave_one_out(rewards["ld"], SAMPLES)
            above = baselines.advantage(rewards["ld"], baseline, said.tokens.shape[1])
            policy_gradient(logp, above, said.mask)[0].backward()
        with timed("clip and AdamW"):
            torch.nn.utils.clip_grad_norm_(captioner.parameters(), 1.0)
            setting.optimizer.step()
            setting.optimizer.zero_grad()
    seconds = {part: statistics.median(values[1:]) for part, values in took.items()}
    whole = sum(value for part, value in seconds.items() if not part.startswith("reward"))
    kept = ("cider_d", "ld", "gd")
    seconds["CIDEr-D + GD + LD"] = sum(seconds[f"reward: {name}"] for name in kept)
    seconds["CIDEr-D + GEG"] = seconds["reward: cider_d"] + seconds["reward: geg_avg, alone"]
    whole += seconds["CIDEr-D + GD + LD"]
    return [
        {
            "part": part,
            "ms": f"{1000 * value:.1f}",
            "range": f"{1000 * min(took[part][1:]):.1f} to {1000 * max(took[part][1:]):.1f}" if part in took else "",
            "% of a GLD step": f"{100 * value / whole:.2f}",
        }
        for part, value in seconds.items()
    ]


# What distinctive rewards add to a step


def seeded(ways: dict[str, Callable[[], object]]) -> dict[str, Callable[[], object]]:
    """The same draws for all in every turn, others in the next."""

    def with_seed(way: Callable[[], object], turn: Iterator[int]) -> None:
        torch.manual_seed(next(turn))
        way()

    return {name: partial(with_seed, way, iter(range(1000))) for name, way in ways.items()}


def steps(setting: Setting, baseline: str, repeats: int) -> dict[str, str]:
    took = side_by_side(
        seeded({name: setting.step(terms, baseline) for name, terms in ROWS.items()}),
        repeats=repeats,
        clock=time.process_time,
    )
    row = {"captioner": setting.name, "baseline": baseline}
    row |= {f"{name}, ms": f"{1000 * seconds:.0f}" for name, seconds in took.items()}
    return row | {f"{name} / SCST": f"{took[name] / took['SCST']:.3f}" for name in ("GLD", "GEG")}


# What it saves to make the gradients of weights at once


def word_by_word(step: Callable[[], None]) -> Callable[[], None]:
    """With autograd left to itself."""
    sampling = import_module("tellapart.decoding.sample")  # `decoding.sample` is the function

    def patched() -> None:
        with mock.patch.object(sampling, "AtOnce", nullcontext):
            step()

    return patched


def weights(setting: Setting, repeats: int) -> list[dict[str, str]]:
    step = setting.step(ROWS["SCST"], "leave_one_out")
    ways = {"at once": step, "word by word": word_by_word(step)}
    took = side_by_side(seeded(ways), repeats=repeats, clock=time.process_time)
    row = {"captioner": setting.name} | {f"{way}, ms": f"{1000 * seconds:.0f}" for way, seconds in took.items()}
    return [row | {"word by word / at once": f"{took['word by word'] / took['at once']:.2f}"}]


def apart(step: Callable[[], None]) -> Callable[[], None]:
    """With a row of its own for every caption from its second word on."""
    sampling = import_module("tellapart.decoding.sample")

    def patched() -> None:
        with (
            mock.patch.object(sampling, "_same_for_all", return_value=False),
            mock.patch.object(Transformer, "shares_prefixes", False),
        ):
            step()

    return patched


def sharing(setting: Setting, temperature: float, repeats: int) -> dict[str, str]:
    step = setting.step(ROWS["SCST"], "leave_one_out", temperature)
    took = side_by_side(seeded({"shared": step, "apart": apart(step)}), repeats=repeats, clock=time.process_time)
    row = {"captioner": setting.name, "temperature": f"{temperature:g}"}
    row |= {f"{way}, ms": f"{1000 * seconds:.0f}" for way, seconds in took.items()}
    return row | {"apart / shared": f"{took['apart'] / took['shared']:.2f}"}


# A step as the field's scripts write it


class Script:
    """Self-critical training with strings, dictionaries and two decoding passes."""

    def __init__(self, setting: Setting, row: str):
        self.setting, self.row = setting, row
        self.told = [[_string([*caption, setting.words.eos], setting) for caption in p] for p in setting.references]
        self.frequency = Counter(gram for p in self.told for gram in set().union(*map(_grams, p)))
        self.log_photos = math.log(len(self.told))

    def __call__(self) -> None:
        self.setting.learn(self.loss()[0])

    def loss(self) -> tuple[Tensor, Tensor, Tensor]:
        """And the captions it is of: drawn, and those that they are compared with."""
        setting = self.setting
        features, mask = (part.repeat_interleave(SAMPLES, 0) for part in (setting.features, setting.mask))
        drawn, logp = self._decode(features, mask, draw=True)
        with torch.no_grad():
            others, _ = self._decode(features, mask, draw=self.row == "GLD")
        length = drawn.shape[1]
        above = [
            [sentence - other + _at(words, t) - _at(other_words, t) for t in range(length)]
            for (sentence, words), (other, other_words) in zip(self.rewards(drawn), self.rewards(others), strict=True)
        ]
        spoken = caption_mask(drawn, setting.words.eos)
        return -(logp * torch.tensor(above) * spoken).sum() / spoken.sum(), drawn, others

    def _decode(self, features: Tensor, mask: Tensor, draw: bool) -> tuple[Tensor, Tensor]:
        captioner, words = self.setting.captioner, self.setting.words
        memory = captioner.encode(region_inputs(features, mask))
        state, token = captioner.start(memory), torch.full((len(features),), words.bos)
        tokens = torch.full((len(features), MAX_WORDS), words.pad)
        logps, unfinished = [], torch.ones(len(features), dtype=torch.bool)
        for place in range(MAX_WORDS):
            logits, state = captioner.step(token, state, memory)
            logits[:, list(words.banned_ids)] = -torch.inf
            logp = logits.log_softmax(1)
            token = torch.multinomial(logp.detach().exp(), 1).squeeze(1) if draw else logp.argmax(1)
            token = token * unfinished  # padding is 0
            tokens[:, place] = token
            logps.append(logp.gather(1, token[:, None]).squeeze(1).masked_fill(~unfinished, 0.0))
            unfinished = unfinished & (token != words.eos)
            if not unfinished.any():
                break
        return tokens[:, : len(logps)], torch.stack(logps, 1)

    def rewards(self, tokens: Tensor) -> list[tuple[float, list[float]]]:
        """Of each caption, and of each of its words beside that."""
        said = {i: _string(row, self.setting) for i, row in enumerate(tokens.tolist())}
        told = {i: self.told[i // SAMPLES] for i in said}
        sentences = [self._cider_d(said[i], told[i]) for i in said]
        if self.row != "SCST":
            sentences = [one + other for one, other in zip(sentences, self._global(tokens), strict=True)]
        return [(sentences[i], self._local(said[i], told[i]) if self.row == "GLD" else []) for i in said]

    def _cider_d(self, caption: str, references: list[str]) -> float:
        own = self._weighed(_grams(caption))
        return 10 * statistics.fmean(self._alike(own, self._weighed(_grams(text))) for text in references)

    def _local(self, caption: str, references: list[str]) -> list[float]:
        """The bonus of LD, word by word."""
        config, end = LocalConfig(), str(self.setting.words.eos)
        vectors, norms, pairs = self._weighed(_grams(caption))
        others = [self._weighed(_grams(text)) for text in references]
        bonuses = []
        for word in caption.split():
            bonus = 0.0
            if word != end and vectors[0][word,] > config.word_threshold:
                for their_vectors, their_norms, their_pairs in others:
                    shorter = math.exp(-((pairs - their_pairs) ** 2) / (2 * 6.0**2))
                    for mine, theirs, my_norm, their_norm in zip(
                        vectors, their_vectors, norms, their_norms, strict=True
                    ):
                        for gram, weight in mine.items():
                            if word in gram and weight > config.threshold and my_norm and their_norm:
                                other = theirs.get(gram, 0.0)
                                bonus += shorter * min(weight, other) * other / (my_norm * their_norm)
            bonuses.append(10 * bonus / len(references))
        return bonuses

    def _weighed(self, counts: Counter[tuple[str, ...]]) -> tuple[list[dict[tuple[str, ...], float]], list[float], int]:
        vectors: list[dict[tuple[str, ...], float]] = [{} for _ in range(4)]
        squares, pairs = [0.0] * 4, 0
        for gram, count in counts.items():
            weight = count * (self.log_photos - math.log(max(1.0, self.frequency.get(gram, 0.0))))
            vectors[len(gram) - 1][gram] = weight
            squares[len(gram) - 1] += weight**2
            pairs += count if len(gram) == 2 else 0
        return vectors, [math.sqrt(square) for square in squares], pairs

    def _alike(self, own: tuple, other: tuple) -> float:  # type: ignore[type-arg]
        total = 0.0
        for mine, theirs, my_norm, their_norm in zip(own[0], other[0], own[1], other[1], strict=True):
            value = sum(min(weight, theirs.get(gram, 0.0)) * theirs.get(gram, 0.0) for gram, weight in mine.items())
            if my_norm and their_norm:
                value /= my_norm * their_norm
            total += value * math.exp(-((own[2] - other[2]) ** 2) / (2 * 6.0**2))
        return total / 4

    def _global(self, tokens: Tensor) -> list[float]:
        """R_GD, caption by caption."""
        listener, words = self.setting.listener, self.setting.words
        retriever = listener.embed.retriever  # type: ignore[attr-defined]
        nearest = self.setting.terms["gd"].hard_neighbour.nearest  # type: ignore[attr-defined]
        heard = [retriever.embed_captions([words.decode(row)])[0] for row in tokens.tolist()]
        fit = [[float(vector @ listener.images[photo]) for photo in range(PHOTOS)] for vector in heard]
        rewards = []
        for i, vector in enumerate(heard):
            own = i // SAMPLES
            rivals = [float(vector @ listener.images[nearest[own]])]
            rivals.append(max(fit[j][own] for j in range(len(heard)) if j // SAMPLES != own))
            rivals.append(max(fit[i][photo] for photo in range(PHOTOS) if photo != own))
            rewards.append(sum(-max(0.0, MARGIN + rival - fit[i][own]) for rival in rivals))
        return rewards


def _at(words: list[float], place: int) -> float:
    return words[place] if place < len(words) else 0.0


def _string(row: Sequence[int], setting: Setting) -> str:
    """Token ids as text, up to and with the end."""
    text = ""
    for token in row:
        text += f"{token} "
        if token == setting.words.eos:
            break
    return text.strip()


def _grams(text: str) -> Counter[tuple[str, ...]]:
    words = text.split()
    return Counter(tuple(words[i : i + n]) for n in range(1, 5) for i in range(len(words) - n + 1))


SCRIPTS = {"SCST": ("cider_d",), "GD": ("cider_d", "gd"), "GLD": ("ld", "gd")}


def script(setting: Setting, row: str, repeats: int) -> dict[str, str]:
    theirs, terms = Script(setting, row), SCRIPTS[row]
    must_agree(setting, theirs, terms)
    same = "second_sample" if row == "GLD" else "greedy"
    ways = {"script": theirs, "same baseline": setting.step(terms, same), "ours": setting.step(terms, "leave_one_out")}
    took = side_by_side(seeded(ways), repeats=repeats, clock=time.process_time)
    line = {"captioner": setting.name, "row": row, "rewards": " + ".join(terms)}
    line |= {f"{name}, ms": f"{1000 * seconds:.0f}" for name, seconds in took.items()}
    return line | {f"script / {name}": f"{took['script'] / took[name]:.2f}" for name in list(ways)[1:]}


def must_agree(setting: Setting, theirs: Script, terms: Sequence[str]) -> None:
    """The same greedy captions, the same rewards and the same loss of what the script has drawn."""
    torch.manual_seed(0)
    with torch.no_grad():
        loss, drawn, others = theirs.loss()
        memory = setting.captioner.encode(region_inputs(setting.features, setting.mask))
        if theirs.row != "GLD":
            found = greedy(setting.captioner, memory, **setting.rules)
            assert torch.equal(found.tokens, others[::SAMPLES, : found.tokens.shape[1]])

        def score_baseline(tokens: Tensor) -> Reward:
            said = setting.said(tokens)
            parts = [setting.terms[name](said) for name in terms]
            words = [part.words for part in parts if part.words is not None]
            reward = Reward(sum(part.sentence for part in parts), words[0] if words else None)  # type: ignore[arg-type]
            expected = theirs.rewards(tokens)
            np.testing.assert_allclose(reward.sentence.numpy(), [one for one, _ in expected], rtol=1e-4, atol=1e-4)
            if words:
                bonuses = [[_at(of, place) for place in range(tokens.shape[1])] for _, of in expected]
                np.testing.assert_allclose(words[0].numpy(), bonuses, rtol=1e-4, atol=1e-4)
            return reward

        reward, baseline = score_baseline(drawn), score_baseline(others)
        said, never = setting.said(drawn), torch.tensor(setting.words.banned_ids)
        logp = score(
            setting.captioner,
            memory,
            said.tokens,
            said.mask,
            bos=setting.words.bos,
            policy=lambda logits: logits.index_fill(1, never, -torch.inf).log_softmax(1),
        )
        ours, _ = policy_gradient(logp, baselines.advantage(reward, baseline, drawn.shape[1]), said.mask)
        np.testing.assert_allclose(ours.item(), loss.item(), rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captions", nargs="?", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    request = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    texts = captions(request.captions)
    settings = [up_down(texts), transformer(texts)]
    for setting in settings:
        title = f"{setting.name}: parts of a step, {PHOTOS} photos x {SAMPLES} samples"
        table(title, parts(setting, request.repeats))
    rows = [
        steps(setting, baseline, request.repeats)
        for setting in settings
        for baseline in ("leave_one_out", "second_sample")
    ]
    table("Whole steps: SCST (CIDEr-D), GLD (LD + GD), GEG (CIDEr-D + G_avg)", rows)
    table("Gradients of weights that every word uses", weights(settings[0], request.repeats))
    rows = [sharing(setting, temperature, request.repeats) for setting in settings for temperature in (1.0, 0.7)]
    table("Captions that begin alike: as one row until they part, and each by itself", rows)
    rows = [script(setting, row, request.repeats) for setting in settings for row in SCRIPTS]
    table("A step of a script and ours", rows)
