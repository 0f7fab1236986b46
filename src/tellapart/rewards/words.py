"""Sampled captions as words, for any tokens of the captioner; and rewards about single words.

Rewards measure words: CIDEr-D of sub-words is another measure, and a repeated "ing" is no repetition.  With a word
tokenizer a token is a word, and nothing is done.  With sub-words, captions are decoded, split into words as their
references are, and numbered in a *reward vocabulary*; what a reward gives a word goes to all of its tokens.

A content word is any word that is not in the stop list.

N captions, T tokens, W words, V vocabulary.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from capscore.objects import mentions
from capscore.sentences import Grouped
from capscore.words import NEVER_LAST, STOP_WORDS
from tellapart.data.batches import padded
from tellapart.data.tokenizers import Tokenizer, WordTokenizer, split_words
from tellapart.rewards import Reward, SampledCaptions

_UNSEEN = 1 << 16  # ids of words that no reference has; two of them share one id with a chance of 1 in 65,536


class RewardVocabulary(WordTokenizer):
    """All words of the references, and an id for any other word: an unseen word is a word, and not `<unk>`."""

    def __init__(self, references: Iterable[str]):
        words = {word for caption in references for word in split_words(caption)} | STOP_WORDS | NEVER_LAST
        unseen = (name for number in range(_UNSEEN) if (name := f"unseen{number}") not in words)
        super().__init__([*sorted(words), *unseen])
        self._first_unseen = len(self.specials) + len(words)

    def encode(self, caption: str) -> list[int]:
        return [self.id_of(word) for word in split_words(caption)]

    def id_of(self, word: str) -> int:
        id = self._ids.get(word)
        if id is not None and id < self._first_unseen:
            return id
        return self._first_unseen + zlib.crc32(word.encode()) % (len(self.words) - self._first_unseen)


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
        lengths = mask.sum(1).tolist()
        read = [self._read(row[:length]) for row, length in zip(tokens.tolist(), lengths, strict=True)]
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
        tokens = tokens[: tokens.index(eos)] if ended else tokens
        text = decode(tokens)
        words = self.vocabulary.encode(text)
        spans, letters = [], 0
        for count in range(1, len(tokens) + 1):
            # A token belongs to the last word of the text that ends with it, if it adds a letter to that word.
            so_far = decode(tokens[:count])
            more = sum(map(str.isalnum, so_far))
            spans.append(min(len(split_words(so_far)), len(words)) - 1 if more > letters else -1)
            letters = max(letters, more)
        if ended:
            spans.append(len(words))
            words = [*words, self.vocabulary.eos]
        return words, spans, text


def spread(values: Tensor, otherwise: Tensor, spans: Tensor | None) -> Tensor:
    """The values of words, at each of their tokens.

    values     (N, W) of words
    otherwise  (N,) of tokens that are part of no word, such as punctuation
    spans      (N, T); None: a token is a word
    returns    (N, T)
    """
    if spans is None:
        return values
    with_none = torch.cat([values, otherwise[:, None]], 1)
    return with_none.gather(1, torch.where(spans < 0, values.shape[1], spans))


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
        grouped = Grouped.join(references)
        sentences, counts = grouped.sentences, np.diff(grouped.first)
        photo = np.repeat(np.arange(len(grouped)), counts)  # of each sentence
        number = np.arange(len(sentences)) - grouped.first[photo]  # among those of its photo
        sentence = np.repeat(np.arange(len(sentences)), sentences.lengths)  # of each token
        is_content = self._content[sentences.tokens]
        sentence, token = sentence[is_content], sentences.tokens[is_content].astype(np.int64)
        most = int(counts.max(initial=1))
        pairs = np.unique((photo[sentence] * len(content) + token) * most + number[sentence])
        # (K,) the words of each photo's references, as photo * V + word, in order; and the one reference that has the
        # word, or _SEVERAL
        self._words, first, times = np.unique(pairs // most, return_index=True, return_counts=True)
        self._sole = np.where(times == 1, (pairs % most)[first], _SEVERAL)

    def __call__(self, sampled: SampledCaptions) -> Reward:
        ids, photos = sampled.ids.cpu().numpy(), sampled.photos.cpu().numpy()
        content = self._content[ids.clip(0)] & (ids >= 0) & (ids != self._end)  # (N, W)
        wanted = photos[:, None] * len(self._content) + ids
        place = np.searchsorted(self._words, wanted).clip(max=max(len(self._words) - 1, 0))
        has = np.zeros(ids.shape, np.bool_)
        if len(self._words):
            has = (self._words[place] == wanted) & content
            if sampled.reference is not None:
                has &= self._sole[place] != sampled.reference.cpu().numpy()[:, None]
        return sampled.reward(has.sum(1) / content.sum(1).clip(1))


class Repetition:
    """Minus how often a caption repeats itself: content words, pairs of neighbours, any word at once.

    content  (V,) bool: which tokens are content words
    end      the end token; what follows it in a caption is ignored

    Every occurrence after the first counts.  Only pairs with a content word do: a caption may say "in a" twice.  So "a
    dog and a dog" gets -2, for "dog" and for "a dog".  Any word that follows itself counts: "on on a bed"
    is how a captioner pleases `different` where it has nothing else to say, and no measure of the field sees it.
    """

    def __init__(self, content: Tensor, *, end: int):
        self._content, self._end = content, end

    def __call__(self, sampled: SampledCaptions) -> Reward:
        ids = sampled.ids
        inside = (ids >= 0) & (ids != self._end)  # (N, W)
        content = self._content.to(ids.device)[ids.clamp(min=0)] & inside
        same = (ids[:, :, None] == ids[:, None, :]) & inside[:, :, None]  # (N, W, W)
        earlier = same.tril(-1)
        follows_itself = same.diagonal(-1, 1, 2)  # (N, W - 1) from the second word on
        pair_again = (earlier[:, 1:, 1:] & earlier[:, :-1, :-1]).any(2)
        word_counts = content & earlier.any(2)
        word_counts[:, 1:] |= follows_itself
        pair_counts = (content[:, 1:] | content[:, :-1]) & pair_again
        return Reward((-word_counts.sum(1) - pair_counts.sum(1)).float())


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


class Objects:
    """+1 for each object word whose object the detector sees, -1 for each whose object it does not; their mean.

    visible     of each photo, the classes of COCO that are perhaps in it, by number (`metrics.objects.WEAK`); none
                where the detector failed: captions of such a photo get 0
    vocabulary  of the captions' word ids

    The object words are those of ObjPrec, of which this is 2 * ObjPrec - 1 by caption: each occurrence counts, and
    words that may mean something else ("orange") do not.  The mean and not the sum, so that a caption earns nothing by
    listing objects.  A caption that names none gets 0: better than a wrong one, worse than a right one.
    """

    def __init__(self, visible: Sequence[Collection[int] | None], vocabulary: WordTokenizer):
        self._visible, self._vocabulary = visible, vocabulary

    def __call__(self, sampled: SampledCaptions) -> Reward:
        rewards = []
        for words, photo in zip(self._words(sampled), sampled.photos.tolist(), strict=True):
            named, visible = [set(each.classes) for each in mentions(words) if each.sure], self._visible[photo]
            right = 0 if visible is None else sum(1 if classes.intersection(visible) else -1 for classes in named)
            rewards.append(right / max(len(named), 1))
        return sampled.reward(rewards)

    def _words(self, sampled: SampledCaptions) -> list[list[str]]:
        if sampled.texts is not None:  # of sub-words: words that no reference has are known only there
            return [split_words(text) for text in sampled.texts]
        words, end = self._vocabulary.words, self._vocabulary.eos
        return [[words[token] for token in row if token >= 0 and token != end] for row in sampled.ids.tolist()]


_FACTOR = 0x5851F42D4C957F2D  # odd, so that no word is lost in the product; the multiplier of Knuth's MMIX


class Different:
    """Minus ln(1 + n) for a caption that other photos got n times lately; 0 for one that is its photo's alone.

    window  how many captions are remembered: the last ones
    gather  what each process gives, by rank: all of them remember the same
    """

    def __init__(self, window: int = 16384, gather: Callable[[Any], list[Any]] = lambda share: [share]):
        self._gather = gather
        self._fingerprints = torch.zeros(window, dtype=torch.long)  # fingerprints, the oldest first
        self._photos = torch.full((window,), -1)  # of which photo; -1 where there was none yet

    def __call__(self, sampled: SampledCaptions) -> Reward:
        same = fingerprints(sampled)[:, None] == self._fingerprints
        of_others = (self._photos >= 0) & (self._photos != sampled.photos.cpu()[:, None])
        return sampled.reward(-(same & of_others).sum(1).float().log1p())

    def remember(self, sampled: SampledCaptions | None) -> None:
        """Captions that were learned from; None where this process has none of the batch."""
        share = [] if sampled is None else [fingerprints(sampled).tolist(), sampled.photos.tolist()]
        for batch in filter(None, self._gather(share)):
            latest, photos = torch.tensor(batch)
            self._fingerprints = torch.cat([self._fingerprints, latest])[-len(self._fingerprints) :]
            self._photos = torch.cat([self._photos, photos])[-len(self._photos) :]

    def state(self) -> Tensor:
        """(2, window), for a checkpoint"""
        return torch.stack([self._fingerprints, self._photos])

    def restore(self, state: Tensor) -> None:
        self._fingerprints, self._photos = state.cpu().unbind()


def fingerprints(sampled: SampledCaptions) -> Tensor:
    """(N,) a number for the words of each caption: the same for the same words, another one for others.

    A polynomial of the words modulo 2^64: that two captions of a window share one by chance is out of the question.
    """
    tokens = ((sampled.words + 1) * sampled.mask).cpu()  # 0 is no word, so that padding adds nothing
    place = torch.full((tokens.shape[1],), _FACTOR).cumprod(0)
    return (tokens * place).sum(1)
