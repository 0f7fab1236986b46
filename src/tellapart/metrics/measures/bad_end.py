"""BadEnd: captions whose last word cannot be the last of a sentence, such as "a dog on a"."""

from __future__ import annotations

from collections.abc import Sequence

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, mean_of
from tellapart.metrics.stop_words import breaks_off


def bad_end(captions: Sequence[Sequence[str]]) -> Statistics:
    return mean_of("BadEnd", [breaks_off(words) for words in captions])


BAD_END = Measure(
    (Score("BadEnd", 'Captions that break off ("a dog on a"), as a share of all.', False),),
    lambda inputs: bad_end(inputs.words),
    needs=(),
    signature=("tok",),
)
