"""self-CIDEr: how different the captions of one photo are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.metrics.measures.measure import Measure, Score

if TYPE_CHECKING:
    from tellapart.metrics.scoring_inputs import ScoringInputs
    from tellapart.metrics.statistics import Statistics


def _compute(inputs: ScoringInputs) -> Statistics:
    from tellapart.metrics.diversity import self_cider

    return self_cider(inputs.all_captions_split, inputs.references.frequencies())


SELF_CIDER = Measure(
    (Score("self-CIDEr", "How different several captions of one photo are."),),
    _compute,
    needs=("references", "several captions"),
    signature=("captions", "df", "tok"),
)
