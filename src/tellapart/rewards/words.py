"""Sampled captions as words, for any tokens of the captioner.

Rewards measure words: CIDEr-D of sub-words is another measure, and a repeated "ing" is no repetition.  With a word
tokenizer a token is a word, and nothing is done.  With sub-words, captions are decoded, split into words as their
references are, and numbered in a *reward vocabulary*; what a reward gives a word goes to all of its tokens.

N captions, T tokens, W words.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capscore.stop_words import NEVER_LAST, STOP_WORDS
from tellapart.data.batches import padded
from tellapart.data.tokenizers import Tokenizer, WordTokenizer, split_words

_UNSEEN = 1 << 16  # ids of words that no reference has; two of them share one id with a chance of 1 in 65,536


class RewardVocabulary(WordTokenizer):
    """All words of the references, and an id for any other word: an unseen word is a word, and not `<unk>`."""

    def __init__(self, references: Iterable[str]):
        known = {word for caption in references for word in split_words(caption)} | STOP_WORDS | NEVER_LAST
        super().__init__(
            [*sorted(known), *(f"unseen{number}" for number in range(_UNSEEN) if f"unseen{number}" not in known)]
        )
        self._known = len(self.specials) + len(known)

    def encode(self, caption: str) -> list[int]:
        return [self.id_of(word) for word in split_words(caption)]

    def id_of(self, word: str) -> int:
        found = self._ids.get(word)
        if found is not None and found < self._known:
            return found
        return self._known + zlib.crc32(word.encode()) % (len(self.words) - self._known)


class Words(NamedTuple):
    """Captions as words of a vocabulary."""

    ids: Tensor  # (N, W) the end at the end, where a caption has one; then padding
    mask: Tensor  # (N, W) True up to and including the end
    spans: Tensor | None = None  # (N, T) which word each token is part of, -1 for none; None where a token is a word
    texts: Sequence[str] | None = None  # of each caption, where it was decoded anyway


class WordView:
    """Turns a captioner's tokens into words.

    tokenizer   the captioner's
    vocabulary  whose ids rewards know words by: the captioner's own, or a `RewardVocabulary`
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: WordTokenizer):
        self._tokenizer, self.vocabulary = tokenizer, vocabulary

    @classmethod
    def of(cls, tokenizer: Tokenizer, references: Iterable[str]) -> WordView:
        """The captioner's own vocabulary if its tokens are words, else one of the references' words."""
        if isinstance(tokenizer, WordTokenizer):
            return cls(tokenizer, tokenizer)
        return cls(tokenizer, RewardVocabulary(references))

    def __call__(self, tokens: Tensor, mask: Tensor) -> Words:
        """tokens, mask (N, T); the mask is True up to and including the end"""
        if self._tokenizer is self.vocabulary:
            return Words(tokens, mask)
        rows = [row[: int(length)] for row, length in zip(tokens.tolist(), mask.sum(1), strict=True)]
        read = [self._read(row) for row in rows]
        ids, word_mask = padded([words for words, _, _ in read], self.vocabulary.pad)
        spans = torch.full(tokens.shape, -1)
        for row, (_, span, _) in zip(spans, read, strict=True):
            row[: len(span)] = torch.tensor(span, dtype=torch.long)
        device = tokens.device
        return Words(ids.to(device), word_mask.to(device), spans.to(device), [text for _, _, text in read])

    def _read(self, tokens: list[int]) -> tuple[list[int], list[int], str]:
        """Word ids of a caption, the word that each of its tokens is part of, and its text."""
        eos, decode = self._tokenizer.eos, self._tokenizer.decode
        ended = eos in tokens
        own = tokens[: tokens.index(eos)] if ended else tokens
        text = decode(own)
        words = self.vocabulary.encode(text)
        spans, letters = [], 0
        for count in range(1, len(own) + 1):
            # A token belongs to the last word of the text that ends with it, if it adds a letter to that word.
            so_far = decode(own[:count])
            more = sum(map(str.isalnum, so_far))
            spans.append(min(len(split_words(so_far)), len(words)) - 1 if more > letters else -1)
            letters = max(letters, more)
        if ended:
            spans.append(len(words))
            words = [*words, self.vocabulary.eos]
        return words, spans, text


def spread(values: Tensor, otherwise: Tensor, spans: Tensor | None) -> Tensor:
    """What words get, at each of their tokens.

    values     (N, W) of words
    otherwise  (N,) of tokens that are part of no word, such as punctuation
    spans      (N, T); None: a token is a word
    returns    (N, T)
    """
    if spans is None:
        return values
    with_none = torch.cat([values, otherwise[:, None]], 1)
    return with_none.gather(1, torch.where(spans < 0, values.shape[1], spans))
