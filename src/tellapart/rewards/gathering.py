"""Captions of all processes side by side: rewards that compare within a batch mean the whole of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from tellapart.data.batches import padded
from tellapart.distributed import ProcessGroup
from tellapart.rewards import SampledCaptions


def gathered(world: ProcessGroup, sampled: SampledCaptions | None) -> SampledCaptions | None:
    """The same captions, which know those of the other processes.

    All processes must call it; None from one that has no captions of the batch, and for it.
    """
    shares = world.gather(None if sampled is None else _plain(sampled))
    if sampled is None:
        return None
    device = sampled.words.device
    rows, photos, reference, texts = ([one for share in shares if share for one in share[part]] for part in range(4))
    words, mask = padded(rows, 0)  # a reader stops at the end of a caption, whatever the padding
    batch = SampledCaptions(
        words.to(device),
        mask.to(device),
        torch.tensor(photos, device=device),
        None if sampled.reference is None else torch.tensor(reference, device=device),
        sampled.progress,
        None if sampled.texts is None else texts,
    )
    return replace(sampled, gathered=batch, first=sum(len(share[0]) for share in shares[: world.rank] if share))


def _plain(sampled: SampledCaptions) -> list[object]:
    """As JSON can hold them: words, photos, references, texts."""
    lengths = sampled.mask.sum(1).tolist()
    return [
        [row[:length] for row, length in zip(sampled.words.tolist(), lengths, strict=True)],
        sampled.photos.tolist(),
        [] if sampled.reference is None else sampled.reference.tolist(),
        list(sampled.texts or ()),
    ]
