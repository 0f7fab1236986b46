"""Functions of similarities that measures and rewards share, for numpy arrays and torch tensors alike.

(Measures are numpy, so that `score` starts quickly; rewards are torch, on the device of the captions.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array", "NDArray[Any]", "Tensor")

_FAR = 1e9  # below every similarity
TIE = 1e-6  # nearer than this, cosines in single precision are equal: two copies of a photo may differ by rounding


def ranks(similarity: Array, own: Array, tie: float = TIE) -> Array:
    """How many others fit a caption at least as well as its own photo; 0 is best, and a tie counts against the caption.

    similarity  (N, P) to all photos; -inf where a photo does not count
    own         (N,)   to the own photo, which is one of them
    """
    others: Array = (similarity >= (own - tie)[:, None]).sum(1) - 1  # the own photo is one of those
    return others


def gap_to_mean(own: Array, group: Array, exists: Array) -> Array:
    """How much better a caption fits its own photo than it fits a group on average: G_avg (GEG, Eq. 3).

    own      (N,)   similarity of each caption to its photo
    group    (N, k) to the look-alikes of that; any finite value where there is none
    exists   (N, k) False where there is no further look-alike
    returns  (N,)   `own` where there is none at all
    """
    gap: Array = own - (group * exists).sum(1) / exists.sum(1).clip(1)
    return gap


def gap_to_highest(own: Array, group: Array, exists: Array) -> Array:
    """The same to the one of the group that a caption fits best: G_min (GEG, Eq. 4)."""
    if not group.shape[1]:
        return own
    highest: Any = (group - ~exists * (group + _FAR)).max(1)
    highest = getattr(highest, "values", highest)  # torch also gives the places
    gap: Array = own - highest * exists.any(1)
    return gap


def mean_of_others(total: Array, own: Array, count: Array | int) -> Array:
    """What a mean over `count`, at least 2, becomes when one is left out of it.

    total  the sum over all of them
    own    what the one adds to it
    """
    mean: Array = (total - own) / (count - 1)
    return mean
