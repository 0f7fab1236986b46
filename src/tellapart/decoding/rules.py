"""How users want captions decoded (`Search`), and which words may follow (`Rules`), however probable others are.

A rule depends only on the words so far, so it holds for hypotheses of a beam in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import Tensor

from tellapart.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Search:
    """Settings of decoding.

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
        """Width of the beam: at least `n_best`, and the same for all groups."""
        least = max(self.beam, self.n_best)
        return least + -least % self.groups

    def __str__(self) -> str:
        """Settings that captions depend on, but for those with their default: new ones can join."""
        values = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        return " ".join(f"{name}={value}" for name, value, usual in values if name == "beam" or value != usual)


@dataclass(frozen=True)
class Rules:
    """The words that captions begin and end with, how long they may be, and which are not allowed.

    Example:
        >>> rules = Rules.of(model.tokenizer, max_words=16, no_repeat=2)
        >>> beam_search(model.captioner, memory, rules, beam=5)
    """

    bos: int
    eos: int
    pad: int
    banned: tuple[int, ...] = ()  # words that are never chosen
    max_words: int = 20  # of a caption, EOS counted; one that is cut there has no EOS
    min_words: int = 0  # EOS not counted; where no other word is allowed EOS is, so that a caption can always end
    no_repeat: int = 0  # no sequence of this many words occurs twice, EOS exempt; 0: all may be repeated
    length_penalty: float = 0.0  # of a beam: 0 ranks by the sum of log p; 1 by its mean, which is by perplexity

    def __post_init__(self) -> None:
        if self.eos in self.banned:  # EOS stays allowed, so that a caption always has a way on
            raise ValueError(f"EOS ({self.eos}) cannot be banned")
        if self.max_words < 1:
            raise ValueError(f"max_words must be at least 1, not {self.max_words}")
        if not 0 <= self.min_words <= self.max_words:
            raise ValueError(f"min_words must be from 0 to max_words ({self.max_words}), not {self.min_words}")
        if self.no_repeat < 0:
            raise ValueError(f"no_repeat must be 0 (no constraint) or more, not {self.no_repeat}")

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        *,
        max_words: int = 20,
        min_words: int = 0,
        no_repeat: int = 0,
        length_penalty: float = 0.0,
    ) -> Rules:
        """With the special words of a tokenizer."""
        banned, special = tuple(tokenizer.banned_ids), (tokenizer.bos, tokenizer.eos, tokenizer.pad)
        return cls(*special, banned, max_words, min_words, no_repeat, length_penalty)

    def rule_out_(self, logits: Tensor, prefix: Tensor) -> Tensor:
        """Put -inf, in place, where a word may not follow.

        logits  (N, V)  of the next word, normalised or not
        prefix  (N, t)  the words so far, without BOS
        """
        logits.index_fill_(1, _ids(self.banned, logits.device), -torch.inf)
        if self.no_repeat and prefix.shape[1] >= self.no_repeat:
            logits.masked_fill_(self._repeated(prefix, logits.shape[1]), -torch.inf)
        if prefix.shape[1] < self.min_words:
            ending = logits[:, self.eos].clone()
            logits[:, self.eos] = -torch.inf
            logits[:, self.eos] = ending.where((logits == -torch.inf).all(1), -torch.inf)
        return logits

    def _repeated(self, prefix: Tensor, vocab_size: int) -> Tensor:
        """(N, V) True at the words that would complete a sequence which is there already"""
        *_, length = prefix.shape
        sequences = prefix.unfold(1, self.no_repeat, 1)  # (N, S, no_repeat)
        begun = prefix[:, length - self.no_repeat + 1 :]  # (N, no_repeat - 1) what the next word would complete
        same = (sequences[:, :, :-1] == begun[:, None]).all(2)  # (N, S)
        words = sequences[:, :, -1].where(same, self.eos)  # EOS, which is exempt, stands for none
        repeated = torch.zeros(len(prefix), vocab_size, dtype=torch.bool, device=prefix.device).scatter_(1, words, True)
        repeated[:, self.eos] = False
        return repeated


@lru_cache(maxsize=16)
def _ids(words: tuple[int, ...], device: torch.device) -> Tensor:
    """Different words, where the captioner is; not made for inference, as gradients flow through what they change."""
    with torch.inference_mode(False):
        return torch.tensor(sorted(set(words)), dtype=torch.long, device=device)
