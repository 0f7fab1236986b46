"""UniCap: how many captions are different."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, mean_of


def unique_captions(captions: Sequence[Sequence[str]]) -> Statistics:
    """Of the words of one caption for each photo.  One that is given to four photos adds a quarter for each of them."""
    times = Counter(map(tuple, captions))
    return mean_of("UniCap", [1 / times[tuple(words)] for words in captions])


UNIQUE_CAPTIONS = Measure(
    (Score("UniCap", "Different captions, as a share of all captions."),),
    lambda inputs: unique_captions(inputs.words),
    needs=(),
    signature=("tok",),
)
