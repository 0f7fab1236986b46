"""A step as the field's scripts write it, and that it agrees with ours: see `objectives`."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from step_settings import MAX_WORDS, PHOTOS, SAMPLES, Setting
from torch import Tensor

from tellapart.data.streams import region_inputs
from tellapart.decoding.sample import greedy
from tellapart.decoding.score import caption_mask, score
from tellapart.objectives import baselines
from tellapart.objectives.policy_gradient import policy_gradient
from tellapart.recipe import LocalConfig
from tellapart.rewards import Reward
from tellapart.rewards.retrieval import MARGIN


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
        token_mask = caption_mask(drawn, setting.words.eos)
        return -(logp * torch.tensor(above) * token_mask).sum() / token_mask.sum(), drawn, others

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
        frozen, words = self.setting.retriever, self.setting.words
        retriever = frozen.embed.retriever  # type: ignore[attr-defined]
        nearest = self.setting.terms["gd"].hard_neighbour.nearest  # type: ignore[attr-defined]
        heard = [retriever.embed_captions([words.decode(row)])[0] for row in tokens.tolist()]
        fit = [[float(vector @ frozen.images[photo]) for photo in range(PHOTOS)] for vector in heard]
        rewards = []
        for i, vector in enumerate(heard):
            own = i // SAMPLES
            rivals = [float(vector @ frozen.images[nearest[own]])]
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


def must_agree(setting: Setting, theirs: Script, terms: Sequence[str]) -> None:
    """The same greedy captions, the same rewards and the same loss of what the script has drawn."""
    torch.manual_seed(0)
    with torch.no_grad():
        loss, drawn, others = theirs.loss()
        memory = setting.captioner.encode(region_inputs(setting.features, setting.mask))
        if theirs.row != "GLD":
            found = greedy(setting.captioner, memory, setting.rules)
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
            said.words,
            said.mask,
            bos=setting.words.bos,
            policy=lambda logits: logits.index_fill(1, never, -torch.inf).log_softmax(1),
        )
        ours, _ = policy_gradient(logp, baselines.advantage(reward, baseline, drawn.shape[1]), said.mask)
        np.testing.assert_allclose(ours.item(), loss.item(), rtol=1e-3, atol=1e-5)
