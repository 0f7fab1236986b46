"""mBLEU: BLEU of each caption of a photo against its other captions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.metrics.measures.bleu import ngrams
from tellapart.metrics.measures.measure import Measure, Score

if TYPE_CHECKING:
    from tellapart.metrics.scoring_inputs import ScoringInputs
    from tellapart.metrics.statistics import Statistics


def _compute(inputs: ScoringInputs) -> Statistics:
    from tellapart.metrics.diversity import mutual_bleu

    return mutual_bleu(inputs.all_captions_split)


MUTUAL_BLEU = Measure(
    tuple(
        Score(f"mBLEU-{n}", f"{ngrams(n)} that several captions of one photo have in common.", False)
        for n in range(1, 5)
    ),
    _compute,
    needs=("several captions",),
    signature=("captions", "tok"),
)
