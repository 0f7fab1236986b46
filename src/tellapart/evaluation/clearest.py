"""Which photos show best what a model adds to another: its caption differs, and the references confirm it.

A page that opens with two equal captions, or with a false one, says nothing of either model.  So photos can be put in
this order, by data alone; a page that does so says it, and shows the other photos too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capscore.stop_words import STOP_WORDS
from tellapart.data.tokenizers import split_words
from tellapart.evaluation.pages.cards import Card


@dataclass(frozen=True, order=True)
class Clarity:
    """What speaks for a photo.  Compared field by field, the first that differs decides; more is better.

    differs    the two captions are not of the same words
    right      references have every content word of the model's caption, and it agrees with them at least as well
    found      text to text finds the photo by it; where that was not measured, nothing is held against it
    telling    how many of these words are in neither the other caption nor the model's captions of the look-alikes
    found_now  text to text does not find the photo by the other caption
    gain       of agreement with the references, CIDEr-D
    """

    differs: bool
    right: bool
    found: bool
    telling: int
    found_now: bool
    gain: float

    @property
    def is_clear(self) -> bool:
        return self.differs and self.right and self.found and self.telling > 0


def clarity(card: Card, model: str, base: str, *, by: str, gain: float = 0.0) -> Clarity:
    """Of the lines of a card that have these names; `by` is the column with places by text to text."""
    ours, theirs = (next(line for line in card.lines if line.name == name) for name in (model, base))
    words, others = (frozenset(split_words(line.caption)) for line in (ours, theirs))
    content = words - STOP_WORDS
    known = frozenset(word for text in card.references for word in split_words(text))
    places = [line.figures.get(by) for line in (ours, theirs)]
    return Clarity(
        differs=words != others,
        right=bool(content) and content <= known and gain >= 0,
        found=places[0] is None or places[0] == 1,
        telling=len((content & known) - others - ours.of_look_alikes),
        found_now=places[0] == 1 and places[1] != 1,
        gain=gain,
    )


def positions(found: Sequence[Clarity]) -> list[int]:
    """The place of each photo when the clearest are first; equal ones keep their order."""
    order = sorted(range(len(found)), key=lambda number: found[number], reverse=True)
    return [place for place, _ in sorted(enumerate(order), key=lambda pair: pair[1])]
