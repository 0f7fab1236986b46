"""Words and phrases as 64-bit numbers, so that the paraphrase table needs neither strings nor a vocabulary.

The paraphrases hold 2.6 million phrases: the chance that two of them, or one and a phrase of a caption, get the same
number is below one in a million for a whole benchmark.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from capscore.compiled import compiled

_FNV_START = np.uint64(0xCBF29CE484222325)
_FNV_FACTOR = np.uint64(0x100000001B3)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_MIX_SHIFT = np.uint64(33)
_NEXT_WORD = np.uint64(0x9E3779B97F4A7C15)  # odd: a phrase's number is a polynomial in it over the words' numbers

_BLANK, _TAB, _NEWLINE, _FORM_FEED, _RETURN = 32, 9, 10, 12, 13


def of_words(words: Sequence[str]) -> NDArray[np.uint64]:
    """(N,) of words: each number depends on the word's own bytes alone."""
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    edges = np.zeros(len(words) + 1, np.int64)
    np.cumsum([len(word) for word in encoded], out=edges[1:])
    return _of_spelt(np.frombuffer(b"".join(encoded), np.uint8), edges)


@compiled
def _finished(number: np.uint64) -> np.uint64:
    """FNV leaves the high bits of short words nearly alike; these are the ones that the tables look at."""
    number = (number ^ (number >> _MIX_SHIFT)) * _MIX
    return number ^ (number >> _MIX_SHIFT)


@compiled
def _of_spelt(text: NDArray[np.uint8], edges: NDArray[np.int64]) -> NDArray[np.uint64]:
    numbers = np.empty(len(edges) - 1, np.uint64)
    for word in range(len(numbers)):
        number = _FNV_START
        for at in range(edges[word], edges[word + 1]):
            number = (number ^ np.uint64(text[at])) * _FNV_FACTOR
        numbers[word] = _finished(number)
    return numbers


@compiled
def of_paraphrases(text: NDArray[np.uint8], count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64], int]:
    """The first `count` entries of METEOR's table, three lines each: a probability, a phrase and what it may become.

    Gives the phrases, their paraphrases and the longest number of words in any of them.
    """
    phrases = np.empty((2, count), np.uint64)
    longest = 1
    at = 0
    for entry in range(count):
        for line in range(3):
            phrase, words = np.uint64(0), 0
            word, inside = _FNV_START, False
            while True:
                ended = at >= len(text) or text[at] == _NEWLINE
                if ended or text[at] in (_BLANK, _TAB, _FORM_FEED, _RETURN):
                    if inside:
                        phrase = phrase * _NEXT_WORD + _finished(word)
                        words += 1
                    word, inside = _FNV_START, False
                else:
                    word = (word ^ np.uint64(text[at])) * _FNV_FACTOR
                    inside = True
                at += 1
                if ended:
                    break
            if line > 0:
                phrases[line - 1, entry] = phrase
                longest = max(longest, words)
    return phrases[0], phrases[1], longest


@compiled
def of_spans(words: NDArray[np.uint64], edges: NDArray[np.int64], longest: int) -> NDArray[np.uint64]:
    """(T, longest): the phrase of 1, 2, ... words from each word of each caption; 0 where its caption has ended.

    words     (T,)    of the words of all captions, one after the other
    edges     (C + 1) where captions begin
    """
    spans = np.zeros((len(words), longest), np.uint64)
    for caption in range(len(edges) - 1):
        for start in range(edges[caption], edges[caption + 1]):
            phrase = np.uint64(0)
            for length in range(min(longest, edges[caption + 1] - start)):
                phrase = phrase * _NEXT_WORD + words[start + length]
                spans[start, length] = phrase
    return spans
