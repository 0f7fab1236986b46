"""Captions and references of the same photos, in the forms that the measures take, each made when first needed."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

from capscore import look_alikes
from capscore.frequencies import WordFrequencies
from capscore.ngrams import Frequencies, References
from capscore.sentences import Grouped, Sentences, Words, edges
from capscore.tokenize.numbering import numbered
from capscore.tokenize.tokenizer import tokenize_file
from capscore.training_captions import TrainingCaptions

LOOK_ALIKES = 5
_OF_REFERENCES = ("reference_words", "reference_words_split", "_words", "reference_ids", "references", "look_alikes")


class ScoringInputs:
    """captions    one or more for each photo; the first is the one whose accuracy counts
    references  people's captions of each photo, at least one each
    frequencies document frequencies for CIDEr; from the references if there are none
    training    the captions that the model was trained on, if they are known
    """

    def __init__(
        self,
        captions: Sequence[Sequence[str]],
        references: Sequence[Sequence[str]],
        frequencies: WordFrequencies | None = None,
        training: TrainingCaptions | None = None,
    ):
        self._raw_captions, self._raw_references, self._frequencies = captions, references, frequencies
        self.training = training
        self.photos = np.arange(len(captions))

    @classmethod
    def of_tokens(
        cls, captions: Sequence[Sequence[Sequence[str]]], references: Sequence[Sequence[Sequence[str]]]
    ) -> ScoringInputs:
        """Of captions and references that are tokenised already."""
        texts, people = ([[" ".join(one) for one in of_photo] for of_photo in side] for side in (captions, references))
        inputs = cls(texts, people)
        inputs.words = [list(of_photo[0]) for of_photo in captions]
        inputs.reference_words = [list(map(list, of_photo)) for of_photo in references]
        inputs.caption_ids = inputs._words.join(inputs.words)
        inputs.reference_ids = inputs._words.join_groups(inputs.reference_words)
        return inputs

    def with_captions(self, captions: Sequence[Sequence[str]]) -> ScoringInputs:
        """Other captions of the same photos; what was made of the references is shared."""
        other = ScoringInputs(captions, self._raw_references, self._frequencies, self.training)
        other.__dict__.update({name: self.__dict__[name] for name in _OF_REFERENCES if name in self.__dict__})
        return other

    @property
    def texts(self) -> list[str]:
        """The one caption of each photo that is judged, as it was given."""
        return [captions[0] for captions in self._raw_captions]

    @cached_property
    def words(self) -> list[list[str]]:
        """The words of the one caption of each photo that is judged."""
        (words,) = _tokenized([self.texts])
        return words

    @cached_property
    def all_words(self) -> list[list[list[str]]]:
        """The words of all captions of each photo."""
        others = _tokenized([captions[1:] for captions in self._raw_captions])
        return [[first, *rest] for first, rest in zip(self.words, others, strict=True)]

    @cached_property
    def reference_words(self) -> list[list[list[str]]]:
        return _tokenized(self._raw_references)

    @cached_property
    def _words(self) -> Words:
        return Words(self._frequencies.words if self._frequencies else ())

    @cached_property
    def caption_ids(self) -> Sentences:
        return numbered(self.texts, self._words)

    @cached_property
    def reference_ids(self) -> Grouped:
        flat = list(chain.from_iterable(self._raw_references))
        return Grouped(numbered(flat, self._words), edges(self._raw_references))

    # Where n-grams are counted, the COCO evaluation splits words once more, at blanks of every kind: a fraction such as
    # "1 1/2" is one word with a no-break space to ROUGE-L, and two to BLEU and CIDEr.

    @cached_property
    def reference_words_split(self) -> list[list[list[str]]]:
        return _split(self.reference_words)

    @cached_property
    def references(self) -> References:
        table = self._frequencies.ngrams if self._frequencies else None
        split = self.reference_ids
        if self._words_with_blanks:
            split = self._words.join_groups(self.reference_words_split)
        return References(split, table)

    @property
    def reference_frequencies(self) -> Frequencies:
        return self.references.frequencies()

    @cached_property
    def captions_split(self) -> Sentences:
        ids = self.caption_ids
        return self._words.join(*_split([self.words])) if self._words_with_blanks else ids

    @property
    def _words_with_blanks(self) -> bool:
        """Whether any word has blanks, of all that have been met."""
        return not all(map(str.isprintable, self._words))

    @cached_property
    def all_captions_split(self) -> Grouped:
        return self._words.join_groups(_split(self.all_words))

    @cached_property
    def look_alikes(self) -> NDArray[np.int64]:
        return look_alikes.by_references(self.reference_ids, LOOK_ALIKES)

    @property
    def caption_counts(self) -> list[int]:
        """How many captions each photo has."""
        return list(map(len, self._raw_captions))

    @property
    def reference_counts(self) -> list[int]:
        return list(map(len, self._raw_references))


def _split(groups: list[list[list[str]]]) -> list[list[list[str]]]:
    """Sentences without blanks of any kind within words; those that had none are not copied."""
    with_blanks = {word for word in set(chain.from_iterable(chain.from_iterable(groups))) if not word.isprintable()}
    if not with_blanks:
        return groups
    return [[text if with_blanks.isdisjoint(text) else " ".join(text).split() for text in texts] for texts in groups]


def _tokenized(groups: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    with no_search_for_cycles():
        words = tokenize_file(list(chain.from_iterable(groups)))
    ends = list(accumulate(map(len, groups), initial=0))
    return [words[start:stop] for start, stop in pairwise(ends)]


@contextmanager
def no_search_for_cycles() -> Iterator[None]:
    """Lists of words hold no cycles, and looking for some in a hundred thousand lists takes as long as making them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
