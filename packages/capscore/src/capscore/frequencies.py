"""Document frequencies kept in a file, so that CIDEr can score a single caption, or every data set on one scale.

`coco` is bundled: the captions of 17,721 COCO photos.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore import files
from capscore.errors import UserError
from capscore.ngrams import ROOT, Frequencies, References
from capscore.sentences import Words


@dataclass(frozen=True)
class WordFrequencies:
    words: list[str]  # what the tokens of `ngrams` stand for
    ngrams: Frequencies

    def of_words(self) -> dict[str, int]:
        """In how many documents each word is; a word that is in one may be missing."""
        single = self.ngrams.parents == ROOT
        tokens, counts = self.ngrams.tokens[single], self.ngrams.counts[single]
        return {self.words[token]: count for token, count in zip(tokens.tolist(), counts.tolist(), strict=True)}


def count(documents: Sequence[Sequence[Sequence[str]]]) -> WordFrequencies:
    """Frequencies of the n-grams that are in more than one document; a document is the references of one photo."""
    words = Words()
    references = References(words.join_groups(documents))
    return WordFrequencies(list(words), references.frequencies().pruned())


def save(frequencies: WordFrequencies, path: Path) -> None:
    """One compressed file; n-grams are sorted by their parents, which makes it small."""
    ngrams = _sorted(frequencies.ngrams)
    used = np.unique(ngrams.tokens)
    number = np.zeros(len(frequencies.words), np.int32)
    number[used] = np.arange(len(used))
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        words=np.frombuffer("\n".join(frequencies.words[token] for token in used).encode(), np.uint8),
        documents=np.array(ngrams.documents),
        parents=np.diff(ngrams.parents, prepend=np.int32(ROOT)),
        tokens=number[ngrams.tokens],
        counts=ngrams.counts,
    )
    files.replace(path, buffer.getvalue())


_DAMAGE = (  # what is raised by a file that is no such table; RuntimeError: a ZIP archive that is encrypted
    *(OSError, ValueError, KeyError, EOFError, TypeError, OverflowError, RuntimeError, AttributeError, MemoryError),
    *(zlib.error, zipfile.BadZipFile),
)


def load(path: Path) -> WordFrequencies:
    files.regular(path)
    try:
        with zipfile.ZipFile(path) as members:
            files.refuse_larger(path, sum(info.file_size for info in members.infolist()))
        with np.load(path, allow_pickle=False) as archive:
            words = archive["words"].tobytes().decode().split("\n")
            documents = int(archive["documents"])
            parents, tokens, counts = (archive[key].astype(np.int32) for key in ("parents", "tokens", "counts"))
        parents = parents.cumsum(dtype=np.int32)
        if not _sound(parents, tokens, counts, len(words), documents):
            raise ValueError("numbers out of range")
    except _DAMAGE:
        raise UserError(f"{path}: this is no table of document frequencies, or it is damaged.") from None
    return WordFrequencies(words, Frequencies(documents, parents, tokens, counts))


@cache
def coco() -> WordFrequencies:
    with resources.as_file(resources.files("capscore") / "data" / "coco_frequencies.npz") as path:
        return load(path)


def _sound(
    parents: NDArray[np.int32], tokens: NDArray[np.int32], counts: NDArray[np.int32], words: int, documents: int
) -> bool:
    """Every parent stands before its child, and no number is out of range."""
    own = np.arange(1, len(parents) + 1)
    return (
        len(parents) == len(tokens) == len(counts)
        and documents > 0
        and bool(np.all((parents >= ROOT) & (parents < own) & (tokens >= 0) & (tokens < words) & (counts <= documents)))
    )


def _sorted(ngrams: Frequencies) -> Frequencies:
    """The same n-grams, renumbered: short ones first, then by their parents' numbers and their last tokens."""
    number = np.zeros(len(ngrams.parents) + 1, np.int32)  # old to new
    children = np.zeros(1, np.int32)  # old numbers of the order before
    parts = []
    given = 1
    while len(children):
        of_this_order = np.flatnonzero(np.isin(ngrams.parents, children)) + 1
        parents, tokens = number[ngrams.parents[of_this_order - 1]], ngrams.tokens[of_this_order - 1]
        children = of_this_order[np.lexsort((tokens, parents))].astype(np.int32)
        number[children] = np.arange(given, given + len(children))
        given += len(children)
        parts.append(children)
    order = np.concatenate(parts) - 1
    return Frequencies(ngrams.documents, number[ngrams.parents[order]], ngrams.tokens[order], ngrams.counts[order])
