"""Which words may come next: what greedy, sampled and searched captions keep to, whatever the captioner prefers.

banned      words that are never said
min_words   EOS is not said before so many words; where nothing else may be said it is, so that there is always a way on
no_repeat   no sequence of so many words is said twice: with 1 no word, with 2 no pair of neighbours.  EOS is exempt

A rule looks only at the words said so far, so it holds for hypotheses of a beam in whatever order they stand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Constraints:
    banned: Tensor  # (W,) word ids
    eos: int
    min_words: int
    no_repeat: int  # 0: everything may be said again

    @classmethod
    def of(
        cls, banned: Iterable[int], *, eos: int, max_words: int, min_words: int, no_repeat: int, device: torch.device
    ) -> Constraints:
        words = sorted(set(banned))
        if eos in words:  # EOS stays allowed, so that a caption always has a way on
            raise ValueError(f"EOS ({eos}) cannot be banned")
        if max_words < 1:
            raise ValueError(f"max_words must be at least 1, not {max_words}")
        if not 0 <= min_words <= max_words:
            raise ValueError(f"min_words must be from 0 to max_words ({max_words}), not {min_words}")
        if no_repeat < 0:
            raise ValueError(f"no_repeat must be 0 (no constraint) or more, not {no_repeat}")
        return cls(torch.tensor(words, dtype=torch.long, device=device), eos, min_words, no_repeat)

    def rule_out_(self, logits: Tensor, said: Tensor) -> Tensor:
        """Put -inf, in place, where a word may not follow.

        logits  (N, V)  of the next word, normalised or not
        said    (N, t)  the words so far, without BOS
        """
        logits.index_fill_(1, self.banned, -torch.inf)
        if self.no_repeat and said.shape[1] >= self.no_repeat:
            logits.masked_fill_(self._said_before(said, logits.shape[1]), -torch.inf)
        if said.shape[1] < self.min_words:
            ending = logits[:, self.eos].clone()
            logits[:, self.eos] = -torch.inf
            logits[:, self.eos] = ending.where((logits == -torch.inf).all(1), -torch.inf)
        return logits

    def _said_before(self, said: Tensor, vocab_size: int) -> Tensor:
        """(N, V) True at the words that would complete a sequence which is there already"""
        *_, length = said.shape
        sequences = said.unfold(1, self.no_repeat, 1)  # (N, S, no_repeat)
        begun = said[:, length - self.no_repeat + 1 :]  # (N, no_repeat - 1) what the next word would complete
        same = (sequences[:, :, :-1] == begun[:, None]).all(2)  # (N, S)
        words = sequences[:, :, -1].where(same, self.eos)  # EOS, which is exempt, stands for none
        found = torch.zeros(len(said), vocab_size, dtype=torch.bool, device=said.device).scatter_(1, words, True)
        found[:, self.eos] = False
        return found
