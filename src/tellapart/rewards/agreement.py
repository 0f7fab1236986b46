"""Rewards for agreeing with the references: CIDEr-D, CIDEr, BLEU, ROUGE-L and METEOR of sampled captions, and the gap
in CIDEr-D to the references of look-alikes.

The same code as the metrics of these names, and but for METEOR without text in between.  Sampling on a GPU, the ids are
copied to the CPU (16 KB for 200 captions of 20 words) and the rewards back: the comparison takes a microsecond or two a
caption, which no chain of tensor operations over n-grams comes near.

"Strengthen" of the GLD paper, IDF with a logarithm of base 2, is CIDEr-D itself: another base multiplies all weights by
one number, and a cosine does not change with the length of its vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore import meteor
from capscore.ngrams import Frequencies, References, others
from capscore.overlap import bleu, cider, cider_d, rouge_l
from capscore.sentences import Grouped, Sentences
from capscore.tokenize import tokenize
from tellapart.metrics.retrieval import gap_to_mean
from tellapart.rewards import Reward, SampledCaptions


class Consensus:
    """The reward of captions that are sampled for photos of a fixed set, such as a training split.

    references   token ids of each photo's captions, without the end token
    end          the end token; what follows it in a sample is ignored
    measure      "CIDEr-D", "CIDEr", "BLEU-1" .. "BLEU-4" or "ROUGE-L"
    count_end    the end token counts as a word of captions and references: it keeps captions from breaking off
    frequencies  document frequencies for CIDEr; from these references if there are none

    It keeps no state between calls: threads may share it, and processes may pickle it.
    """

    def __init__(
        self,
        references: Sequence[Sequence[Sequence[int]]],
        *,
        end: int,
        measure: str = "CIDEr-D",
        count_end: bool = True,
        frequencies: Frequencies | None = None,
    ):
        if measure not in MEASURES:
            raise ValueError(f"measure must be one of {', '.join(MEASURES)}, not {measure!r}")
        tail = [end] if count_end else []
        self._grouped = Grouped.join([[[*caption, *tail] for caption in captions] for captions in references])
        self.references = References(self._grouped, frequencies)
        self.end, self.count_end, self.measure = end, count_end, measure

    @property
    def frequencies(self) -> Frequencies:
        return self.references.frequencies()

    def sentences(self, tokens: Tensor) -> Sentences:
        """Sampled ids (N, T) up to their end, as they are compared with the references."""
        return Sentences.rows(tokens.cpu().numpy(), self.end, keep_end=self.count_end)

    def scores(self, captions: Sentences, photos: Tensor, but: Tensor | None = None) -> NDArray[np.float64]:
        """(N,): what `__call__` gives, of captions that are prepared already."""
        rows, references, grouped = _numbers(photos), self.references, self._grouped
        if but is not None:
            left_out = _numbers(but)
            chosen, first = others(grouped.first, rows, left_out)
            grouped = Grouped(grouped.sentences[chosen], first)
            rows, references = np.arange(len(rows)), references.without(rows, left_out)
        return MEASURES[self.measure](captions, rows, references, grouped)

    def __call__(self, tokens: Tensor, photos: Tensor, but: Tensor | None = None) -> Tensor:
        """(N,) float32 on the device of `tokens`; 0 where there is no reference to compare with.

        tokens  (N, T)  sampled ids, up to their end or to -1
        photos  (N,)    which photo each is of
        but     (N,)    which reference of its photo each is, and is not compared with; -1 if none
        """
        scores = self.scores(self.sentences(tokens), photos, but)
        return torch.from_numpy(scores).to(tokens.device, torch.float32)


class MeteorConsensus:
    """METEOR as a reward.  It compares words and not ids, and takes some thirty times as long as CIDEr-D.

    references  captions of each photo, as people wrote them
    data        METEOR's synonyms and paraphrases: those of the installed pycocoevalcap unless others are given

    It keeps no state between calls: threads may share it, and processes may pickle it.
    """

    def __init__(self, references: Sequence[Sequence[str]], *, data: meteor.Meteor | None = None):
        self._words = tokenize([caption for captions in references for caption in captions])
        self._first = np.cumsum([0, *map(len, references)])
        self._meteor = data or meteor.load()

    def __call__(self, texts: Sequence[str], photos: Tensor, but: Tensor | None = None) -> Tensor:
        """As that of `Consensus`, of texts."""
        sampled = tokenize(texts)
        rows = _numbers(photos)
        chosen, first = others(self._first, rows, np.full_like(rows, -1) if but is None else _numbers(but))
        words = [self._words[sentence] for sentence in chosen.tolist()]
        compared_with = [words[begin:end] for begin, end in pairwise(first.tolist())]
        scores = meteor.value(self._meteor.statistics(sampled, compared_with))
        return torch.from_numpy(scores).float()


def _numbers(tensor: Tensor) -> NDArray[np.int64]:
    return tensor.cpu().numpy().astype(np.int64)


Score = Callable[[Sentences, NDArray[np.int64], References, Grouped], NDArray[np.float64]]


def _bleu(n: int) -> Score:
    def score(
        captions: Sentences, photos: NDArray[np.int64], references: References, grouped: Grouped
    ) -> NDArray[np.float64]:
        scores = bleu(captions, photos, references).per_photo()[:, n - 1]
        # what keeps its fractions from 0/0 is left of BLEU where there is no reference
        return np.where(np.diff(grouped.first)[photos] > 0, scores, 0.0)

    return score


MEASURES: dict[str, Score] = {
    "CIDEr-D": lambda captions, photos, references, _: cider_d(captions, photos, references),
    "CIDEr": lambda captions, photos, references, _: cider(captions, photos, references),
    "ROUGE-L": lambda captions, photos, _, grouped: rouge_l(captions, photos, grouped),
    **{f"BLEU-{n}": _bleu(n) for n in range(1, 5)},
}


@dataclass(frozen=True)
class Agreement:
    """A measure of word ids against the references, as a reward."""

    measure: Consensus

    def __call__(self, sampled: SampledCaptions) -> Reward:
        return Reward(self.measure(sampled.ids, sampled.photos, sampled.reference))


@dataclass(frozen=True)
class ReferenceGap:
    """CIDEr-D to the photo's references minus its mean to those of each look-alike.  It cannot pay for invented detail.

    look_alikes  (P, k) positions of each photo's look-alikes in the data; -1 where there are fewer than k

    A caption that is itself one of its photo's references is compared with the others of them.
    """

    consensus: Consensus
    look_alikes: Tensor

    def __call__(self, sampled: SampledCaptions) -> Reward:
        tokens, photos = sampled.ids.cpu(), sampled.photos.cpu()
        compared = torch.cat([photos[:, None], self.look_alikes.cpu()[photos]], 1)  # (N, 1 + k)
        exists = compared >= 0
        left_out = None
        if sampled.reference is not None:
            left_out = torch.full_like(compared, -1)
            left_out[:, 0] = sampled.reference.cpu()
            left_out = left_out[exists]
        scores = torch.zeros(compared.shape)
        rows = exists.nonzero()[:, 0]
        scores[exists] = self.consensus(tokens[rows], compared[exists], left_out)
        return Reward(gap_to_mean(scores[:, 0], scores[:, 1:], exists[:, 1:]).to(sampled.words.device))
