"""The captions that a model was trained on, for measures of what it repeats."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from capscore import caption_files, data_files, files
from capscore.errors import UserError
from capscore.tokenize.tokenizer import tokenize_file


class TrainingCaptions:
    """A set of captions by their words.

    >>> known = TrainingCaptions([["a", "dog"]])
    >>> ["a", "dog"] in known, ["a", "cat"] in known
    (True, False)
    """

    def __init__(self, captions: Iterable[Sequence[str]]):
        self._captions = {" ".join(words) for words in captions}

    def __contains__(self, words: Sequence[str]) -> bool:
        return " ".join(words) in self._captions

    def __len__(self) -> int:
        return len(self._captions)

    @cached_property
    def signature(self) -> str:
        """How many there are, and which: two sets that are not the same have another one."""
        digest = hashlib.sha256("\n".join(sorted(self._captions)).encode("utf-8", "surrogatepass"))
        return f"{len(self)}-{digest.hexdigest()[:8]}"


def read(sources: str | Path | Sequence[str | Path]) -> TrainingCaptions:
    """The captions of some files: of a data file those of its split "train", or all where it has no splits."""
    texts: list[str] = []
    for source in [sources] if isinstance(sources, str | Path) else sources:
        path = Path(source)
        content = files.read_json_value(path)
        found = caption_files.references_from(content, path, "train" if _has_splits(content) else None)
        texts += [text for captions in found.by_id.values() for text in captions]
    if not texts:
        raise UserError("the files of training captions hold no caption.")
    return TrainingCaptions(tokenize_file(texts))


def _has_splits(content: Any) -> bool:
    records = [content.get(kind) for kind in data_files.KINDS] if isinstance(content, Mapping) else []
    return any(
        isinstance(record, Mapping) and record.get("split")
        for one in records
        if isinstance(one, list)
        for record in one
    )
