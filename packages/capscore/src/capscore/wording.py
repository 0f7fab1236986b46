"""Measures of words alone, from lists of the words of one caption for each photo: how varied, apt and well formed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import eq

import numpy as np
from numpy.typing import NDArray

from capscore.measures import RARE_WORD
from capscore.objects import mentions
from capscore.statistics import Floats, Statistics, mean_of, quotients, ratio_of, share_of_words, shares
from capscore.stop_words import breaks_off, content
from capscore.training_captions import TrainingCaptions

Words = Sequence[str]


def average_length(captions: Sequence[Words]) -> Statistics:
    return mean_of("AvgLen", [len(words) for words in captions])


def unique_captions(captions: Sequence[Words]) -> Statistics:
    """A caption that is given to four photos adds a quarter for each of them."""
    times = Counter(map(tuple, captions))
    return mean_of("UniCap", [1 / times[tuple(words)] for words in captions])


def vocabulary(captions: Sequence[Words]) -> Statistics:
    return Statistics(("Vocabulary",), shares(captions)[:, None], _sums)


def _sums(sums: Floats) -> Floats:
    return sums


def distinct_1(captions: Sequence[Words]) -> Statistics:
    return distinct(captions, 1)


def distinct_2(captions: Sequence[Words]) -> Statistics:
    return distinct(captions, 2)


def distinct(captions: Sequence[Words], n: int) -> Statistics:
    """distinct-n (Li et al., 2016): different n-grams, as a share of all n-grams of all captions."""
    ngrams = [[tuple(words[i : i + n]) for i in range(len(words) - n + 1)] for words in captions]
    return ratio_of(f"distinct-{n}", shares(ngrams), [len(of_one) for of_one in ngrams])


def rare_in_coco(captions: Sequence[Words]) -> Statistics:
    from capscore import frequencies

    coco = frequencies.coco()
    return rare_words(captions, coco.of_words(), coco.ngrams.documents)


def rare_words(captions: Sequence[Words], frequencies: Mapping[str, int], documents: int) -> Statistics:
    """Words that are in the references of few photos, as a share of all words of all captions."""
    return share_of_words("RareWords", captions, lambda _, word: frequencies.get(word, 0) < RARE_WORD * documents)


def novel(captions: Sequence[Words], training: TrainingCaptions) -> Statistics:
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
    captions: Sequence[Words], references: Sequence[Sequence[Words]], look_alikes: NDArray[np.int64]
) -> Statistics:
    """Words that no look-alike's references have, as a share of all words of all captions."""
    theirs = [
        {word for other in others for text in references[other] for word in text} for others in look_alikes.tolist()
    ]
    return share_of_words("DisWordRate", captions, lambda photo, word: word not in theirs[photo])


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
