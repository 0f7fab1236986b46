"""Rewards for saying what people say: CIDEr-D, CIDEr, BLEU and ROUGE-L of sampled token ids.

The same code as the metrics of these names, without text in between.  Sampling on a GPU, the ids are copied to the CPU
(16 KB for 200 captions of 20 words) and the rewards back: the comparison takes a microsecond or two a caption, which no
chain of tensor operations over n-grams comes near.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tellapart.metrics.bleu import bleu
from tellapart.metrics.cider import cider, cider_d
from tellapart.metrics.ngrams import Frequencies, References
from tellapart.metrics.rouge import rouge_l
from tellapart.metrics.sentences import Grouped, Sentences


class Consensus:
    """The reward of captions that are sampled for photos of a fixed set, such as a training split.

    references   token ids of each photo's captions, without the end token
    end          the end token; what follows it in a sample is not looked at
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
        self._references = References(self._grouped, frequencies)
        self._end, self._count_end, self._measure = end, count_end, measure

    @property
    def frequencies(self) -> Frequencies:
        return self._references.frequencies()

    def __call__(self, tokens: Tensor, photos: Tensor) -> Tensor:
        """tokens (N, T) sampled ids, photos (N,) which photo each is of → (N,) float32 on the device of `tokens`."""
        captions = Sentences.rows(tokens.cpu().numpy(), self._end, keep_end=self._count_end)
        of = photos.cpu().numpy().astype(np.int64)
        scores = MEASURES[self._measure](captions, of, self._references, self._grouped)
        return torch.from_numpy(scores).to(tokens.device, torch.float32)


Score = Callable[[Sentences, NDArray[np.int64], References, Grouped], NDArray[np.float64]]


def _bleu(n: int) -> Score:
    return lambda captions, photos, references, _: bleu(captions, photos, references).per_photo()[:, n - 1]


MEASURES: dict[str, Score] = {
    "CIDEr-D": lambda captions, photos, references, _: cider_d(captions, photos, references),
    "CIDEr": lambda captions, photos, references, _: cider(captions, photos, references),
    "ROUGE-L": lambda captions, photos, _, grouped: rouge_l(captions, photos, grouped),
    **{f"BLEU-{n}": _bleu(n) for n in range(1, 5)},
}
