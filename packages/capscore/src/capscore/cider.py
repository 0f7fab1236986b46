"""CIDEr and CIDEr-D (Vedantam et al., 2015): how well a caption agrees with the references, by rare n-grams.

CIDEr-D, which the field's leaderboards call "CIDEr", counts no n-gram more often than the reference has it, and has a
penalty on the difference in length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capscore.ngrams import References
from capscore.sentences import Sentences

SIGMA = 6.0  # of the length penalty, in words
_SCALE = 10.0


def cider_d(captions: Sentences, photos: NDArray[np.int64], references: References) -> NDArray[np.float64]:
    """(N,) on the scale of the COCO evaluation: 1.2 is what papers print as 120.  Caption i is of photo `photos[i]`."""
    return _SCALE * references.cosines(captions, photos, clip=True, sigma=SIGMA)


def cider(captions: Sentences, photos: NDArray[np.int64], references: References) -> NDArray[np.float64]:
    return _SCALE * references.cosines(captions, photos, clip=False, sigma=np.inf)


def cider_between(captions: Sentences, references: References, look_alikes: NDArray[np.int64]) -> NDArray[np.float64]:
    """CIDErBtw (Wang et al., 2020): (N,) CIDEr-D of a caption against its look-alikes' references; less is better."""
    photos, k = look_alikes.shape
    each = cider_d(captions[np.repeat(np.arange(photos), k)], look_alikes.ravel(), references)
    return each.reshape(photos, k).mean(1) if k else np.zeros(photos)
