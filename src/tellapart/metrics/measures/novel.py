"""Novel: captions that equal no caption of the training data, word for word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, mean_of

if TYPE_CHECKING:
    from tellapart.metrics.scoring_inputs import ScoringInputs


def _compute(inputs: ScoringInputs) -> Statistics:
    known = inputs.training
    assert known is not None  # `needs` says so
    return mean_of("Novel", [words not in known for words in inputs.words])


NOVEL = Measure(
    (Score("Novel", "Captions that equal no training caption, as a share of all (with --training)."),),
    _compute,
    needs=("training captions",),
    signature=("training", "tok"),
)
