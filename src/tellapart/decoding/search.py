"""Decoding settings that users can choose."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Search:
    """How captions are decoded.

    Example:
        >>> captioner = tellapart.load()
        >>> caption = captioner.caption("holiday/a.jpg", search=tellapart.Search(beam=5, n_best=2))
        >>> [candidate.text for candidate in caption.candidates]
        ['a ...', 'a ...']
    """

    beam: int = 3  # width; made wider where it has no room for what follows
    n_best: int = 1  # captions of a photo that are listed
    min_words: int = 0  # of a caption, at least
    no_repeat: int = 0  # sequences of this many words are not repeated; 0: all may be
    length_penalty: float = 0.0  # 0 ranks captions by the sum of log p, 1 by perplexity
    groups: int = 1  # of a diverse beam search
    diversity: float = 0.5  # penalty for a word that an earlier group has at the same place, in log p

    @property
    def width(self) -> int:
        """Of the beam: at least `n_best`, and the same for all groups."""
        least = max(self.beam, self.n_best)
        return least + -least % self.groups

    def __str__(self) -> str:
        """What captions depend on.  Settings that are as ever go without saying: those of later versions can join."""
        values = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        return " ".join(f"{name}={value}" for name, value, usual in values if name == "beam" or value != usual)
