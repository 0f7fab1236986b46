"""How often a caption says the same again: what re-ranking and rewards hold against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tellapart.metrics.stop_words import content


def repeated_words(words: Sequence[str]) -> int:
    """Content words that were said before: "a red bus and a red red car" has two."""
    return _beyond_the_first(content(words))


def repeated_bigrams(words: Sequence[str]) -> int:
    """Pairs of neighbouring words, stop words among them, that were said before: "on the bed on the floor" has one."""
    return _beyond_the_first(pairwise(words))


def _beyond_the_first(items: Iterable[object]) -> int:
    times = Counter(items)
    return times.total() - len(times)
