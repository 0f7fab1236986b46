"""Words of captions: those that say nothing of a photo by themselves, and measures of words alone.

A word that is no stop word is a content word.  Numbers, colours and places ("two", "red", "left") are content words.
The measures take lists of the words of one caption for each photo, some also those of its references.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from operator import eq
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore import files
from capscore.measures import RARE_ORDER, RARE_WORD
from capscore.objects import mentions
from capscore.statistics import Statistics, mean_of, quotients, ratio_of, share_of_words, shares

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

# WordNet's rules for the base form of a noun, verb or adjective that it does not list as irregular; the first one that
# gives a word it knows is taken.
ENDINGS = (
    ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y"),
    ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", ""), ("er", ""), ("est", ""), ("er", "e"),
    ("est", "e"),
)  # fmt: skip

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
    """Flaws that re-ranking counts against a caption: repeated content words, and breaking off.

    >>> flaws("a red bus and a red red car on a".split())
    3
    """
    times = Counter(content(words))
    return times.total() - len(times) + breaks_off(words)


Words = Sequence[str]
Longs = NDArray[np.int64]


def average_length(captions: Sequence[Words]) -> Statistics:
    return mean_of("AvgLen", [len(words) for words in captions])


def unique_captions(captions: Sequence[Words]) -> Statistics:
    """A caption that is given to four photos adds a quarter for each of them."""
    times = Counter(map(tuple, captions))
    return mean_of("UniCap", [1 / times[tuple(words)] for words in captions])


def vocabulary(captions: Sequence[Words]) -> Statistics:
    return Statistics(("Vocabulary",), shares(captions)[:, None], np.asarray)  # which can be pickled


def distinct(captions: Sequence[Words], n: int) -> Statistics:
    """distinct-n (Li et al., 2016): different n-grams, as a share of all n-grams of all captions."""
    ngrams = [[tuple(words[i : i + n]) for i in range(len(words) - n + 1)] for words in captions]
    return ratio_of(f"distinct-{n}", shares(ngrams), [len(of_caption) for of_caption in ngrams])


distinct_1, distinct_2 = partial(distinct, n=1), partial(distinct, n=2)


def rare_in_coco(captions: Sequence[Words]) -> Statistics:
    from capscore import ngrams  # it loads numba, which those who only ask for stop words do not need

    coco = ngrams.coco()
    return rare_words(captions, coco.of_words(), coco.ngrams.documents)


def rare_words(captions: Sequence[Words], frequencies: Mapping[str, int], documents: int) -> Statistics:
    """Words that are in the references of few photos, as a share of all words of all captions."""
    return share_of_words("RareWords", captions, lambda _, word: frequencies.get(word, 0) < RARE_WORD * documents)


def novel(captions: Sequence[Words], training: Container[Words]) -> Statistics:
    """Captions that equal no caption of the training data, word for word."""
    return mean_of("Novel", [words not in training for words in captions])


def repetition(captions: Sequence[Words]) -> Statistics:
    """Captions in which a content word occurs twice."""
    return mean_of("Rep", [max(Counter(content(words)).values(), default=0) > 1 for words in captions])


def bad_end(captions: Sequence[Words]) -> Statistics:
    """Captions whose last word cannot be the last of a sentence, such as "a dog on a"."""
    return mean_of("BadEnd", [breaks_off(words) for words in captions])


def stutter(captions: Sequence[Words]) -> Statistics:
    """Captions in which a word follows itself, such as "a dog is is on on a bed"."""
    return mean_of("Stutter", [any(map(eq, words, words[1:])) for words in captions])


def precision(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> Statistics:
    """Content words that the photo's references have too, as a share of all content words of all captions."""
    of_people = [set(chain.from_iterable(texts)) for texts in references]
    return share_of_words("Prec", [content(words) for words in captions], lambda photo, word: word in of_people[photo])


def distinctive_words(
    captions: Sequence[Words], references: Sequence[Sequence[Words]], look_alikes: Longs
) -> Statistics:
    """Words that no look-alike's references have, as a share of all words of all captions."""
    of_others = [
        {word for other in others for text in references[other] for word in text} for others in look_alikes.tolist()
    ]
    return share_of_words("DisWordRate", captions, lambda photo, word: word not in of_others[photo])


