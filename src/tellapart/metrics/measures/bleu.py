"""BLEU-1 to BLEU-4 against the references."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.metrics.measures.measure import Measure, Score

if TYPE_CHECKING:
    from tellapart.metrics.scoring_inputs import ScoringInputs
    from tellapart.metrics.statistics import Statistics


def ngrams(n: int) -> str:
    """What BLEU-n counts, in words."""
    return "Words" if n == 1 else f"Words and runs of up to {n} words"


def _compute(inputs: ScoringInputs) -> Statistics:
    from tellapart.metrics.bleu import bleu

    return bleu(inputs.captions_split, inputs.photos, inputs.references)


BLEU = Measure(
    tuple(Score(f"BLEU-{n}", f"{ngrams(n)} that people's captions of the photo have too.") for n in range(1, 5)),
    _compute,
)
