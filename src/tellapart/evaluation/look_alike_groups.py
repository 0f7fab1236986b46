"""Look-alike groups of photos, for measures within them.

Groups go by the features of the judge's encoder, by which no captioner, reward or text-to-text encoder of ours goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tellapart import models, numerics
from tellapart.data.streams import REGIONS
from tellapart.evaluation.models import Split
from tellapart.features.pooled import pooled_features
from tellapart.metrics import retrieval
from tellapart.retrievers import HERE


@dataclass(frozen=True)
class Groups:
    """nearest    (P, 5) the photos of a split that look most like each, nearest first; -1: there is none
    signature  what they go by
    """

    nearest: NDArray[np.int64]
    signature: str


def groups_of(split: Split, device: str = "auto") -> Groups | None:
    """Of the photos that have references and can be read; none if they are too few for a single group."""
    described = [row for row, photo in enumerate(split.photos) if photo.captions]
    if len(described) <= retrieval.GROUP:
        return None
    identity = models.read_config(HERE / "judge", "retriever").inputs[REGIONS]
    encoder = models.encoder_from(identity, numerics.choose_device(device))
    seen = pooled_features(encoder, list(dict.fromkeys(str(split.photos[row].file) for row in described)))
    row_of = {file: row for row, file in enumerate(seen.files)}
    rows = [row for row in described if str(split.photos[row].file) in row_of]
    places = [row_of[str(split.photos[row].file)] for row in rows]
    vectors = seen.vectors[places]
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    _, copies = np.unique([seen.sha256[place] for place in places], return_inverse=True)
    found = retrieval.neighbours(vectors, copies, retrieval.GROUP)
    nearest = np.full((len(split.photos), retrieval.GROUP), -1, np.int64)
    nearest[rows] = np.where(found >= 0, np.array(rows, np.int64)[found], -1)
    return Groups(nearest, f"{encoder.config.name}-{identity['weights_sha256'][:8]}-{retrieval.GROUP}")
