"""Weights of references in cross-entropy.

leave_one_out  the discriminative cross-entropy (DXE) of GL-RG: m(S), normalise well a reference agrees with *all* other
               references of its item.  What most people would say counts more.  Words count as they are written, split
               at spaces, as in GL-RG's program: were rare ones one unknown word, they would agree with each other
cider_between  CIDErBtw-Cap (Wang et al., 2020), in our reading: a reference counts less the more it would fit the
               item's look-alikes: 1.5 - s / max s, with s its mean CIDEr-D against their references and the maximum
               over the item's references; so weights go from .5 for the most common one up to 1.5

The end of a caption is left out of m, as in GL-RG's program.  That program pairs weights with the wrong captions on
MSVD; here a weight has the number of its caption.  Weights may be brought to mean 1 over each item, or over all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore.errors import UserError
from tellapart.data.batches import padded
from tellapart.recipe import CaptionWeights
from tellapart.rewards.agreement import MEASURES, Consensus, MeteorConsensus
from tellapart.rewards.context import RewardContext

_MOST, _BATCH = 1.5, 4096


def caption_weights(config: CaptionWeights, context: RewardContext) -> list[Tensor]:
    """(captions,) of each item of the training data, in the order of its captions."""
    counts = [len(captions) for captions in context.references]
    items = np.repeat(np.arange(len(counts)), counts)
    numbers = np.concatenate([np.arange(count) for count in counts]) if counts else np.zeros(0, np.int64)
    if config.by == "leave_one_out":
        values = _leave_one_out(config.metric, context, items, numbers)
    else:
        # Mean CIDEr-D of each reference against the references of its item's look-alikes; 0 where there are none.
        consensus, groups = context.consensus("CIDEr-D"), context.look_alikes.numpy()[items]  # (N, k)
        scores = np.zeros(len(items))
        for place in range(groups.shape[1]):
            present = np.flatnonzero(groups[:, place] >= 0)
            scores[present] += _scored(consensus, context.references, groups[present, place], rows=present)
        scores /= np.maximum((groups >= 0).sum(1), 1)
        most = np.zeros(len(counts))
        np.maximum.at(most, items, scores)
        values = _MOST - np.divide(scores, most[items], out=np.full_like(scores, 0.5), where=most[items] > 0)
    weights = _normalised(values, items, len(counts), config.normalise)
    return list(torch.split(torch.from_numpy(weights.astype(np.float32)), counts))


def _leave_one_out(
    metric: str, context: RewardContext, items: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.float64]:
    if metric == "METEOR":
        texts = [text for example in context.data.examples for text in example.captions]
        meteor = MeteorConsensus([example.captions for example in context.data.examples])
        scores = meteor(texts, torch.from_numpy(items), torch.from_numpy(numbers))
        return np.asarray(scores.double().numpy(), np.float64)
    if metric not in MEASURES:
        names = ", ".join([*MEASURES, "METEOR"])
        raise UserError(f"objective.caption_weights.metric: there is no {metric!r} here; there are {names}.")
    ids: dict[str, int] = {}
    references = [
        [[ids.setdefault(word, len(ids)) for word in text.split()] for text in example.captions]
        for example in context.data.examples
    ]
    consensus = Consensus(references, end=len(ids), measure=metric, count_end=False)
    return _scored(consensus, references, items, numbers)


def _scored(
    consensus: Consensus,
    references: Sequence[Sequence[Sequence[int]]],
    against: NDArray[np.int64],
    left_out: NDArray[np.int64] | None = None,
    rows: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Scores of references, or of some rows of them, against those of other items, or the others of their own."""
    captions = [caption for of_item in references for caption in of_item]
    rows = np.arange(len(captions)) if rows is None else rows
    parts = []
    for start in range(0, len(rows), _BATCH):
        part = slice(start, start + _BATCH)
        tokens, _ = padded([[*captions[row], consensus.end] for row in rows[part]], consensus.end)
        but = None if left_out is None else torch.from_numpy(left_out[part])
        parts.append(consensus(tokens, torch.from_numpy(against[part]), but).double().numpy())
    return np.concatenate(parts) if parts else np.zeros(0)


def _normalised(
    values: NDArray[np.float64], items: NDArray[np.int64], count: int, normalise: str
) -> NDArray[np.float64]:
    """Equal weights where all are 0: there is nothing to go by."""
    if normalise == "none":
        return values
    if normalise == "global":
        mean = values.mean() if len(values) else 0.0
        return values / mean if mean > 0 else np.ones_like(values)
    total = np.bincount(items, values, count) / np.maximum(np.bincount(items, minlength=count), 1)
    return np.divide(values, total[items], out=np.ones_like(values), where=total[items] > 0)
