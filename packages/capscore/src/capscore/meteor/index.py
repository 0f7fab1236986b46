"""METEOR's synonyms and paraphrases as arrays of numbers: made once from the installed data and kept in a cache.

Words and phrases are 64-bit numbers, so that the paraphrases need neither strings nor a vocabulary.  They hold 2.6
million phrases: the chance that two of them, or one and a phrase of a caption, get the same number is below one in a
million for a whole benchmark.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore import system
from capscore.compiled import compiled
from capscore.errors import UserError
from capscore.files import replace
from capscore.meteor.alignment import Ints, Longs, Phrases
from capscore.progress import Progress
from capscore.words import ENDINGS

Bytes = NDArray[np.uint8]

_FNV_START = np.uint64(0xCBF29CE484222325)
_FNV_FACTOR = np.uint64(0x100000001B3)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_MIX_SHIFT = np.uint64(33)
_NEXT_WORD = np.uint64(0x9E3779B97F4A7C15)  # odd: a phrase's number is a polynomial in it over the words' numbers

_BLANK, _TAB, _NEWLINE, _FORM_FEED, _RETURN = 32, 9, 10, 12, 13


def of_words(words: Sequence[str]) -> Phrases:
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
def _of_spelt(text: Bytes, edges: Longs) -> Phrases:
    numbers = np.empty(len(edges) - 1, np.uint64)
    for word in range(len(numbers)):
        number = _FNV_START
        for at in range(edges[word], edges[word + 1]):
            number = (number ^ np.uint64(text[at])) * _FNV_FACTOR
        numbers[word] = _finished(number)
    return numbers


@compiled
def of_paraphrases(text: Bytes, count: int) -> tuple[Phrases, Phrases, int]:
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
def of_spans(words: Phrases, edges: Longs, longest: int) -> Phrases:
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


_FORMAT = 1  # of the cache file: another number rebuilds every cache
_ADVICE = "METEOR needs the synonyms and paraphrases that come with pycocoevalcap: pip install 'capscore[meteor]'."
_JAR, _PARAPHRASES = "meteor-1.5.jar", "data/paraphrase-en.gz"
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)  # or no file at all
_SYNSETS, _EXCEPTIONS = "synonym/english.synsets", "synonym/english.exceptions"
_FUNCTION_WORDS, _PREFIXES = "function/english.words", "nonbreaking/english.prefixes"


@dataclass(frozen=True)
class Index:
    words: Phrases  # (K,) sorted: the words that WordNet knows, and their irregular forms
    own: Ints  # (K, 2) the synonym sets of each: from, to in `sets`
    all: Ints  # (K, 2) these and those of its base forms
    sets: Ints
    phrases: Phrases  # (S,) sorted: those that have paraphrases
    buckets: Ints  # (2^b + 1,) where the phrases begin whose first b bits are 0, 1, ...
    edges: Ints  # (S + 1,) where the paraphrases of each phrase begin
    paraphrases: Phrases
    longest: Longs  # () words of the longest phrase or paraphrase

    @property
    def shift(self) -> int:
        """Shifted by this, of a number's 64 bits the first b are left."""
        return 65 - (len(self.buckets) - 1).bit_length()


def available() -> str | None:
    """None if METEOR can be computed here, otherwise the sentence that says what is missing."""
    folder = _installed()
    return None if folder and all((folder / name).is_file() for name in (_JAR, _PARAPHRASES)) else _ADVICE


def data_folder() -> Path:
    """The folder in which pycocoevalcap keeps METEOR's data."""
    folder = _installed()
    if not folder or available():
        raise UserError(_ADVICE)
    return folder


def _installed() -> Path | None:
    package = system.package("pycocoevalcap")
    return package / "meteor" if package else None


def load_index(folder: Path) -> Index:
    """From the cache if it is there and whole, otherwise from the data, which fills the cache."""
    name = f"meteor-{_FORMAT}-{_version(folder)}.npz"
    temporary = Path(tempfile.gettempdir()) / f"capscore-{system.user()}"  # for a home that cannot be written to
    cache = system.cache()
    for place in (cache, temporary if _is_private(temporary) else None):
        if place:
            with suppress(*_DAMAGE):
                return _read(place / name)
    index = _build(folder)
    data = io.BytesIO()
    np.savez(data, **{field.name: getattr(index, field.name) for field in fields(Index)})
    if cache:
        with suppress(UserError):
            replace(cache / name, data.getvalue())
            return index
    with suppress(OSError, UserError):
        temporary.mkdir(mode=0o700, exist_ok=True)
        if _is_private(temporary):
            replace(temporary / name, data.getvalue())
    return index


def small_lists(folder: Path) -> tuple[frozenset[str], dict[str, bool]]:
    """The function words, and the abbreviations that keep their dot."""
    with _opened(folder) as jar:
        return frozenset(_text(jar, _FUNCTION_WORDS).splitlines()), read_prefixes(_text(jar, _PREFIXES))


