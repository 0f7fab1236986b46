"""A reward against an order of function words that people hardly ever use, such as "a toilet in it on it"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capscore.sentences import Sentences
from capscore.unusual_order import END, WordOrder, roles
from tellapart.data.tokenizers import WordTokenizer
from tellapart.rewards import Reward, SampledCaptions


def roles_of(tokenizer: WordTokenizer) -> list[int]:
    """What each token is to `WordOrder`; what is no word counts as content."""
    role = roles(tokenizer.words)
    role[tokenizer.eos] = END
    return role


class UnusualOrder:
    """Minus the words that people hardly ever use after the three before them: the measure of the same name.

    people how they order words
    role   (V,) what each token is to it
    end    the end token; a caption without one was cut, and is not reproached with how it ends
    """

    def __init__(self, people: WordOrder, role: Sequence[int], *, end: int):
        self._people, self._role, self._end = people, np.array(role), end

    def __call__(self, sampled: SampledCaptions) -> Reward:
        captions = Sentences.rows(sampled.ids.cpu().numpy(), self._end, keep_end=True)
        roles = self._role[captions.tokens].tolist()
        ends = captions.starts + captions.lengths
        each = [roles[start:end] for start, end in zip(captions.starts, ends, strict=True)]
        return Reward(-torch.from_numpy(self._people.unusual(each)).float().to(sampled.words.device))
