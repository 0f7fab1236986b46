"""Tables of words and phrases for the alignment: tuples of arrays, as the compiled loops take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = tuple[
    NDArray[np.int32],  # key: words of one key are the same word
    NDArray[np.int32],  # stem
    NDArray[np.int64],  # (V + 1,) where the synonym sets of each begin
    NDArray[np.int64],  # synonym sets, sorted for each word
    NDArray[np.uint64],  # (V,) a bit for each set, to tell at a glance that two words share none
    NDArray[np.bool_],  # function words
]
SpanTable = tuple[
    NDArray[np.int64],  # open addressing: where a phrase is first, as start * longest + length - 1
    NDArray[np.int64],  # where it is next
]
Paraphrases = tuple[
    NDArray[np.uint64],  # phrases, sorted
    int,  # the shift that leaves a phrase's first bits
    NDArray[np.int32],  # where the phrases with given first bits begin
    NDArray[np.int32],  # where the paraphrases of each phrase begin
    NDArray[np.uint64],  # paraphrases
]
