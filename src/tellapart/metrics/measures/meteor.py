"""METEOR 1.5 against the references."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.metrics.measures.measure import Measure, Score

if TYPE_CHECKING:
    from tellapart.metrics.scoring_inputs import ScoringInputs
    from tellapart.metrics.statistics import Floats, Statistics


def _missing() -> str | None:
    from tellapart.metrics import meteor

    return meteor.available()


def _compute(inputs: ScoringInputs) -> Statistics:
    from tellapart.metrics import meteor
    from tellapart.metrics.statistics import Statistics

    rows = meteor.load().statistics(inputs.words, inputs.reference_words)
    return Statistics(METEOR.names, rows, _value)


def _value(sums: Floats) -> Floats:
    from tellapart.metrics import meteor

    return meteor.value(sums)[..., None]


METEOR = Measure(
    (Score("METEOR", "Agreement with people's captions; stems, synonyms and paraphrases count too."),),
    _compute,
    signature=("meteor:1.5", "tok", "refs"),
    missing=_missing,
)
