"""Preferences of people, learned from what they decided about captions, and as a reward.

A logistic model of preference (Bradley & Terry, 1952).  The appeal of a caption is

    s = sum of the weights of its different words + weight * number of words / 10

Of two captions of a photo, people prefer the first with probability sigmoid(s1 - s2); a caption by itself they approve
with probability sigmoid(s + b).  The weights have an L2 penalty, whose strength is chosen by cross-validation over
photos.  If no strength predicts the photos left out better than chance, nothing was learned, and nothing is rewarded.

The reward is the log-probability that a caption is preferred to those that people preferred: log sigmoid(s - their
mean s).  It levels off, so that a captioner gains little by more of the same.

What we leave out on purpose: the photo.  A few hundred decisions teach which words and lengths people like, not whether
words are true; for that, the retriever rewards too.  And a loss on pairs (DPO), which would need captions of the photos
that the captioner is adapted to, while this applies to any photo.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from tellapart.data.tokenizers import split_words
from tellapart.rewards import Reward, SampledCaptions

LEAST = 20  # decisions that something can be learned from
_WORDS = 500  # the most frequent ones have weights
_FOLDS = 5
_PENALTIES = (0.3, 1.0, 3.0, 10.0)  # of half the squared weights, against the sum over decisions
_SURE = 2.0  # standard errors by which predictions must be better than chance
_FORMAT = 1


@dataclass(frozen=True)
class Decision:
    """A person's decision about captions of a photo: one is better than another, or good or bad by itself."""

    photo: str
    better: str = ""  # empty: a caption was rejected
    worse: str = ""  # empty: a caption was approved


