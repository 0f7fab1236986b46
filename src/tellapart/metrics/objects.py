"""Objects that captions name, against those that a detector sees in the photo.

    ObjPrec[detector]  of the object words in the captions, the share that is seen; a weak detection is no invention
    ObjRec[detector]   of the objects that are clearly seen, each class once, the share that is named

Objects are COCO's 80 classes (`capscore.objects`).  A photo with several captions counts once, by their mean: each is
read by itself.  No reference takes part, and no network that captions could be trained to please.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np

from capscore.measures import Score
from capscore.objects import mentions
from capscore.statistics import Floats, Statistics, quotients

WEAK = 0.10  # a score above which something may be there
CLEAR = 0.35  # and above which it is

SCORES = {  # {by} is the detector
    "ObjPrec": Score(
        "ObjPrec",
        "Accuracy: object words of the captions (80 kinds) that {by}, a detector, sees in the photo, as a share.",
    ),
    "ObjRec": Score(
        "ObjRec", "Things that {by}, a detector, clearly sees in the photo and the caption names, as a share."
    ),
}
_NAME = re.compile(r"(?P<kind>ObjPrec|ObjRec)\[(?P<detector>.+)\]")


def parse(name: str) -> tuple[str, str] | None:
    """The measure and the detector that a score's name stands for; none if it is no measure of objects."""
    match = _NAME.fullmatch(name)
    return (match["kind"], match["detector"]) if match else None


def objects(
    captions: Sequence[Sequence[Sequence[str]]],
    weak: Sequence[Collection[int]],
    clear: Sequence[Collection[int]],
    detector: str,
) -> Statistics:
    """ObjPrec and ObjRec.

    captions  the words of each caption of each photo; a photo without one has no part
    weak      the classes that are perhaps in each photo, by number
    clear     those that surely are
    """
    rows = [_row(*photo) for photo in zip(captions, weak, clear, strict=True)]
    names = tuple(f"{kind}[{detector}]" for kind in SCORES)
    return Statistics(names, np.array(rows, np.float64).reshape(-1, 4), quotients)


def _row(captions: Sequence[Sequence[str]], weak: Collection[int], clear: Collection[int]) -> Floats:
    """Object words that are right, and all; objects that are named, and all.  Means over the captions."""
    totals: Floats = np.zeros(4)
    for words in captions:
        named = mentions(words)
        sure = [mention for mention in named if mention.sure]
        classes = {label for mention in named for label in mention.classes}
        right = sum(any(label in weak for label in mention.classes) for mention in sure)
        totals += right, len(sure), len(classes.intersection(clear)), len(set(clear))
    return totals / max(len(captions), 1)
