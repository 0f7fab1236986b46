"""What re-ranking counts against a caption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tellapart.metrics.stop_words import breaks_off, content


def flaws(words: Sequence[str]) -> int:
    """Repeated content words, and breaking off: "a red bus and a red red car on a" has three."""
    times = Counter(content(words))
    return times.total() - len(times) + breaks_off(words)
