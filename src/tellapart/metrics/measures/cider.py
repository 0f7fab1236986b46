"""CIDEr-D and CIDEr against the references."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tellapart.metrics.measures.measure import Measure, Score

if TYPE_CHECKING:
    from tellapart.metrics.scoring_inputs import ScoringInputs
    from tellapart.metrics.statistics import Statistics


def _cider_d(inputs: ScoringInputs) -> Statistics:
    from tellapart.metrics.cider import cider_d
    from tellapart.metrics.statistics import mean_of

    return mean_of("CIDEr-D", cider_d(inputs.captions_split, inputs.photos, inputs.references))


def _cider(inputs: ScoringInputs) -> Statistics:
    from tellapart.metrics.cider import cider
    from tellapart.metrics.statistics import mean_of

    return mean_of("CIDEr", cider(inputs.captions_split, inputs.photos, inputs.references))


CIDER_D = Measure(
    (
        Score(
            "CIDEr-D",
            "Agreement with people's captions, in which rare phrases count more. "
            "Papers and leaderboards call it CIDEr.",
        ),
    ),
    _cider_d,
    signature=("df", "tok", "refs"),
)
CIDER = Measure(
    (
        Score(
            "CIDEr", "The plain form of CIDEr, unclipped and without length penalty. What papers call CIDEr is CIDEr-D."
        ),
    ),
    _cider,
    signature=("df", "tok", "refs"),
)
