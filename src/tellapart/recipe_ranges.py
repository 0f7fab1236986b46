"""Ranges of the numbers of a recipe, as types of its fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Range:
    """The least and the largest value of a field; `recipe_values.check_ranges` checks them."""

    least: float
    most: float


Share = Annotated[float, Range(0, 1)]
Size = Annotated[float, Range(0, 10**6)]
Weight = Annotated[float, Range(-(10**6), 10**6)]
Count = Annotated[int, Range(1, 10**9)]  # photos, steps, epochs
CountOrNone = Annotated[int, Range(0, 10**9)]
Few = Annotated[int, Range(1, 10_000)]  # captions of a photo, words of a caption
FewOrNone = Annotated[int, Range(0, 10_000)]
