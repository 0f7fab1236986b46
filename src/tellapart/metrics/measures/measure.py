"""What a measure is: one object that holds all that is known of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tellapart.metrics.scoring_inputs import ScoringInputs
    from tellapart.metrics.statistics import Statistics

Need = Literal["references", "several captions", "training captions", "Java"]


@dataclass(frozen=True)
class Score:
    """One figure.

    name              as tables and files have it; of a retrieval measure, the kind of `retrieval.Name`
    description       a sentence for people.  Of a retrieval measure: {by} is the retriever, {place} "first" or "among
                      the first 5", {k} the size of a pool or group
    higher_is_better  None where neither is
    percent           tables for people show it times 100
    digits            after the point in such tables
    """

    name: str
    description: str
    higher_is_better: bool | None = True
    percent: bool = True
    digits: int = 1

    def shown(self, value: float) -> str:
        """A figure as people read it."""
        return f"{100 * value if self.percent else value:.{self.digits}f}"

    @property
    def direction(self) -> str:
        """For people; nothing where neither way is better."""
        return {True: "higher is better", False: "lower is better", None: ""}[self.higher_is_better]


def _nothing() -> str | None:
    return None


@dataclass(frozen=True)
class Measure:
    """scores     the figures that it gives, in the order of its statistics
    compute    from captions, and what they are compared with, to statistics
    needs      what must be given beside one caption of each photo
    signature  what its figures depend on beside the captions: settings of a run (the keys of `scoring.settings`), or
               "key:value" where it is always the same
    missing    what would have to be installed for it to run, in a sentence; nothing if all is there

    >>> from tellapart.metrics.statistics import mean_of
    >>> questions = Measure(
    ...     (Score("Questions", "Captions that end with a question mark, as a share of all.", False),),
    ...     lambda inputs: mean_of("Questions", [text.endswith("?") for text in inputs.texts]),
    ...     needs=(),
    ...     signature=(),
    ... )
    >>> questions.names
    ('Questions',)
    """

    scores: tuple[Score, ...]
    compute: Callable[[ScoringInputs], Statistics]
    needs: tuple[Need, ...] = ("references",)
    signature: tuple[str, ...] = ("tok", "refs")
    missing: Callable[[], str | None] = _nothing

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(score.name for score in self.scores)
