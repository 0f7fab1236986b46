"""From which similarity on two photos look alike, and from which on they are nearly the same.

Both depend on whose vectors are compared, so the numbers stand in tables, by the hash of the weights that they were
measured with.  `scripts/calibrate_look_alikes.py` measures them; docs/look_alikes.md says how and what was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tellapart.encoders import PhotoEncoder
    from tellapart.neighbours.groups import By

Calibrated = Literal["calibrated"]

_WORD = "4216e478989c8fa97cab7f30086477eb8b043eff70e3e1e31df0c0d90baa4155"
_JUDGE = "97203d076e4343e2f069726f246acfe22eb9735d2326917494e428ca6e492ce3"
_LITE2 = "1219fa661b9e76f7c0de384f985be929d5cbaa6b7d4912f4db456c3924cf6633"
_TUNED = "ac1caa22f7ebe7a51198579c79386ad911200d94573b24f0a8d47d99ec14ee73"
_LITE0 = "06a4248e61f69195dae91c2a10b1503640efff7d4db1fc32aed2fe30b44e7eb2"

# Cosines: of the pairs of photos above, half could share a caption.
ALIKE_ABOVE: dict[tuple[str, By], float] = {
    (_WORD, "image"): 0.66,
    (_WORD, "caption"): 0.68,
    (_JUDGE, "image"): 0.65,
    (_JUDGE, "caption"): 0.65,
    (_LITE2, "image"): 0.61,
    (_TUNED, "image"): 0.64,
    (_LITE0, "image"): 0.63,
}
QUANTILE = 0.995  # of the pairs of a collection, for vectors that are not in the table: what those amount to
ENOUGH = 50  # photos; the quantile of fewer says nothing
_SAMPLE = 1000  # photos that it is taken from

# Cosines of pooled features, by weights and pixels a side: no pair of different photos is above, and most pairs of
# frames of a burst are.
DUPLICATES_ABOVE = {(_TUNED, 256): 0.94, (_LITE2, 256): 0.93, (_LITE0, 224): 0.9, (_LITE0, 256): 0.9}
OTHERWISE = 0.95  # for encoders that are not in the table
EMBEDDED_ALIKE, EMBEDDED_DUPLICATES = ALIKE_ABOVE[_WORD, "image"], DUPLICATES_ABOVE[_TUNED, 256]  # for `--help`


def duplicates_above(encoder: PhotoEncoder | None) -> float:
    """The cosine of an encoder's pooled features above which two photos are near-duplicates."""
    if encoder is None:
        return OTHERWISE
    return DUPLICATES_ABOVE.get((encoder.weights_sha256, encoder.config.image_size), OTHERWISE)


def sampled(count: int) -> NDArray[np.int64]:
    """Which of a collection's photos its quantile is taken from: all, or some that are spread evenly."""
    import numpy as np

    return np.unique(np.linspace(0, max(count - 1, 0), min(count, _SAMPLE)).astype(np.int64))


def quantile_of_pairs(scores: NDArray[np.floating], different: NDArray[np.bool_], *, distances: bool) -> float | None:
    """What only the most similar pairs of a collection reach; None where it is too small to tell.

    scores     (n, n) of some photos with each other, 0 where there is none, such as of a photo without a caption
    different  (n, n) False where two are copies or near-duplicates, which must not count: bursts would raise the bar
    """
    import numpy as np

    if len(scores) < ENOUGH:
        return None
    pairs = scores[different & ~np.eye(len(scores), dtype=bool)]
    if not len(pairs):
        return None
    return float(np.quantile(pairs, 1 - QUANTILE if distances else QUANTILE))
