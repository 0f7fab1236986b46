"""CHAIR (Rohrbach et al., 2018): objects that a caption names and no reference of its photo does.

The paper takes what COCO's annotators outlined as being in the photo, too; here the references alone are asked, so
figures are higher than published ones.  Of words with several meanings one that fits is enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tellapart.metrics.measures.measure import Measure, Score
from tellapart.metrics.objects import mentions
from tellapart.metrics.statistics import Statistics, quotients


def chair(captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> Statistics:
    rows = []
    for words, texts in zip(captions, references, strict=True):
        known = {label for text in texts for mention in mentions(text) for label in mention.classes}
        named = [mention for mention in mentions(words) if mention.sure]
        invented = sum(known.isdisjoint(mention.classes) for mention in named)
        rows.append((invented, len(named), invented > 0, 1))
    return Statistics(CHAIR.names, np.array(rows, np.float64).reshape(-1, 4), quotients)


CHAIR = Measure(
    (
        Score("CHAIRi", "Object words (80 kinds) whose object no reference names, as a share of all.", False),
        Score("CHAIRs", "Captions with an object that no reference names, as a share of all.", False),
    ),
    lambda inputs: chair(inputs.words, inputs.reference_words),
)
