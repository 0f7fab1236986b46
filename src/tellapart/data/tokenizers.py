"""Captions to token ids and back: words of our own vocabulary, or the sub-words of a pretrained language model.

vocabulary.json   {"kind": "words", "words": [...]}, or {"kind": "subwords", "pad", "bos", "eos"}
tokenizer.json    of sub-words: the tokenizer as the `tokenizers` library saves it
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from capscore import files
from capscore.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Subwords


class Tokenizer(Protocol):
    pad: int
    bos: int
    eos: int

    def __len__(self) -> int:
        """The size of the vocabulary, special tokens included."""

    def encode(self, caption: str) -> list[int]:
        """Ids of the caption's tokens, without BOS and EOS."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text up to the first EOS."""

    @property
    def banned_ids(self) -> tuple[int, ...]:
        """Tokens that no decoder may emit."""

    def save(self, folder: Path) -> None:
        """As part of a model folder: see `load`."""


_MOST_BYTES = 1 << 28  # of a vocabulary
VOCABULARY, SUBWORDS = "vocabulary.json", "tokenizer.json"

_WORD = re.compile(r"n't|'(?:s|m|d|ll|re|ve)\b|[^\W_]+(?:-[^\W_]+)*")


def split_words(caption: str) -> list[str]:
    """Lower case, no punctuation; clitics apart ("the dog 's"), as the COCO evaluation splits them."""
    caption = unicodedata.normalize("NFC", caption.lower()).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return _WORD.findall(re.sub(r"(?<=\w)n't\b", " n't", caption))


def join_words(words: Iterable[str]) -> str:
    return re.sub(r" (?=n't|')", "", " ".join(words))


# Words that begin with the sound of a vowel: by their letters, but for "uniform" and "one", "hour" and "suv".  Numbers,
# single letters and other words without a vowel are left alone; so is an article before "in" and the like.
_CONSONANT = r"one|once|eu|ewe|uni(?![nmd])|us(?:[aeu]|\b)|ut[ei]|uk|ur[ai]|ub"
_VOWEL = rf"(?!{_CONSONANT})[aeiou]\w|hono|hour|heir|suv\b|rv\b|mp\d|x-|l-"
_NO_NOUN = r"(?:an|and|are|as|at|in|is|it|of|on|or)\b"
_ARTICLE = re.compile(rf"\ban?(?= (?!{_NO_NOUN})(?:(?P<vowel>{_VOWEL})|[a-z](?=\w)(?=[a-z-]*[aeiouy])))")


def with_articles(text: str) -> str:
    """English with "a" before the sound of a consonant and "an" before that of a vowel: an umbrella, a uniform."""
    return _ARTICLE.sub(lambda match: "an" if match["vowel"] is not None else "a", text)


class WordTokenizer:
    """One token per word; what is too rare for the vocabulary is UNK, which is read but never predicted."""

    specials = ("<pad>", "<bos>", "<eos>", "<unk>")
    pad, bos, eos, unk = range(4)

    def __init__(self, words: Sequence[str]):
        self.words = [*self.specials, *words]
        self._ids = {word: i for i, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            raise UserError("a vocabulary names a word twice.")
        self._is_english = {"a", "an", "the", "of"} <= self._ids.keys()

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int) -> WordTokenizer:
        """The words that occur at least `min_count` times, the most frequent first."""
        counts = Counter(word for caption in captions for word in split_words(caption))
        kept = [word for word, count in counts.items() if count >= min_count]
        return cls(sorted(kept, key=lambda word: (-counts[word], word)))

    @classmethod
    def load(cls, folder: Path) -> WordTokenizer:
        words = _stored(folder).get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise _unreadable(folder)
        try:
            return cls(words)
        except UserError as error:
            raise UserError(f"{folder / VOCABULARY}: {error}") from None

    def save(self, folder: Path) -> None:
        _store(folder, {"kind": "words", "words": self.words[len(self.specials) :]})

    def __len__(self) -> int:
        return len(self.words)

    @property
    def banned_ids(self) -> tuple[int, ...]:
        return (self.pad, self.bos, self.unk)

    def encode(self, caption: str) -> list[int]:
        return [self._ids.get(word, self.unk) for word in split_words(caption)]

    def decode(self, tokens: Sequence[int]) -> str:
        until_end = takewhile(lambda token: token != self.eos, tokens)
        text = join_words(self.words[token] for token in until_end if token not in (self.pad, self.bos))
        return with_articles(text) if self._is_english else text


