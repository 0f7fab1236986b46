"""Captions to token ids and back.  Models that bring sub-words of their own fit behind the same protocol."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from tellapart import files
from tellapart.errors import UserError


class Tokenizer(Protocol):
    pad: int
    bos: int
    eos: int

    def __len__(self) -> int:
        """The size of the vocabulary, special tokens included."""

    def encode(self, caption: str) -> list[int]:
        """Ids of the caption's words, without BOS and EOS."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text up to the first EOS."""

    @property
    def never_said(self) -> tuple[int, ...]:
        """Tokens that no decoder may emit."""

    def save(self, file: Path) -> None: ...


_MOST_BYTES = 1 << 28  # of a vocabulary
_WORD = re.compile(r"n't|'(?:s|m|d|ll|re|ve)\b|[^\W_]+(?:-[^\W_]+)*")


def split_words(caption: str) -> list[str]:
    """Lower case, no punctuation; clitics apart ("the dog 's"), as the COCO evaluation splits them."""
    caption = unicodedata.normalize("NFC", caption.lower()).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return _WORD.findall(re.sub(r"(?<=\w)n't\b", " n't", caption))


def join_words(words: Iterable[str]) -> str:
    return re.sub(r" (?=n't|')", "", " ".join(words))


class WordTokenizer:
    """One token per word; what is too rare for the vocabulary is UNK, which is read but never said."""

    specials = ("<pad>", "<bos>", "<eos>", "<unk>")
    pad, bos, eos, unk = range(4)

    def __init__(self, words: Sequence[str]):
        self.words = [*self.specials, *words]
        self._ids = {word: i for i, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            raise UserError("a vocabulary names a word twice.")

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int) -> WordTokenizer:
        """The words that occur at least `min_count` times, the most frequent first."""
        counts = Counter(word for caption in captions for word in split_words(caption))
        kept = [word for word, count in counts.items() if count >= min_count]
        return cls(sorted(kept, key=lambda word: (-counts[word], word)))

    @classmethod
    def load(cls, file: Path) -> WordTokenizer:
        data = files.read_bytes(file, most=_MOST_BYTES)
        try:
            stored = json.loads(data)
            words = stored["words"]
            if stored["kind"] != "words" or not isinstance(words, list):
                raise ValueError
            if not all(isinstance(word, str) for word in words):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{file} is not a vocabulary that this version can read.") from None
        try:
            return cls(words)
        except UserError as error:
            raise UserError(f"{file}: {error}") from None

    def save(self, file: Path) -> None:
        words = self.words[len(self.specials) :]
        files.replace(file, (json.dumps({"kind": "words", "words": words}, ensure_ascii=False) + "\n").encode())

    def __len__(self) -> int:
        return len(self.words)

    @property
    def never_said(self) -> tuple[int, ...]:
        return (self.pad, self.bos, self.unk)

    def encode(self, caption: str) -> list[int]:
        return [self._ids.get(word, self.unk) for word in split_words(caption)]

    def decode(self, tokens: Sequence[int]) -> str:
        words = []
        for token in tokens:
            if token == self.eos:
                break
            if token not in (self.pad, self.bos):
                words.append(self.words[token])
        return join_words(words)
