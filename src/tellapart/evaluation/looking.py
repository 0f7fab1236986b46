"""Which part of a photo each word of a caption rests on, as pages show it."""

from __future__ import annotations

from pathlib import Path

import torch

from tellapart.captioning import PhotoCaptioner
from tellapart.data.streams import REGIONS
from tellapart.decoding.looking import needed
from tellapart.errors import BadPhoto
from tellapart.evaluation.cards import Looked
from tellapart.sight import Eyes

_MOST = 9  # the level of what the most needed word needs most


def looked(captioner: PhotoCaptioner, file: Path, caption: str) -> Looked | None:
    """Of a caption that the captioner made; none where nobody knows which part of the photo a feature is of."""
    sight, words = captioner.sight, captioner.model.tokenizer
    tokens = words.encode(caption)
    if not isinstance(sight, Eyes) or sight.encoder.config.grid < 2 or len(tokens) != len(caption.split()):
        return None
    try:
        features, _ = sight.inputs([sight.look(file)])[REGIONS]
    except BadPhoto:
        return None
    given = torch.tensor(tokens, device=captioner.device)
    need = needed(captioner.model.captioner, features[0], given, side=sight.encoder.config.grid, bos=words.bos)
    levels = (_MOST * need / need.max().clamp(min=1e-9)).round().int().tolist()
    return Looked(["".join(map(str, word)) for word in levels], middle=sight.encoder.fit.crop)
