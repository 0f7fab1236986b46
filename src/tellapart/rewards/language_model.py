"""Rewards for English as people write it: how expected words are, and in which order function words come.

The terms of `Fluency` are those of the measure of that name (SLOR): how expected each word is after the three before,
beyond its frequency.  They are by another language model: the measure's has seen captions of COCO photos with odd ids,
and this one never does.  Captioners use the most expected words, more so than people.  So a caption is paid up to what
most of people's captions reach, and only what falls short of it costs: a reward without bounds would make captions say
less.

`UnusualOrder` is against an order of function words that people hardly ever use, such as "a toilet in it on it".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

from capscore.errors import UserError
from capscore.fluency import END, ORDER, START, UNKNOWN, Floats, Ints, KneserNey
from capscore.sentences import Sentences
from capscore.words import END as LAST_WORD
from capscore.words import WordOrder, roles
from tellapart.data import examples as data_files
from tellapart.data.examples import Example, Exclusion
from tellapart.data.tokenizers import WordTokenizer, split_words
from tellapart.rewards import Reward, SampledCaptions

# Medians of 25,099 captions by people, of COCO photos that the model had not seen: of a caption's mean, and of its
# least expected word.  One caption in a hundred has a word below the last figure.
USUAL_MEAN, USUAL_LOWEST, LEAST = 2.0, -1.3, -5.5


@cache
def coco() -> KneserNey:
    """The model of captions of COCO photos with even ids; made by scripts/build_language_model.py."""
    with resources.as_file(resources.files("capscore") / "data" / "coco_even_language_model.npz") as path:
        return KneserNey.load(path)


def learned(files: Sequence[str], left_out: Sequence[Exclusion] = ()) -> KneserNey:
    """A language model of the captions of data files, without those that `readable` leaves out."""
    captions = [split_words(text) for photo in readable(files, left_out) for text in photo.captions]
    if not captions:
        raise UserError(
            f"objective.rewards.fluency_text: {', '.join(files)}: no captions are left to learn a language from; those "
            "of validation and test photos, and of COCO photos with odd ids, are left out."
        )
    return KneserNey.of(captions)


def readable(files: Sequence[str], left_out: Sequence[Exclusion] = (), *, odd: bool = False) -> list[Example]:
    """The photos of data files whose captions a language model may see.

    Without the splits val and test, under any id, and without COCO photos of odd ids, which
    the measures' model has seen; `odd` is for that one, and takes no others.
    """
    sets = [data_files.read(Path(file), needs_files=False) for file in files]
    without = [Exclusion(sets, lambda photo: photo.split in ("val", "test")), *left_out]
    return [
        photo
        for dataset in sets
        for photo in dataset.examples
        if (_is_odd(photo) if odd else dataset.name != "coco" or not _is_odd(photo))
        and not any(exclusion.has(photo, dataset.name) for exclusion in without)
    ]


def _is_odd(photo: Example) -> bool:
    return str(photo.id)[-1:] in set("13579")


class Fluency:
    """The shortfall of a caption from most people's: 0 at best, -6.2 at worst.

    Its mean term counts where it is below USUAL_MEAN, and its lowest term where it is below USUAL_LOWEST.

    words  whose ids captions are made of; a caption without the end token was cut, and its end is no term
    """

    def __init__(self, model: KneserNey, words: WordTokenizer):
        self._model, self._end = model, words.eos
        self._number = np.array([model.number_of(word) for word in words.words], np.int64)
        self._number[: len(words.specials)] = UNKNOWN
        self._number[words.eos] = END

    def __call__(self, sampled: SampledCaptions) -> Reward:
        captions = Sentences.rows(sampled.ids.cpu().numpy(), self._end, keep_end=True)
        numbers = self._number[sampled.words.cpu().numpy()]  # (N, W)
        start = np.full((len(numbers), ORDER - 1), START)
        windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([start, numbers], 1), ORDER, axis=1)
        is_word = np.arange(numbers.shape[1]) < captions.lengths[:, None]
        terms = self._model.terms_of(windows[is_word])
        owner = np.repeat(np.arange(len(numbers)), captions.lengths)
        return sampled.reward(shortfall(terms, owner, len(numbers)))


def shortfall(terms: Floats, owner: Ints, count: int) -> Floats:
    """(count,) of the terms of captions, and of which caption each is; 0 where a caption has none."""
    lowest = np.full(count, USUAL_LOWEST)
    np.minimum.at(lowest, owner, terms)
    number = np.bincount(owner, minlength=count)
    mean = np.divide(
        np.bincount(owner, terms, minlength=count), number, out=np.full(count, USUAL_MEAN), where=number > 0
    )
    values: Floats = np.clip(mean, 0, USUAL_MEAN) - USUAL_MEAN + np.maximum(lowest, LEAST) - USUAL_LOWEST
    return values


class UnusualOrder:
    """Minus the words that people hardly ever use after the three before them: the measure of the same name.

    people      how they order words
    vocabulary  of the captions' word ids; what is no word counts as content.  A caption without the end token was cut,
                and is not reproached with how it ends
    """

    def __init__(self, people: WordOrder, vocabulary: WordTokenizer):
        self._people, self._end = people, vocabulary.eos
        self._role = np.array(roles(vocabulary.words))
        self._role[self._end] = LAST_WORD

    def __call__(self, sampled: SampledCaptions) -> Reward:
        captions = Sentences.rows(sampled.ids.cpu().numpy(), self._end, keep_end=True)
        roles = self._role[captions.tokens].tolist()
        ends = captions.starts + captions.lengths
        each = [roles[start:end] for start, end in zip(captions.starts, ends, strict=True)]
        return sampled.reward(-self._people.unusual(each))