def chair(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> Statistics:
    """CHAIR (Rohrbach et al., 2018): objects that a caption names and no reference of its photo does.

    The paper takes what COCO's annotators outlined as being in the photo, too; here the references alone are asked, so
    figures are higher than published ones.  Of words with several meanings one that fits is enough.
    """
    rows = []
    for words, texts in zip(captions, references, strict=True):
        labels = {label for text in texts for mention in mentions(text) for label in mention.classes}
        named = [mention for mention in mentions(words) if mention.sure]
        invented = sum(labels.isdisjoint(mention.classes) for mention in named)
        rows.append((invented, len(named), invented > 0, 1))
    return Statistics(("CHAIRi", "CHAIRs"), np.array(rows, np.float64).reshape(-1, 4), quotients)


# UnusualOrder: captions with an order of function words that people hardly ever use ("a toilet in it on it").
#
# Captions that are rewarded for being unlike others are soon unlike them in grammar alone.  Measures of the field
# compare content, and do not see it.  Here all content words are one, so that what is left is how a caption is built.
# A word is *unusual* where people hardly ever go on so after the three words before it.

_START, END, CONTENT = range(3)  # what stands before a caption's first word, after its last, and for content words
_ROLES = ["<", ">", "*", *sorted(STOP_WORDS)]
_ROLE_OF = {name: number for number, name in enumerate(_ROLES)}
_PRECEDING = 3  # words


def roles(words: Iterable[str]) -> list[int]:
    """The number of each word: one for each stop word, and CONTENT for all others."""
    return [_ROLE_OF[word] if word in STOP_WORDS else CONTENT for word in words]


def windows(captions: Iterable[Sequence[int]]) -> tuple[Longs, Longs]:
    """(M, 4) each number, none of which is 0, with the three before it (0: none); and (M,) the caption it is in."""
    rows = [[_START] * _PRECEDING + [*caption] for caption in captions]
    flat = np.fromiter(chain.from_iterable(rows), np.int64)
    owner = np.repeat(np.arange(len(rows)), list(map(len, rows)))
    if len(flat) <= _PRECEDING:
        return np.zeros((0, _PRECEDING + 1), np.int64), owner[:0]
    every = np.lib.stride_tricks.sliding_window_view(flat, _PRECEDING + 1)
    is_word = every[:, -1] != _START
    return every[is_word], owner[_PRECEDING:][is_word]


def packed(numbers: Longs, size: int) -> Longs:
    """(M, n) numbers below `size` as one number a row, whose order is theirs."""
    keys = np.zeros(len(numbers), np.int64)
    for column in numbers.T:
        keys = keys * size + column
    return keys


def unpacked(keys: Longs, size: int) -> Longs:
    """(M,) numbers that `packed` made of windows -> (M, 4)."""
    return keys[:, None] // size ** np.arange(_PRECEDING, -1, -1) % size


class WordOrder:
    """Words with which people go on after three words.

    usual  (n,) sorted: runs of four roles as numbers, those that are no rarer than one in five hundred
    """

    def __init__(self, usual: Longs):
        self._usual = usual

    @classmethod
    def of(cls, captions: Iterable[Sequence[int]]) -> WordOrder:
        """captions  the roles of each one's words; END after the last, but not if it was cut"""
        runs, times = np.unique(packed(windows(captions)[0], len(_ROLES)), return_counts=True)
        context = runs // len(_ROLES)
        _, of_context = np.unique(context, return_inverse=True)
        return cls(runs[times >= RARE_ORDER * np.bincount(of_context, times)[of_context]])

    def unusual(self, captions: Sequence[Sequence[int]]) -> Longs:
        """(N,) how many words of each are unusual.  A word right after an unusual one is so for that alone: no count.

        captions  as in `of`
        """
        runs, owner = windows(captions)
        unusual = ~np.isin(packed(runs, len(_ROLES)), self._usual)
        unusual[1:] &= ~(unusual[:-1] & (owner[1:] == owner[:-1]))
        return np.bincount(owner[unusual], minlength=len(captions)).astype(np.int64)

    def save(self, path: Path) -> None:
        """A line for each run, gzipped, so that it does not depend on how roles are numbered."""
        lines = [" ".join(_ROLES[role] for role in run) for run in unpacked(self._usual, len(_ROLES)).tolist()]
        files.replace(path, gzip.compress("\n".join(lines).encode(), mtime=0))

    @classmethod
    def load(cls, path: Path) -> WordOrder:
        lines = gzip.decompress(path.read_bytes()).decode().split("\n")
        runs = np.array([[_ROLE_OF[name] for name in line.split()] for line in lines], np.int64)
        return cls(np.sort(packed(runs, len(_ROLES))))


@cache
def coco_order() -> WordOrder:
    """As in the captions of 17,721 COCO photos."""
    return WordOrder.load(Path(__file__).parent / "data" / "coco_unusual_order.txt.gz")


def unusual_order(captions: Sequence[Words], people: WordOrder | None = None) -> Statistics:
    """Captions with an unusual word, of one for each photo.

    people  by default those who described COCO photos
    """
    unusual = (people or coco_order()).unusual([[*roles(words), END] for words in captions])
    return mean_of("UnusualOrder", unusual > 0)
