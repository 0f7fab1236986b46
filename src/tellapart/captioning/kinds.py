"""Which captions photos may share: copies do, frames of a burst may, look-alikes must not.

copies       the same bytes, or features that are equal: another file of the same picture.  They get one caption
bursts       near-duplicates: frames of a burst, edits.  Each has its own caption, which may be another one's (`own`);
             or all have that of the first (`share`); or that with what only this frame shows (`stem`)
look-alikes  other photos that are similar.  A caption that one of them has is not chosen while there is another one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from capscore.stop_words import content
from tellapart.data.captions import Candidate, Caption
from tellapart.data.tokenizers import split_words

Bursts = Literal["own", "share", "stem"]
COPIES_ABOVE = 0.9999  # cosine of pooled features; what is decoded from the same picture differs by rounding only


@dataclass
class Chosen:
    """The captions that photos of a collection have so far, by their places there."""

    captions: dict[int, Caption] = field(default_factory=dict)
    stems: dict[int, str] = field(default_factory=dict)  # what the frames of a burst share, by the place of each
    _order: dict[int, int] = field(default_factory=dict)
    _places: dict[tuple[str, ...], list[int]] = field(default_factory=dict)  # by the words of the caption

    def add(self, place: int, caption: Caption, stem: str = "") -> None:
        self.captions[place] = caption
        self.stems[place] = stem or caption.text
        self._order.setdefault(place, len(self._order))
        self._places.setdefault(_words(caption.text), []).append(place)

    def with_caption(self, text: str) -> list[int]:
        return self._places.get(_words(text), [])

    def first(self, places: Sequence[int]) -> int | None:
        """The one of these that was the first to get a caption."""
        return min((place for place in places if place in self._order), key=self._order.__getitem__, default=None)


def _words(text: str) -> tuple[str, ...]:
    return tuple(split_words(text))


def with_difference(stem: str, own: Sequence[Candidate], others: Sequence[str]) -> str:
    """The stem, and what the first of these candidates adds to it that no other frame's caption has.

    >>> with_difference("a dog on a beach", [Candidate("a dog on a beach with a red ball")], ["a dog on a beach"])
    'a dog on a beach (red, ball)'
    """
    known = {word for text in (stem, *others) for word in split_words(text)}
    for candidate in own:
        if new := [word for word in dict.fromkeys(content(split_words(candidate.text))) if word not in known]:
            return f"{stem} ({', '.join(new)})"
    return f"{stem} (frame {len(others) + 1})" if others else stem


def copied(caption: Caption, other: Caption) -> Caption:
    """The same words for another photo, which keeps what is its own."""
    return replace(other, text=caption.text, logprob=caption.logprob)
