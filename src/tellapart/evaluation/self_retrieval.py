"""Self-retrieval (GLD): does a captioner find its photos by its own captions?  It ranks by log p(caption | photo)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from capscore.progress import Progress
from tellapart.data.streams import Inputs
from tellapart.decoding.all_pairs import log_probabilities_of_pairs
from tellapart.evaluation.grid import Row, queries
from tellapart.evaluation.models import Split
from tellapart.metrics import retrieval
from tellapart.parallel import batched, ordered_map

if TYPE_CHECKING:
    from tellapart.captioning.captioner import PhotoCaptioner

_TIE = 1e-4  # of sums of log p in single precision
_BATCH = 16  # photos


def add(row: Row, captioner: PhotoCaptioner, split: Split, measured: list[int]) -> None:
    """Add "self R@K" of a captioner's own captions to its row.  The end of a caption does not count."""
    own, texts = queries(row.captions, measured)
    words = captioner.model.tokenizer
    with Progress(f"self-retrieval, {row.captions.model.name}", len(split.photos)) as bar:
        logp = log_probabilities_of_pairs(
            captioner.model.captioner,
            _inputs(captioner, split),
            [words.encode(text) for text in texts],
            bos=words.bos,
            eos=words.eos,
            advance=bar.advance,
        )
    ranks = retrieval.ranks(logp.numpy(force=True).astype(np.float32), own, tie=_TIE)
    row.add(
        retrieval.recalls(ranks, own, len(split.photos), "self R"),
        f"photos:{len(split.photos)}|captions:{len(texts)}|w:{captioner.model.sha256[:8]}",
    )


def _inputs(captioner: PhotoCaptioner, split: Split) -> Iterator[Inputs]:
    visual = captioner.visual_input
    for batch in batched(ordered_map(lambda photo: visual.load(photo.file), split.photos), _BATCH):
        yield visual.inputs(batch)