@dataclass(frozen=True)
class Preference:
    """
    >>> Preference({"red": 2.0}, length=-1.0, liked=0.0).appeal("a red bus on a street")
    1.4
    """

    weights: dict[str, float]
    length: float  # of ten words
    liked: float  # mean appeal of captions that people preferred or approved
    predicted: float = math.nan  # share of left-out decisions that it predicts

    def appeal(self, caption: str) -> float:
        words = split_words(caption)
        return sum(self.weights.get(word, 0.0) for word in set(words)) + self.length * len(words) / 10

    def chance(self, caption: str) -> float:
        """That people prefer it to one that they liked."""
        return float(torch.tensor(self.appeal(caption) - self.liked, dtype=torch.double).sigmoid())

    def save(self, path: Path) -> None:
        files.replace(path, (json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n").encode("ascii"))

    @classmethod
    def load(cls, path: Path) -> Preference:
        content = files.read_json(path)
        weights, numbers = content.get("weights"), [content.get(name) for name in ("length", "liked", "predicted")]
        good = content.get("format") == _FORMAT and isinstance(weights, dict)
        if not good or not all(isinstance(value, int | float) for value in (*weights.values(), *numbers)):  # type: ignore[union-attr]
            raise UserError(f"{path}: this is no file of preferences, which `tellapart adapt --feedback` makes.")
        return cls({str(word): float(value) for word, value in weights.items()}, *map(float, numbers))  # type: ignore[union-attr, arg-type]


class PreferenceReward:
    """log sigmoid of a caption's appeal above that of the captions that people liked; texts: of sampled captions"""

    def __init__(self, preference: Preference, texts: Callable[[SampledCaptions], Sequence[str]]):
        self._preference, self._texts = preference, texts

    def __call__(self, sampled: SampledCaptions) -> Reward:
        above = [self._preference.appeal(text) - self._preference.liked for text in self._texts(sampled)]
        return sampled.reward(F.logsigmoid(torch.tensor(above)))


def learn(decisions: Sequence[Decision], *, seed: int = 0) -> Preference | None:
    """None: the decisions of some photos do not help to predict those of others."""
    x, alone, y = _examples(decisions)
    photos = [decision.photo for decision in decisions]
    names = sorted(set(photos))
    fold_of = dict(zip(names, np.random.default_rng(seed).permutation(len(names)) % _FOLDS, strict=True))
    folds = np.array([fold_of[photo] for photo in photos])
    chance = _left_out(x, alone, y, folds, math.inf)
    losses = [_left_out(x, alone, y, folds, penalty) for penalty in _PENALTIES]
    best = min(range(len(_PENALTIES)), key=lambda row: float(losses[row].sum()))
    of_photos = np.zeros(len(names))  # gains, summed by photo, for decisions about one photo are not independent
    np.add.at(of_photos, np.searchsorted(names, photos), chance - losses[best])
    error = float(of_photos.std(ddof=1)) / math.sqrt(len(names)) if len(names) > 1 else math.inf
    if float(of_photos.mean()) <= _SURE * error:
        return None
    weights = _fit(x, alone, y, _PENALTIES[best])
    words = _vocabulary(decisions)
    learned = Preference(dict(zip(words, weights[:-2].tolist(), strict=True)), float(weights[-2]), liked=0.0)
    liked = float(np.mean([learned.appeal(each.better) for each in decisions if each.better] or [0.0]))
    return replace(learned, liked=liked, predicted=float((losses[best] < math.log(2)).mean()))


def _vocabulary(decisions: Sequence[Decision]) -> list[str]:
    counts = Counter(
        word for each in decisions for text in (each.better, each.worse) for word in set(split_words(text))
    )
    return [word for word, count in counts.most_common(_WORDS) if count > 1]


def _examples(decisions: Sequence[Decision]) -> tuple[Tensor, Tensor, Tensor]:
    """(n, F) words and lengths, the better caption's less the worse one's; (n,) 1 where a caption stood alone; (n,) 1
    where a better one is named, 0 where one was rejected."""
    place = {word: number for number, word in enumerate(_vocabulary(decisions))}

    def features(text: str) -> NDArray[np.float64]:
        row, words = np.zeros(len(place) + 1), split_words(text)
        row[[place[word] for word in set(words) if word in place]] = 1
        row[-1] = len(words) / 10
        return row

    rows = []
    for each in decisions:
        rows.append(features(each.better) - features(each.worse) if each.better else features(each.worse))
    alone = torch.tensor([float(not (each.better and each.worse)) for each in decisions], dtype=torch.double)
    y = torch.tensor([float(bool(each.better)) for each in decisions], dtype=torch.double)
    return torch.from_numpy(np.stack(rows)), alone, y


def _left_out(x: Tensor, alone: Tensor, y: Tensor, folds: NDArray[Any], penalty: float) -> NDArray[np.float64]:
    """(n,) minus the log-probability of each decision, by a model of the photos of other folds."""
    losses = torch.zeros(len(y), dtype=torch.double)
    for fold in range(_FOLDS):
        out = torch.from_numpy(folds == fold)
        if out.any():
            weights = _fit(x[~out], alone[~out], y[~out], penalty)
            losses[out] = _loss(weights, x[out], alone[out], y[out])
    return losses.numpy()


def _loss(weights: Tensor, x: Tensor, alone: Tensor, y: Tensor) -> Tensor:
    """weights (F + 1,): the last is the tendency to approve"""
    return F.binary_cross_entropy_with_logits(x @ weights[:-1] + alone * weights[-1], y, reduction="none")


def _fit(x: Tensor, alone: Tensor, y: Tensor, penalty: float) -> Tensor:
    """The weights of the least penalised loss, which is convex; with an infinite penalty only the tendency."""
    weights = torch.zeros(x.shape[1] + 1, dtype=torch.double, requires_grad=True)
    if math.isinf(penalty):
        x, penalty = torch.zeros_like(x), 0.0
    search = torch.optim.LBFGS([weights], max_iter=200, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        ridge = penalty * (weights[:-1] ** 2).sum() / 2 + 1e-3 * weights[-1] ** 2
        loss = _loss(weights, x, alone, y).sum() + ridge
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    search.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach()
