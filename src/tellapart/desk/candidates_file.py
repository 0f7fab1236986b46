"""Captions of other programs, to choose from: JSON lines of {"file", "captions": [...], "logprobs": [...]}.

`logprobs` may be absent.  A `file` is named as in the request, or relative to the candidates file.
The rows of `caption --n-best` are read too: their captions are {"caption", "logprob"}, and a photo may have an "error".
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capscore import files
from capscore.errors import UserError
from capscore.printable import counted
from capscore.tables import json_rows
from tellapart.data.captions import Candidate, Proposed
from tellapart.data.examples import clean
from tellapart.data.media import photos
from tellapart.data.tokenizers import split_words
from tellapart.errors import BadPhoto

if TYPE_CHECKING:
    from tellapart.captioning.rerank import Scene

_LONGEST = 2000  # characters of a caption


class CandidatesFile:
    """A `Proposer` of captions that were made elsewhere."""

    def __init__(self, path: Path):
        """Lines that cannot be used are left out; `problems` has a sentence for each."""
        self.path = path
        text = files.read_text(path)
        self.identity = hashlib.sha256(text.encode()).hexdigest()
        self._candidates: dict[str, list[Candidate]] = {}
        _, broken = json_rows((line.encode() for line in text.split("\n")), self._add)
        if not self._candidates:
            raise UserError(f"{path}: {broken[0]}." if broken else f"{path}: there are no captions in it.")
        self.problems = [f"{path}: {line}; it is left out" for line in broken]
        self._real: dict[str, str] = {}
        for name in self._candidates:
            same = self._real.setdefault(self._place(name), name)
            if same != name:
                raise UserError(f"{path}: {same!r} and {name!r} are the same photo.")

    def _add(self, row: object) -> None:
        name, candidates = _row(row)
        if name in self._candidates:
            raise ValueError(f"there are captions of {name!r} in an earlier line")
        self._candidates[name] = candidates

    def propose(self, wanted: Iterable[str], scene: Scene | None = None) -> Iterator[Proposed]:
        """The candidates of each photo, in order; a photo without any has an error."""
        for file in wanted:
            candidates = self._candidates.get(file) or self._candidates.get(self._real.get(self._place(file), ""), [])
            if not candidates:
                yield Proposed(file, error=f"there is no caption of it in {self.path}")
                continue
            try:
                yield Proposed(file, candidates, sha256=photos.sha256(file))
            except BadPhoto as error:
                yield Proposed(file, error=error.reason)

    def unused(self, wanted: Collection[str]) -> list[str]:
        """A sentence on photos of the file that were not asked for, if there are any."""
        asked = {self._place(file) for file in wanted} | set(wanted)
        names = [name for name in self._candidates if name not in asked and self._place(name) not in asked]
        shown = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
        return [f"{self.path}: has captions of {counted(len(names), 'other photo')}: {shown}"] if names else []

    def _place(self, file: str) -> str:
        """One name for a file, whether it is named from here or from where the candidates lie."""
        try:
            here = files.real(Path(file))
            beside = files.real(self.path.parent / file)
        except ValueError:  # a NUL byte
            return file
        return str(here if files.is_file(here) or not files.is_file(beside) else beside)


def _row(row: Any) -> tuple[str, list[Candidate]]:
    if not isinstance(row, dict):
        raise ValueError(f"must be an object, not {files.type_of(row)}")
    name, captions, logprobs = row.get("file"), row.get("captions"), row.get("logprobs")
    if not isinstance(name, str) or not name:
        raise ValueError('"file" must be the name of a photo')
    if captions is None and isinstance(row.get("error"), str):
        return name, []
    if captions and isinstance(captions, list) and all(isinstance(caption, dict) for caption in captions):
        logprobs = [caption.get("logprob") for caption in captions]
        captions = [caption.get("caption") for caption in captions]
    if not isinstance(captions, list) or not all(isinstance(caption, str) for caption in captions):
        raise ValueError('"captions" must be a list of strings, or of objects with a "caption"')
    if logprobs is None:
        logprobs = [math.nan] * len(captions)
    if not isinstance(logprobs, list) or len(logprobs) != len(captions) or not all(map(_is_logprob, logprobs)):
        raise ValueError('"logprobs" must be a list of numbers up to 0, one for each caption')
    texts: dict[str, Candidate] = {}
    for caption, logp in zip(map(clean, captions), logprobs, strict=True):
        if len(caption) > _LONGEST:
            raise ValueError(f"a caption has {len(caption)} characters; {_LONGEST} is the most we read")
        if any(map(str.isalnum, caption)):
            tokens = len(split_words(caption)) + 1
            texts.setdefault(caption, Candidate(caption, math.nan if logp is None else float(logp), tokens))
    return name, list(texts.values())


def _is_logprob(value: Any) -> bool:
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return value is None
    return -sys.float_info.max <= value <= 0 or value != value  # a whole number may be too large for a float
