"""Which way each figure gets better: the one place that everybody who compares figures asks."""

from __future__ import annotations

import re

from tellapart.metrics import retrieval, scoring
from tellapart.metrics.statistics import Direction

# What validations report beside measures of text and of retrieval by a named retriever
_OF_VALIDATIONS: dict[str, Direction] = {
    "loss": "lower",
    "accuracy": "higher",
    "unique": "higher",
    "length": "neither",
    "recall": "higher",
}
_RECALL = re.compile(r"R@[1-9]\d*")  # of a retriever in training, which needs no name


def direction(name: str) -> Direction | None:
    """Of a validation metric, a score, or a measure of retrieval; none for a name that is none of these.

    >>> direction("Rep"), direction("R@1[judge]"), direction("length")
    ('lower', 'higher', 'neither')
    """
    if name in _OF_VALIDATIONS:
        return _OF_VALIDATIONS[name]
    if (measure := scoring.measure_of(name)) is not None:
        return measure.better
    return "higher" if _RECALL.fullmatch(name) or retrieval.parse(name) else None