def read_prefixes(text: str) -> dict[str, bool]:
    """The list of abbreviations in the format of Moses: one a line, remarks after #."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return {line[0]: line[1:2] == ["#NUMERIC_ONLY#"] for line in lines}


def base_forms(word: str) -> Iterator[str]:
    """Possible base forms of a regular word, most likely first."""
    if word.endswith("ss") or len(word) <= 2:
        yield word
        return
    for suffix, ending in ENDINGS:
        if word.endswith(suffix):
            yield word.removesuffix(suffix) + ending


@contextmanager
def _opened(folder: Path) -> Iterator[zipfile.ZipFile]:
    path = folder / _JAR
    try:
        with zipfile.ZipFile(path) as jar:
            yield jar
    except (OSError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _unreadable(path, error) from None


def _text(jar: zipfile.ZipFile, name: str) -> str:
    return jar.read(name).decode("utf-8", "replace")


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: METEOR's data cannot be read ({error}); install pycocoevalcap again.")


def _version(folder: Path) -> str:
    """Changes with the data: both kinds of archive carry checksums of their contents, so nothing is read in full."""
    with _opened(folder) as jar:
        checksums: list[int | str] = [jar.getinfo(name).CRC for name in (_SYNSETS, _EXCEPTIONS)]
    path = folder / _PARAPHRASES
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 8, 0))
            checksums += [size, file.read().hex()]
    except OSError as error:
        raise _unreadable(path, error) from None
    return hashlib.sha256(json.dumps(checksums).encode()).hexdigest()[:16]


def _is_private(folder: Path) -> bool:
    """True if no other user can have put a file there."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == system.user() and not state.st_mode & 0o022


def _read(path: Path) -> Index:
    with np.load(path, allow_pickle=False) as arrays:
        index = Index(**{field.name: arrays[field.name] for field in fields(Index)})
    sound = (
        index.own.shape == index.all.shape == (len(index.words), 2)
        and len(index.edges) == len(index.phrases) + 1
        and index.edges[-1] == len(index.paraphrases)
        and index.buckets[-1] == len(index.phrases)
        and max(index.own.max(initial=0), index.all.max(initial=0)) <= len(index.sets)
    )
    if not sound:
        raise ValueError("the arrays do not fit together")
    return index


def _build(folder: Path) -> Index:
    words, own, all_sets, sets = _synonyms(folder)
    text = _unpacked(folder / _PARAPHRASES)
    phrases, paraphrases, longest = of_paraphrases(
        np.frombuffer(text, np.uint8), (text.count(b"\n") + (not text.endswith(b"\n") and bool(text))) // 3
    )
    order = np.argsort(phrases, kind="stable")  # paraphrases of one phrase stay in the order of the file
    distinct, first = np.unique(phrases[order], return_index=True)
    bits = max(len(distinct).bit_length(), 1)
    starts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
    return Index(
        words=words,
        own=own,
        all=all_sets,
        sets=sets,
        phrases=distinct,
        buckets=np.append(np.searchsorted(distinct, starts), len(distinct)).astype(np.int32),
        edges=np.append(first, len(phrases)).astype(np.int32),
        paraphrases=paraphrases[order],
        longest=np.array(longest, np.int64),
    )


def _unpacked(path: Path) -> bytearray:
    try:
        size = path.stat().st_size
        text = bytearray()
        with (
            path.open("rb") as packed,
            gzip.open(packed) as file,
            Progress("METEOR's paraphrases, read once", size >> 20, unit="megabyte") as bar,
        ):
            while piece := file.read(1 << 24):
                text += piece
                bar.advance((packed.tell() >> 20) - bar.done)
        if not text:
            raise EOFError("it is empty")
        return text
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None


def _synonyms(folder: Path) -> tuple[Phrases, Ints, Ints, Ints]:
    """WordNet's words, each with the numbers of its synonym sets, as the first four arrays of the index."""
    with _opened(folder) as jar:
        lines = _text(jar, _SYNSETS).split("\n")
        own = {
            word: sorted({int(number) for number in numbers.split()})
            for word, numbers in zip(lines[::2], lines[1::2], strict=False)
        }
        lines = _text(jar, _EXCEPTIONS).split("\n")
    bases: dict[str, list[str]] = {}
    for base, forms in zip(lines[::2], lines[1::2], strict=False):
        for form in forms.split():
            bases.setdefault(form, []).append(base)
    pool: list[int] = []

    def stretch(numbers: list[int]) -> tuple[int, int]:
        pool.extend(numbers)
        return len(pool) - len(numbers), len(pool)

    listed = sorted(word for word in own.keys() | bases.keys() if "_" not in word)  # METEOR looks up single words
    slices, all_slices = [], []
    for word in listed:
        of_word = own.get(word, [])
        regular = next((base for base in base_forms(word) if base in own), "")
        together = {number for base in bases.get(word, [regular]) for number in own.get(base, [])}.union(of_word)
        slices.append(stretch(of_word))
        all_slices.append(slices[-1] if len(together) == len(of_word) else stretch(sorted(together)))
    numbers = of_words(listed)
    order = np.argsort(numbers)
    return (
        numbers[order],
        np.array(slices, np.int32).reshape(-1, 2)[order],
        np.array(all_slices, np.int32).reshape(-1, 2)[order],
        np.array(pool, np.int32),
    )