class SubwordTokenizer:
    """The tokenizer of a pretrained language model, as the `tokenizers` library has it.

    Padding may be the same token as the end (GPT-2, SmolLM2): readers of a batch use its mask.
    """

    def __init__(
        self,
        tokenizer: Subwords,
        *,
        eos: int,
        bos: int | None = None,
        pad: int | None = None,
        never: Iterable[int] = (),
    ):
        """Without a BOS or a padding token of its own, EOS stands for it.

        never  other tokens that no caption may have, such as the places of photos in a prompt
        """
        self._tokenizer, self._never, self.eos = tokenizer, set(never), eos
        self.bos, self.pad = eos if bos is None else bos, eos if pad is None else pad
        for name, token in (("eos", self.eos), ("bos", self.bos), ("pad", self.pad)):
            if not 0 <= token < len(self):
                raise UserError(f"the tokenizer has {len(self)} tokens, and its {name} is {token}.")
        self._ends_with_full_stop = tokenizer.id_to_token(eos) == "."

    @classmethod
    def load(cls, folder: Path) -> SubwordTokenizer:
        stored = _stored(folder)
        ids = {name: stored.get(name) for name in ("eos", "bos", "pad")}
        if not all(type(token) is int for token in ids.values()):
            raise _unreadable(folder)
        return cls.from_library(folder, ids)

    @classmethod
    def from_library(cls, folder: Path, ids: Mapping[str, Any]) -> SubwordTokenizer:
        """From tokenizer.json alone; ids: of EOS, BOS and padding"""
        try:
            from tokenizers import Tokenizer as Library
        except ImportError:
            raise UserError(f"{folder} needs the package tokenizers; `pip install tokenizers` brings it.") from None
        text = files.read_text(files.inside(folder, SUBWORDS), most=_MOST_BYTES)
        try:
            library = Library.from_str(text)
        except Exception as error:  # the library raises plain ones
            reason = f"({str(error)[:200]})"
            raise UserError(f"{folder / SUBWORDS} is not a tokenizer that this version can read {reason}.") from None
        return cls(library, **ids)

    def ending_with(self, text: str) -> SubwordTokenizer:
        """The same, where captions end with this token and not with EOS, which is then padding; if there is such."""
        token = self._tokenizer.token_to_id(text)
        return self if token is None else SubwordTokenizer(self._tokenizer, eos=token, bos=self.eos, pad=self.eos)

    def save(self, folder: Path) -> None:
        files.replace(folder / SUBWORDS, self._tokenizer.to_str().encode())
        _store(folder, {"kind": "subwords", "eos": self.eos, "bos": self.bos, "pad": self.pad})

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def banned_ids(self) -> tuple[int, ...]:
        return tuple(sorted(({self.pad, self.bos} | self._never) - {self.eos}))

    def encode(self, caption: str) -> list[int]:
        if self._ends_with_full_stop:
            caption = caption.rstrip(" .")  # with a space before it, a full stop is another token
        ids = list(self._tokenizer.encode(caption, add_special_tokens=False).ids)
        return ids[: ids.index(self.eos)] if self._ends_with_full_stop and self.eos in ids else ids

    def decode(self, tokens: Sequence[int]) -> str:
        kept = list(tokens[: tokens.index(self.eos)] if self.eos in tokens else tokens)
        specials = {self.pad, self.bos}
        return self._tokenizer.decode([token for token in kept if token not in specials]).strip()


def load(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder, by its kind."""
    kind = _stored(folder).get("kind")
    if kind == "words":
        return WordTokenizer.load(folder)
    if kind == "subwords":
        return SubwordTokenizer.load(folder)
    raise _unreadable(folder)


def of_language_model(folder: Path, end: str = "") -> SubwordTokenizer:
    """The tokenizer of a language model of transformers, from its folder: tokenizer.json, and ids in config.json.

    end  what captions end with, such as a full stop, if there is such a token; the model's own EOS is then the padding
    """
    if not files.is_folder(folder):
        raise UserError(f"data.tokenizer: there is no folder {folder}.")
    config = files.read_json(files.inside(folder, "config.json"))
    special = {name: config.get(f"{name}_token_id") for name in ("eos", "bos", "pad")}
    if isinstance(special["eos"], list) and special["eos"]:  # several, as chat models have
        special["eos"] = special["eos"][0]
    if type(special["eos"]) is not int:
        raise UserError(f"{folder / 'config.json'}: eos_token_id is not a token; a captioner must know how to end.")
    ids = {name: token for name, token in special.items() if type(token) is int}
    tokenizer = SubwordTokenizer.from_library(folder, ids)
    return tokenizer.ending_with(end) if end else tokenizer


def spellings(tokenizer: Tokenizer) -> list[str]:
    """Each token as text: models that share these can be joined."""
    return [tokenizer.decode([token]) for token in range(len(tokenizer))]


def _stored(folder: Path) -> dict[str, Any]:
    data = files.read_bytes(files.inside(folder, VOCABULARY), most=_MOST_BYTES)
    with suppress(ValueError, RecursionError):
        stored = json.loads(data)
        if isinstance(stored, dict):
            return stored
    raise _unreadable(folder)


def _store(folder: Path, content: dict[str, Any]) -> None:
    files.replace(folder / VOCABULARY, (json.dumps(content, ensure_ascii=False) + "\n").encode())


def _unreadable(folder: Path) -> UserError:
    return UserError(f"{folder / VOCABULARY} is not a vocabulary that this version can read.")
