"""CIDErBtw (Wang et al., 2020): CIDEr-D of a caption against its look-alikes' references; less is better."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.statistics import Statistics, mean_of

if TYPE_CHECKING:
    from tellapart.metrics.ngrams import References
    from tellapart.metrics.sentences import Sentences


def cider_between(captions: Sentences, references: References, look_alikes: NDArray[np.int64]) -> Statistics:
    from tellapart.metrics.cider import cider_d

    photos, k = look_alikes.shape
    each = cider_d(captions[np.repeat(np.arange(photos), k)], look_alikes.ravel(), references)
    return mean_of("CIDErBtw", each.reshape(photos, k).mean(1) if k else np.zeros(photos))


CIDER_BETWEEN = Measure(
    (Score("CIDErBtw", "Agreement with people's captions of the look-alikes (CIDEr-D).", False),),
    lambda inputs: cider_between(inputs.captions_split, inputs.references, inputs.look_alikes),
    signature=("look-alikes", "df", "tok", "refs"),
)
