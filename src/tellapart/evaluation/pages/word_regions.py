"""Which part of a photo each word of a caption rests on, as pages show it."""

from __future__ import annotations

from pathlib import Path

import torch

from tellapart.captioning.captioner import PhotoCaptioner
from tellapart.decoding.word_regions import needed
from tellapart.errors import BadPhoto
from tellapart.evaluation.pages.cards import WordRegions

_MOST = 9  # the level of what the most needed word needs most


def word_regions(captioner: PhotoCaptioner, file: Path, caption: str) -> WordRegions | None:
    """Of a caption that the captioner made; none where it is unknown which part of the photo a feature belongs to."""
    visual, words = captioner.visual_input, captioner.model.tokenizer
    tokens = words.encode(caption)
    encoder = visual.encoder
    if (
        encoder is None
        or encoder.config.grid < 2
        or encoder.regions != encoder.config.grid**2
        or not tokens
        or len(tokens) != len(caption.split())
    ):
        return None
    try:
        inputs = visual.inputs([visual.load(file)])
    except BadPhoto:
        return None
    given = torch.tensor(tokens, device=captioner.device)
    need = needed(captioner.model.captioner, inputs, given, side=encoder.config.grid, bos=words.bos)
    levels = (_MOST * need / need.max().clamp(min=1e-9)).round().int().tolist()
    return WordRegions(["".join(map(str, word)) for word in levels], middle=encoder.fit.crop)
