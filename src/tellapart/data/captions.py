"""Candidate captions of a photo, and the caption that was chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tellapart.data.examples import segment_of

PROMPT = "Write a caption for this photo: one plain sentence that says what can be seen. Answer with the caption only."


@dataclass(frozen=True)
class Candidate:
    text: str
    logp: float = math.nan  # log p(caption | photo), EOS included; NaN where it is unknown
    tokens: int = 0  # words and EOS


@dataclass(frozen=True)
class Proposed:
    """Captions of one photo to choose from, the best by itself first, or why there are none."""

    file: str
    candidates: list[Candidate] = field(default_factory=list)
    error: str = ""
    sha256: str = ""  # of the photo's bytes
    may_pass: bool = False  # the error: a server gave no answer, and may give one to the next run


@dataclass(frozen=True)
class Caption:
    """The caption of one photo, or why there is none.

    Example:
        >>> caption = tellapart.load().caption("holiday/a.jpg")
        >>> caption.file, caption.text, caption.error
        ('holiday/a.jpg', 'a ...', '')
    """

    file: str
    text: str = ""
    logprob: float = math.nan  # log p(caption | photo), EOS included; NaN where it is unknown
    error: str = ""
    sha256: str = ""  # of the photo's bytes
    look_alikes: tuple[str, ...] | None = None  # files that it was told apart from, the most similar first
    gap: float = math.nan  # how much better the caption fits the photo than them, by the retriever's cosine (GEG-Avg)
    candidates: tuple[Candidate, ...] = ()  # where several were asked for: all of them, the best (`text`) first
    attributes: tuple[tuple[str, float], ...] | None = None  # where asked for: words that the captioner was given
    near_duplicates: tuple[str, ...] = ()  # files that it need not be told apart from: other frames of a burst, edits

    def row(self) -> dict[str, Any]:
        """As commands write it: file, caption and log p (and what else was asked for), or file and error."""
        if self.error:
            return {"file": self.file, "error": self.error}
        row: dict[str, Any] = {"file": self.file, "caption": self.text, "logprob": _or_none(self.logprob)}
        if (segment := segment_of(self.file)) is not None:
            row |= {"start": segment.start, "end": segment.end}
        if self.candidates:
            row["captions"] = [{"caption": other.text, "logprob": _or_none(other.logp)} for other in self.candidates]
        if self.look_alikes is not None:
            row |= {"look_alikes": list(self.look_alikes), "gap": _or_none(self.gap)}
        if self.attributes is not None:
            row["attributes"] = [{"word": word, "probability": round(chance, 4)} for word, chance in self.attributes]
        if self.near_duplicates:
            row["near_duplicates"] = list(self.near_duplicates)
        return row


def _or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value
