"""How a retriever reads captions: text, or a captioner's token ids, in the form that its network takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from capscore.errors import UserError
from tellapart.data.batches import padded
from tellapart.data.pairs import Prepared
from tellapart.data.tokenizers import Tokenizer, WordTokenizer
from tellapart.retrievers.sentences import SentenceEncoder

MAX_WORDS = 40  # of a caption that a retriever reads; the rest is ignored


class Reader(Protocol):
    def read(self, captions: Sequence[str]) -> Tensor:
        """Captions as the network takes them."""

    def read_tokens(self, tokens: Tensor, words: Tokenizer) -> Tensor:
        """The same from a captioner's tokens (N, T), which count up to EOS."""

    def require_words_of(self, words: Tokenizer) -> None:
        """Refuses a captioner none of whose words it knows."""

    def prepare(self, captions: Sequence[str], max_words: int, cache: Path) -> Prepared:
        """Captions for training, cut after `max_words`; what is costly to read is kept below `cache`."""


class WordReader:
    """Words of a vocabulary of its own; ids (N, T) padded with 0."""

    def __init__(self, tokenizer: WordTokenizer, *, with_eos: bool = False):
        self.tokenizer, self.with_eos = tokenizer, with_eos
        self._translations: dict[int, tuple[WordTokenizer, Tensor]] = {}

    def read(self, captions: Sequence[str]) -> Tensor:
        return self._padded(list(map(self._ids, captions)))

    def prepare(self, captions: Sequence[str], max_words: int, cache: Path) -> Prepared:
        return _PreparedWords(self, [self._ids(caption, max_words) for caption in captions])

    def read_tokens(self, tokens: Tensor, words: Tokenizer) -> Tensor:
        if not isinstance(words, WordTokenizer):  # parts of words have no ids here: they are read as text
            return self.read([words.decode(caption) for caption in tokens.tolist()]).to(tokens.device)
        tokens = self._translation(words).to(tokens.device)[tokens]
        ended = (tokens == self.tokenizer.eos).cumsum(1) > 0
        tokens = tokens.masked_fill(ended, self.tokenizer.pad)
        order = (tokens == self.tokenizer.pad).long().argsort(dim=1, stable=True)  # no BOS before the words
        tokens = tokens.gather(1, order)[:, :MAX_WORDS]
        if not self.with_eos:
            return tokens
        lengths = (tokens != self.tokenizer.pad).sum(1, keepdim=True)
        longer = torch.cat([tokens, torch.full_like(tokens[:, :1], self.tokenizer.pad)], 1)
        return longer.scatter(1, lengths, self.tokenizer.eos)

    def require_words_of(self, words: Tokenizer) -> None:
        if isinstance(words, WordTokenizer):
            self._translation(words)

    def _translation(self, words: WordTokenizer) -> Tensor:
        """The id here of each id there: (V,)"""
        known = self._translations.get(id(words))
        if known is None or known[0] is not words:  # an id may be another's after a pickle
            known = (words, _translate(words, self.tokenizer))  # held, so that its id is not given to another
            self._translations[id(words)] = known
        return known[1]

    def _ids(self, caption: str, max_words: int = MAX_WORDS) -> list[int]:
        return self.tokenizer.encode(caption)[:max_words] + ([self.tokenizer.eos] if self.with_eos else [])

    def _padded(self, captions: Sequence[Sequence[int]]) -> Tensor:
        tokens, _ = padded(captions, self.tokenizer.pad)
        return tokens if tokens.shape[1] else torch.full((len(captions), 1), self.tokenizer.pad)


class _PreparedWords:
    def __init__(self, reader: WordReader, ids: list[list[int]]):
        self._reader, self._ids = reader, ids

    def __getitem__(self, captions: Sequence[int]) -> Tensor:
        return self._reader._padded([self._ids[caption] for caption in captions])


def _translate(theirs: WordTokenizer, ours: WordTokenizer) -> Tensor:
    """Word by word; a word that we do not have is unknown to us."""
    their_words = theirs.words[len(theirs.specials) :]
    our_ids = [ours.encode(word) for word in their_words]
    if not any(ids == [id] and id != ours.unk for ids in our_ids for id in ids[:1]):
        raise UserError("the retriever knows none of the captioner's words; are they of different languages?")
    specials = {theirs.pad: ours.pad, theirs.bos: ours.pad, theirs.eos: ours.eos, theirs.unk: ours.unk}
    ids = [specials[i] for i in range(len(specials))] + [found[0] if len(found) == 1 else ours.unk for found in our_ids]
    return torch.tensor(ids)


class SentenceReader:
    """Vectors (N, S) of a frozen sentence encoder."""

    def __init__(self, encoder: SentenceEncoder):
        self.encoder = encoder

    def read(self, captions: Sequence[str]) -> Tensor:
        return self.encoder.embed(captions)

    def read_tokens(self, tokens: Tensor, words: Tokenizer) -> Tensor:
        return self.read([words.decode(caption) for caption in tokens.tolist()])

    def require_words_of(self, words: Tokenizer) -> None:
        """It reads text, not words."""

    def prepare(self, captions: Sequence[str], max_words: int, cache: Path) -> Prepared:
        return _PreparedVectors(self.encoder.embed_and_keep(captions, cache))  # read whole: nothing grows with length


class _PreparedVectors:
    def __init__(self, vectors: Tensor):
        self._vectors = vectors

    def __getitem__(self, captions: Sequence[int]) -> Tensor:
        return self._vectors[torch.as_tensor(captions)]
