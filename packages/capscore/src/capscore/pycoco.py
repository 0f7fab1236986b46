"""Drop-in classes for repositories that were written with pycocoevalcap: the same calls, order and results, no Java.

    from capscore.pycoco import Bleu, Cider, Meteor, PTBTokenizer, Rouge

    tokenizer = PTBTokenizer()
    gts, res = tokenizer.tokenize(gts), tokenizer.tokenize(res)  # {id: [{"caption": text}]} -> {id: [tokenised text]}
    score, scores = Cider().compute_score(gts, res)

As there, references come first, `res` has one caption of each id, and captions are tokenised before.  `Cider` gives
what pycocoevalcap calls CIDEr, which is CIDEr-D.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capscore.errors import UserError
from capscore.measures import MEASURES
from capscore.scoring import ScoringInputs
from capscore.statistics import Statistics
from capscore.tokenize import tokenize_file

Captions = Mapping[Any, Sequence[str]]  # id -> tokenised captions


class PTBTokenizer:
    """Tokens as Stanford's PTBTokenizer splits them, lower case, without punctuation."""

    def tokenize(self, captions: Mapping[Any, Sequence[Mapping[str, str]]]) -> dict[Any, list[str]]:
        rows = [(id, record["caption"]) for id, records in captions.items() for record in records]
        tokenised: dict[Any, list[str]] = {id: [] for id in captions}
        for (id, _), words in zip(rows, tokenize_file([text for _, text in rows]), strict=True):
            tokenised[id].append(" ".join(words))
        return tokenised


class Bleu:
    """BLEU-1 to BLEU-n."""

    def __init__(self, n: int = 4):
        self._n = n

    def compute_score(self, gts: Captions, res: Captions, verbose: int = 1) -> tuple[list[float], list[list[float]]]:
        """The corpus's scores, and of each the photos' own."""
        statistics = _statistics("BLEU", gts, res)
        corpus, photos = list(statistics.corpus().values()), statistics.per_photo().T.tolist()
        return corpus[: self._n], photos[: self._n]

    def method(self) -> str:
        return "Bleu"


class _Single:
    """One score of the corpus, and those of the photos."""

    measure = ""

    def compute_score(self, gts: Captions, res: Captions) -> tuple[float, NDArray[np.float64]]:
        statistics = _statistics(self.measure, gts, res)
        (score,) = statistics.corpus().values()
        return score, statistics.per_photo()[:, 0]

    def method(self) -> str:
        return type(self).__name__


class Cider(_Single):
    """CIDEr-D; document frequencies are those of the references."""

    measure = "CIDEr-D"


class Rouge(_Single):
    measure = "ROUGE-L"


class Meteor(_Single):
    """Needs METEOR's data: pip install 'capscore[meteor]'."""

    measure = "METEOR"

    def __init__(self) -> None:
        if (why := MEASURES["METEOR"].missing()) is not None:
            raise UserError(why)


def _statistics(measure: str, gts: Captions, res: Captions) -> Statistics:
    if gts.keys() != res.keys():
        raise UserError("gts and res must have the same ids: references come first, then one caption of each photo.")
    if several := [id for id, captions in res.items() if len(captions) != 1]:
        swapped = "; are gts and res swapped?" if all(len(captions) == 1 for captions in gts.values()) else ""
        raise UserError(f"res has {len(res[several[0]])} captions of {several[0]!r}, not one{swapped}")
    captions, references = [_split(res[id]) for id in gts], [_split(gts[id]) for id in gts]
    return MEASURES[measure].compute(ScoringInputs.of_tokens(captions, references))


def _split(captions: Iterable[str]) -> list[list[str]]:
    return [[token for token in caption.split(" ") if token] for caption in captions]
