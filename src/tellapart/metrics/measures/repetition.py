"""Rep: captions in which a content word occurs twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, mean_of
from tellapart.metrics.stop_words import content


def repetition(captions: Sequence[Sequence[str]]) -> Statistics:
    return mean_of("Rep", [max(Counter(content(words)).values(), default=0) > 1 for words in captions])


REPETITION = Measure(
    (Score("Rep", "Captions that use a content word twice, as a share of all.", False),),
    lambda inputs: repetition(inputs.words),
    needs=(),
    signature=("tok",),
)
