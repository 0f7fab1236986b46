"""Rewards about single words: those that the photo's references have too (H), that are used twice, the last
one.

A content word is any word that is not in the stop list.  The first two rewards count over token ids, in compiled loops.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore.compiled import compiled, over_cores
from capscore.sentences import Grouped, Sentences, check_photos
from capscore.stop_words import NEVER_LAST, STOP_WORDS
from tellapart.data.tokenizers import WordTokenizer
from tellapart.rewards import Reward, SampledCaptions

Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]

_SEVERAL = -2  # in place of a reference: more than one has the word.  No caption's number: -1 is one that is none


def content_words(tokenizer: WordTokenizer) -> Tensor:
    """(V,) bool: which tokens are content words.  Special tokens and mere signs are not."""
    is_content = [word not in STOP_WORDS and any(map(str.isalnum, word)) for word in tokenizer.words]
    is_content[: len(tokenizer.specials)] = [False] * len(tokenizer.specials)
    return torch.tensor(is_content)


def never_last(tokenizer: WordTokenizer) -> Tensor:
    """(V,) bool: words that no sentence ends with."""
    return torch.tensor([word in NEVER_LAST for word in tokenizer.words])


class Faithful:
    """H: the share of a caption's content words that its photo's references have too.  It pays for no invented detail.

    references  token ids of each photo's captions, without the end token
    content     (V,) bool: which tokens are content words
    end         the end token; what follows it in a caption is ignored

    Each occurrence counts.  A caption without a content word gets 0, for saying nothing must not be the surest way to
    be right, and so does any of a photo without references.  A caption that is itself one of the references
    (`SampledCaptions.reference`) is compared with the others.
    """

    def __init__(self, references: Sequence[Sequence[Sequence[int]]], content: Tensor, *, end: int):
        self._content, self._end = content.cpu().numpy(), end
        self._first, self._words, self._sole = _reference_words(Grouped.join(references), self._content)

    def __call__(self, sampled: SampledCaptions) -> Reward:
        captions = Sentences.rows(sampled.ids.cpu().numpy(), self._end, keep_end=False)
        photos = sampled.photos.cpu().numpy().astype(np.int64)
        check_photos(captions, photos, len(self._first) - 1)
        none = np.full(len(captions), -1)
        left_out = none if sampled.reference is None else sampled.reference.cpu().numpy().astype(np.int64)
        shares = np.zeros(len(captions), np.float32)

        def work(start: int, stop: int) -> None:
            _shares(captions.tokens, captions.starts, captions.lengths, start, stop, self._content,
                    photos, left_out, self._first, self._words, self._sole, shares)  # fmt: skip

        over_cores(work, len(captions))
        return Reward(torch.from_numpy(shares).to(sampled.words.device))


class Repetition:
    """Minus how often a caption repeats itself: content words, pairs of neighbours, any word at once.

    content  (V,) bool: which tokens are content words
    end      the end token; what follows it in a caption is ignored

    Every occurrence after the first counts.  Only pairs with a content word do: a caption may say "in a" twice.  So "a
    dog and a dog" gets -2, for "dog" and for "a dog".  Any word that follows itself counts: "on on a bed"
    is how a captioner pleases `different` where it has nothing else to say, and no measure of the field sees it.
    """

    def __init__(self, content: Tensor, *, end: int):
        self._content, self._end = content.cpu().numpy(), end

    def __call__(self, sampled: SampledCaptions) -> Reward:
        captions = Sentences.rows(sampled.ids.cpu().numpy(), self._end, keep_end=False)
        penalties = np.zeros(len(captions), np.float32)

        def work(start: int, stop: int) -> None:
            _penalties(captions.tokens, captions.starts, captions.lengths, start, stop, self._content, penalties)

        over_cores(work, len(captions))
        return Reward(torch.from_numpy(penalties).to(sampled.words.device))


class Ending:
    """-1 for a caption whose last word no sentence ends with, else 0.

    Rewards that go by what is mentioned do not see it, and a penalty on repetition invites it: "a dog on a" says
    nothing twice.

    never_last  (V,) bool: such words
    end         the end token; a caption without one was cut, and its last word is as good as any
    """

    def __init__(self, never_last: Tensor, *, end: int):
        self._never_last, self._end = never_last, end

    def __call__(self, sampled: SampledCaptions) -> Reward:
        place = sampled.mask.sum(1, keepdim=True) - 1  # of the end, or of the last word of a caption that was cut
        ended = sampled.words.gather(1, place) == self._end
        last = sampled.words.gather(1, (place - 1).clamp(min=0))  # of a caption without words, its end
        breaks_off = ended & self._never_last.to(last.device)[last]
        return Reward(torch.where(breaks_off.squeeze(1), -1.0, 0.0))


def _reference_words(references: Grouped, content: Bools) -> tuple[Longs, Ints, Ints]:
    """The content words of each photo's references, each once, in order: first (P + 1,), words (W,), sole (W,).

    Those of photo p are words[first[p] : first[p + 1]].  `sole` is the one reference of the photo, counted from 0, that
    has the word, or _SEVERAL.
    """
    sentences, photos = references.sentences, len(references)
    counts = np.diff(references.first)
    photo_of = np.repeat(np.arange(photos), counts)  # of each sentence
    number_of = np.arange(len(sentences)) - references.first[photo_of]
    sentence = np.repeat(np.arange(len(sentences)), sentences.lengths)  # of each token
    sentence = sentence[content[sentences.tokens]]
    token = sentences.tokens[content[sentences.tokens]].astype(np.int64)

    most = int(counts.max(initial=1))
    word_in_photo = photo_of[sentence] * len(content) + token
    known = np.unique(word_in_photo * most + number_of[sentence])  # (photo, word, reference), sorted
    word_in_photo, at, times = np.unique(known // most, return_index=True, return_counts=True)
    sole = np.where(times == 1, (known % most)[at], _SEVERAL)
    first = np.searchsorted(word_in_photo, np.arange(photos + 1) * len(content))
    return first.astype(np.int64), (word_in_photo % len(content)).astype(np.int32), sole.astype(np.int32)


@compiled
def _is_content(content: Bools, token: int) -> bool:
    return 0 <= token < len(content) and content[token]  # unchecked, another vocabulary's id would read any memory


@compiled
def _shares(tokens: Ints, starts: Longs, lengths: Longs, begin: int, end: int, content: Bools, photos: Longs,
            left_out: Longs, first: Longs, words: Ints, sole: Ints, shares: Floats) -> None:  # fmt: skip
    for i in range(begin, end):
        low, high = first[photos[i]], first[photos[i] + 1]
        total = found = 0
        for at in range(starts[i], starts[i] + lengths[i]):
            if _is_content(content, tokens[at]):
                total += 1
                place = low + np.searchsorted(words[low:high], tokens[at])
                if place < high and words[place] == tokens[at] and sole[place] != left_out[i]:
                    found += 1
        if total > 0:
            shares[i] = found / total


@compiled
def _penalties(tokens: Ints, starts: Longs, lengths: Longs, begin: int, end: int, content: Bools,
               penalties: Floats) -> None:  # fmt: skip
    for i in range(begin, end):
        start, stop = starts[i], starts[i] + lengths[i]
        for at in range(start, stop):
            is_content = _is_content(content, tokens[at])
            pair_counts = at > start and (is_content or _is_content(content, tokens[at - 1]))
            word_again = pair_again = False
            for before in range(start, at):
                if tokens[before] == tokens[at]:
                    word_again = True
                    pair_again |= before > start and tokens[before - 1] == tokens[at - 1]
            stutters = at > start and tokens[at] == tokens[at - 1]
            penalties[i] -= ((is_content or stutters) and word_again) + (pair_counts and pair_again)
