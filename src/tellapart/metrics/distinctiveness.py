"""How much captions say that others do not, and how much of it is so: measures of text alone.

A set's size (different captions, different words) is written as a sum over photos, so that these measures can be
resampled like all others: a caption that is given to four photos adds a quarter for each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import eq

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics.cider import cider_d
from tellapart.metrics.ngrams import References
from tellapart.metrics.sentences import Sentences
from tellapart.metrics.statistics import Statistics, mean_of, ratio_of
from tellapart.metrics.stop_words import breaks_off, content
from tellapart.metrics.usage import END, Usage, roles

Captions = Sequence[Sequence[str]]  # the words of one caption for each photo
Told = Sequence[Sequence[Sequence[str]]]  # the words of each photo's references

RARE = 1e-3  # a word is rare if fewer than one photo in a thousand has it in its references


def unique_captions(captions: Captions) -> Statistics:
    """UniCap: different captions, as a share of all."""
    times = Counter(map(tuple, captions))
    return mean_of("UniCap", np.array([1 / times[tuple(words)] for words in captions]))


def average_length(captions: Captions) -> Statistics:
    """AvgLen: words in a caption."""
    return mean_of("AvgLen", np.array([len(words) for words in captions], float))


def vocabulary(captions: Captions) -> Statistics:
    """Vocabulary: how many different words all captions together have."""
    rows = _shares([list(words) for words in captions])
    return Statistics(("Vocabulary",), rows[:, None], _themselves)


def _themselves(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return sums


def distinct(captions: Captions, n: int) -> Statistics:
    """distinct-n (Li et al., 2016): different n-grams, as a share of all n-grams of all captions."""
    ngrams = [[tuple(words[i : i + n]) for i in range(len(words) - n + 1)] for words in captions]
    return ratio_of(f"distinct-{n}", _shares(ngrams), np.array([len(of_one) for of_one in ngrams], float))


def _shares(items: Sequence[Sequence[object]]) -> NDArray[np.float64]:
    """For each photo the sum, over its items, of one part in as many as all photos have of the item."""
    times = Counter(item for of_one in items for item in of_one)
    return np.array([sum(1 / times[item] for item in of_one) for of_one in items], float)


def rare_words(captions: Captions, frequencies: Mapping[str, int], documents: int) -> Statistics:
    """RareWords: words that are in the references of few photos, as a share of all words of all captions."""
    return _share_of_words("RareWords", captions, lambda _, word: frequencies.get(word, 0) < RARE * documents)


def repetition(captions: Captions) -> Statistics:
    """Rep: captions in which a content word occurs twice, as a share of all."""
    return mean_of("Rep", np.array([max(Counter(content(words)).values(), default=0) > 1 for words in captions], float))


def broken_off(captions: Captions) -> Statistics:
    """BadEnd: captions whose last word cannot be the last of a sentence, such as "a dog on a", as a share of all."""
    return mean_of("BadEnd", np.array([breaks_off(words) for words in captions], float))


def stuttering(captions: Captions) -> Statistics:
    """Stutter: captions in which a word follows itself, such as "a dog is is on on a bed", as a share of all."""
    return mean_of("Stutter", np.array([any(map(eq, words, words[1:])) for words in captions], float))


def oddity(captions: Captions, usage: Usage) -> Statistics:
    """Odd: captions with a word that people hardly ever put there ("a toilet in it on it"), as a share of all."""
    return mean_of("Odd", (usage.odd([[*roles(words), END] for words in captions]) > 0).astype(float))


def precision(captions: Captions, references: Told) -> Statistics:
    """Prec: content words that the own photo's references have too, as a share of all content words of all captions."""
    told = [_words_of([texts]) for texts in references]
    return _share_of_words("Prec", [content(words) for words in captions], lambda photo, word: word in told[photo])


def distinctive_words(captions: Captions, references: Told, look_alikes: NDArray[np.int64]) -> Statistics:
    """DisWordRate: words that no look-alike's references have, as a share of all words of all captions."""
    told = [_words_of([references[other] for other in others]) for others in look_alikes.tolist()]
    return _share_of_words("DisWordRate", captions, lambda photo, word: word not in told[photo])


def cider_between(captions: Sentences, references: References, look_alikes: NDArray[np.int64]) -> Statistics:
    """CIDErBtw (Wang et al., 2020): CIDEr-D of a caption against its look-alikes' references; less is better."""
    photos, k = look_alikes.shape
    each = cider_d(captions[np.repeat(np.arange(photos), k)], look_alikes.ravel(), references)
    return mean_of("CIDErBtw", each.reshape(photos, k).mean(1) if k else np.zeros(photos))


def _words_of(photos: Iterable[Sequence[Sequence[str]]]) -> set[str]:
    return {word for texts in photos for text in texts for word in text}


def _share_of_words(name: str, captions: Captions, counts: Callable[[int, str], bool]) -> Statistics:
    above = [sum(counts(photo, word) for word in words) for photo, words in enumerate(captions)]
    return ratio_of(name, np.array(above, float), np.array([len(words) for words in captions], float))
