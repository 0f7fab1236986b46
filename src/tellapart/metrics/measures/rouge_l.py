"""ROUGE-L against the references."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.metrics.measures.measure import Measure, Score

if TYPE_CHECKING:
    from tellapart.metrics.scoring_inputs import ScoringInputs
    from tellapart.metrics.statistics import Statistics


def _compute(inputs: ScoringInputs) -> Statistics:
    from tellapart.metrics.rouge import rouge_l
    from tellapart.metrics.statistics import mean_of

    return mean_of("ROUGE-L", rouge_l(inputs.caption_ids, inputs.photos, inputs.reference_ids))


ROUGE_L = Measure(
    (Score("ROUGE-L", "Agreement with people's captions by the longest sequence of words in common."),), _compute
)
