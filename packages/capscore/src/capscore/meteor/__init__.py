"""METEOR 1.5 without Java: captions to statistics that add up over photos, and statistics to scores."""

from __future__ import annotations

from collections.abc import Sequence

from capscore.meteor.index import available
from capscore.meteor.meteor import Meteor, load, value
from capscore.statistics import Floats, Statistics

__all__ = ["Meteor", "available", "load", "statistics", "value"]


def statistics(captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> Statistics:
    """Of the words of one caption for each photo, and of its references."""
    return Statistics(("METEOR",), load().statistics(captions, references), _value)


def _value(sums: Floats) -> Floats:
    return value(sums)[..., None]
