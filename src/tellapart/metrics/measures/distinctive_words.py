"""DisWordRate: words that no look-alike's references have, as a share of all words of all captions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, share_of_words


def distinctive_words(
    captions: Sequence[Sequence[str]],
    references: Sequence[Sequence[Sequence[str]]],
    look_alikes: NDArray[np.int64],
) -> Statistics:
    theirs = [
        {word for other in others for text in references[other] for word in text} for others in look_alikes.tolist()
    ]
    return share_of_words("DisWordRate", captions, lambda photo, word: word not in theirs[photo])


DISTINCTIVE_WORDS = Measure(
    (Score("DisWordRate", "Words that nobody uses of the look-alikes, as a share of all words."),),
    lambda inputs: distinctive_words(inputs.words, inputs.reference_words, inputs.look_alikes),
    signature=("look-alikes", "tok", "refs"),
)
