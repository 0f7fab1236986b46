"""SGF: our own scene-graph F-score, which needs no Java."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.measures.spice import FACTS

if TYPE_CHECKING:
    from tellapart.metrics.scoring_inputs import ScoringInputs
    from tellapart.metrics.statistics import Statistics


def _compute(inputs: ScoringInputs) -> Statistics:
    from tellapart.metrics.scene_graph import scorer
    from tellapart.metrics.statistics import Statistics

    rows = scorer.statistics(inputs.words, inputs.reference_words)
    return Statistics(SGF.names, rows, scorer.value)


SGF = Measure(
    (
        Score("SGF", "Objects, attributes and relations in common with people's captions, by our own parser."),
        *(Score(f"SGF-{fact}", f"SGF, of {fact}s alone.") for fact in FACTS),
    ),
    _compute,
)
