"""RareWords: words that are in the references of few COCO photos, as a share of all words of all captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, share_of_words

if TYPE_CHECKING:
    from tellapart.metrics.scoring_inputs import ScoringInputs

RARE = 1e-3  # a word is rare if fewer than one photo in a thousand has it in its references


def rare_words(captions: Sequence[Sequence[str]], frequencies: Mapping[str, int], documents: int) -> Statistics:
    return share_of_words("RareWords", captions, lambda _, word: frequencies.get(word, 0) < RARE * documents)


def _compute(inputs: ScoringInputs) -> Statistics:
    from tellapart.metrics import frequencies

    coco = frequencies.coco()
    return rare_words(inputs.words, coco.of_words(), coco.ngrams.documents)


RARE_WORDS = Measure(
    (Score("RareWords", "Words that few COCO photos are described with, as a share of all words."),),
    _compute,
    needs=(),
    signature=(f"rare:coco<{RARE:g}", "tok"),
)
