"""SPICE by the original program, which runs on Java."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.metrics.measures.measure import Measure, Score

if TYPE_CHECKING:
    from tellapart.metrics.scoring_inputs import ScoringInputs
    from tellapart.metrics.statistics import Statistics

FACTS = ("object", "relation", "attribute", "colour", "count", "size")  # kinds that have a score of their own


def _missing() -> str | None:
    from tellapart.metrics import spice

    return spice.available()


def _compute(inputs: ScoringInputs) -> Statistics:
    from tellapart.metrics import spice
    from tellapart.metrics.statistics import Statistics

    return Statistics(SPICE.names, spice.spice(inputs.words, inputs.reference_words), spice.value)


SPICE = Measure(
    (
        Score("SPICE", "Objects, attributes and relations in common with people's captions (runs Java)."),
        *(Score(f"SPICE-{fact}", f"SPICE, of {fact}s alone.") for fact in FACTS),
    ),
    _compute,
    needs=("references", "Java"),
    signature=("spice:1.0", "tok", "refs"),
    missing=_missing,
)
