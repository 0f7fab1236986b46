"""A reward for naming what a detector sees in the photo, and against naming what it does not see."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from capscore.objects import mentions
from capscore.sentences import Sentences
from tellapart.data.tokenizers import WordTokenizer, split_words
from tellapart.rewards import Reward, SampledCaptions


class Objects:
    """+1 for each object word whose object the detector sees, -1 for each whose object it does not; their mean.

    seen        of each photo, the classes of COCO that are perhaps in it, by number (`metrics.objects.WEAK`); none
                where the detector failed: captions of such a photo get 0
    vocabulary  of the captions' word ids

    The object words are those of ObjPrec, of which this is 2 * ObjPrec - 1 by caption: each occurrence counts, and
    words that may mean something else ("orange") do not.  The mean and not the sum, so that a caption earns nothing by
    listing objects.  A caption that names none gets 0: better than a wrong one, worse than a right one.
    """

    def __init__(self, seen: Sequence[Collection[int] | None], vocabulary: WordTokenizer):
        self._seen, self._vocabulary = seen, vocabulary

    def __call__(self, sampled: SampledCaptions) -> Reward:
        rewards = [
            self._reward(words, self._seen[photo])
            for words, photo in zip(self._words(sampled), sampled.photos.tolist(), strict=True)
        ]
        return Reward(torch.tensor(rewards, dtype=torch.float32, device=sampled.words.device))

    def _words(self, sampled: SampledCaptions) -> list[list[str]]:
        if sampled.texts is not None:  # of sub-words: words that no reference has are known only there
            return [split_words(text) for text in sampled.texts]
        captions = Sentences.rows(sampled.ids.cpu().numpy(), self._vocabulary.eos, keep_end=False)
        words, ends = self._vocabulary.words, captions.starts + captions.lengths
        rows = (captions.tokens[start:end].tolist() for start, end in zip(captions.starts, ends, strict=True))
        return [[words[token] for token in row] for row in rows]

    @staticmethod
    def _reward(words: Sequence[str], seen: Collection[int] | None) -> float:
        named = [set(one.classes) for one in mentions(words) if one.sure]
        if seen is None or not named:
            return 0.0
        return sum(1 if classes.intersection(seen) else -1 for classes in named) / len(named)
