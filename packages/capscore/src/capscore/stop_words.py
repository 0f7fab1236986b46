"""Words that say nothing of a photo by themselves.  Every other word is a content word.

Numbers, colours and places ("two", "red", "left") are content words.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

STOP_WORDS = frozenset(
    """
    a an the this that these those such some any no every each either neither both all another other others
    i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself
    we us our ours ourselves they them their theirs themselves who whom whose which what one ones
    someone somebody something anyone anybody anything everyone everybody everything nobody nothing there here
    and or but nor so yet if then than as because while when where whether though although until since
    of in on at by for from to into onto with without within about above across after against along among around
    before behind below beneath beside besides between beyond down during inside near off out outside over past through
    throughout toward towards under underneath up upon via
    am is are was were be been being do does did doing done have has had having can could will would shall should may
    might must 's 're 've 'll 'd 'm n't not
    very too also just only even still more most much many few several own same again
    how why
    """.split()  # noqa: SIM905 - a list of two hundred quoted words cannot be read
)

# People end fewer than one caption in five thousand with each of these; with "on", "by" or "her" they do end some.
NEVER_LAST = frozenset(
    """
    a an the and or as of with at for from into onto to his its their my our your is are while which very
    """.split()  # noqa: SIM905
)


def breaks_off(words: Sequence[str]) -> bool:
    """Is its last word one that no sentence ends with, as in "a dog on a"?"""
    return bool(words) and words[-1] in NEVER_LAST


def content(words: Iterable[str]) -> list[str]:
    return [word for word in words if word not in STOP_WORDS]


def flaws(words: Sequence[str]) -> int:
    """What re-ranking counts against a caption: repeated content words, and breaking off.

    >>> flaws("a red bus and a red red car on a".split())
    3
    """
    times = Counter(content(words))
    return times.total() - len(times) + breaks_off(words)
