"""Is an adapted captioner kept?  Only if the judge finds more photos by its captions, and no guard objects.

A retriever that rewards captions is soon pleased by them.  The judge, which rewarded nothing, has to agree; guards see
to it that captions stay true and well built.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capscore.fluency import COCO_LIMIT, below, coco
from capscore.statistics import Difference, Statistics, mean_of
from capscore.tokenize import tokenize
from tellapart.evaluation.grid import Grid, Row
from tellapart.metrics.retrieval import POOL, Name
from tellapart.rewards.preference import Preference

LEEWAY = 0.005  # half a point: what shares of faulty captions may rise by, and ObjPrec fall
LENGTH = 1.2  # most that captions may grow or shrink, as a factor
MOST_KL = 0.5  # nats a word, between what the captioner says now and how likely that was before
PREFERENCE = "Preference"
FAULTS = {
    "Rep": "captions that repeat a word",
    "UnusualOrder": "captions with an unusual order of words",
    "Unidiomatic": "captions with a word that people would hardly use there",
}


@dataclass(frozen=True)
class Check:
    """One condition: its measure, whether it holds, and the figures in words."""

    name: str
    passed: bool
    sentence: str


def found_by(grid: Grid, retriever: str) -> str:
    """The measure of how many photos a retriever finds: among 100, or among all where there are fewer."""
    among = str(Name("P", POOL, retriever))
    return among if among in grid.rows[grid.against].signature else str(Name("R", 1, retriever))


def columns(grid: Grid) -> list[str]:
    """The columns of a table of before and after."""
    baseline = grid.scores[grid.against]
    objects = [name for name in baseline if name.startswith(("ObjPrec", "ObjRec"))]
    by_retrievers = [found_by(grid, retriever) for retriever in reversed(grid.retrievers)]  # the judge first
    preferred = [PREFERENCE] if PREFERENCE in baseline else []
    return [*by_retrievers, *preferred, *objects, "UniCap", *FAULTS, "BadEnd", "AvgLen"]


def checks(grid: Grid, after: str, *, judge: str, kl: float) -> list[Check]:
    """Everything that must hold.

    grid  the captioner before, `grid.against`, and after
    kl    the divergence from the captioner before, in nats a word
    """
    old, new = grid.scores[grid.against], grid.scores[after]
    difference = grid.differences()[after]
    finds, by_feedback = found_by(grid, judge), PREFERENCE in new
    # With feedback there is something else to gain: then the judge must only not be sure that fewer are found.
    checks = [
        Check(
            finds,
            difference[finds].high >= 0 if by_feedback else difference[finds].low > 0,
            f"the judge finds {_percent(new[finds])} of the photos, {_percent(old[finds])} before "
            f"({interval(difference[finds])})",
        )
    ]
    if by_feedback:
        figures = (
            f"{_percent(new[PREFERENCE])}, {_percent(old[PREFERENCE])} before ({interval(difference[PREFERENCE])})"
        )
        gains = difference[PREFERENCE].low > 0
        checks.append(Check(PREFERENCE, gains, f"captions that people would prefer: {figures}"))
    ratio = new["AvgLen"] / max(old["AvgLen"], 1e-9)
    lengths = f"captions have {new['AvgLen']:.1f} words, {old['AvgLen']:.1f} before"
    checks.append(Check("AvgLen", 1 / LENGTH <= ratio <= LENGTH, f"{lengths} (a factor of {LENGTH:g} is allowed)"))
    for name, what in FAULTS.items():
        rise = new[name] - old[name]
        figures = f"{what}: {_percent(new[name])}, {_percent(old[name])} before ({100 * rise:+.1f} points"
        checks.append(Check(name, rise <= LEEWAY + 1e-9, f"{figures}; +{100 * LEEWAY:g} is allowed)"))
    for name in (name for name in new if name.startswith("ObjPrec")):
        change = new[name] - old[name]
        figures = f"named objects that are seen: {_percent(new[name])}, {_percent(old[name])} before"
        allowed = f"({100 * change:+.1f} points; -{100 * LEEWAY:g} is allowed)"
        checks.append(Check(name, change >= -LEEWAY - 1e-9, f"{figures} {allowed}"))
    checks.append(Check("KL", kl <= MOST_KL, f"KL from before: {kl:.2f} nats a word ({MOST_KL:g} is allowed)"))
    return checks


def interval(difference: Difference) -> str:
    low, high = 100 * difference.low, 100 * difference.high
    return f"{100 * difference.value:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}"


def add_unidiomatic(row: Row, measured: list[int], photos: int) -> None:
    """Unidiomatic captions of photos without references, by the limit of COCO's references."""
    words = tokenize([row.captions.of_photo[photo][0] for photo in measured])
    _add(row, below(words, coco()), measured, photos, f"below:{COCO_LIMIT:g}|lm:coco-odd")


def add_preference(row: Row, measured: list[int], photos: int, preference: Preference) -> None:
    """The chance that people prefer each caption to those that they liked, by their feedback."""
    chances = [preference.chance(row.captions.of_photo[photo][0]) for photo in measured]
    _add(row, mean_of(PREFERENCE, chances), measured, photos, f"words:{len(preference.weights)}")


def _add(row: Row, statistics: Statistics, measured: list[int], photos: int, signature: str) -> None:
    rows = np.zeros((photos, statistics.rows.shape[1]))
    rows[measured] = statistics.rows
    row.add(Statistics(statistics.names, rows, statistics.value), signature)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
