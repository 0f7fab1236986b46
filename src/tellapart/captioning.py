"""The captioner that people use: photos in, captions out."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tellapart import models, numerics
from tellapart.album import DEFAULT
from tellapart.data import photos
from tellapart.decoding.text import most_likely
from tellapart.encoders.encoder import Encoder
from tellapart.errors import BadPhoto
from tellapart.parallel import batched, ordered_map

Source = str | os.PathLike[str] | Image.Image

MAX_WORDS = 20
_BATCH = 16  # photos that are captioned together


@dataclass(frozen=True)
class Caption:
    """What was said of one photo, or why nothing was."""

    file: str
    text: str = ""
    logprob: float = math.nan  # log p(caption | photo), EOS included
    error: str = ""
    sha256: str = ""  # of the photo's bytes

    def row(self) -> dict[str, Any]:
        """As commands write it: file, caption and log p, or file and error."""
        said = {"error": self.error} if self.error else {"caption": self.text, "logprob": self.logprob}
        return {"file": self.file} | said


class PhotoCaptioner:
    """A captioner with its words and the encoder that it was trained with."""

    def __init__(self, model: models.Model, encoder: Encoder, device: torch.device):
        self.model, self.encoder, self.device = model, encoder, device

    @overload
    def caption(self, photos: Source, *, beam: int = 3) -> Caption: ...  # type: ignore[overload-overlap]

    @overload
    def caption(self, photos: Iterable[Source], *, beam: int = 3) -> Iterator[Caption]: ...

    def caption(self, photos: Source | Iterable[Source], *, beam: int = 3) -> Caption | Iterator[Caption]:
        """One photo -> its caption, or `BadPhoto`.  Several -> captions in order; of a bad one, the `error`."""
        if isinstance(photos, str | os.PathLike | Image.Image):
            (caption,) = self._captions([photos], beam)
            if caption.error:
                raise BadPhoto(caption.file, caption.error)
            return caption
        return self._captions(photos, beam)

    def _captions(self, sources: Iterable[Source], beam: int) -> Iterator[Caption]:
        for batch in batched(ordered_map(self._read, sources), _BATCH):
            good = [photo.pixels for _, photo in batch if isinstance(photo, photos.Photo)]
            said = iter(self._speak(np.stack(good), beam) if good else [])
            for file, photo in batch:
                if isinstance(photo, BadPhoto):
                    yield Caption(file, error=photo.reason)
                else:
                    text, logprob = next(said)
                    yield Caption(file, text, logprob, sha256=photo.sha256)

    def _read(self, source: Source) -> tuple[str, photos.Photo | BadPhoto]:
        size = self.encoder.config.image_size
        if isinstance(source, Image.Image):
            return str(getattr(source, "filename", "") or "image"), photos.from_image(source, size)
        try:
            return os.fspath(source), photos.read(source, size)
        except BadPhoto as error:
            return os.fspath(source), error

    @torch.inference_mode()
    def _speak(self, pixels: NDArray[np.uint8], beam: int) -> list[tuple[str, float]]:
        """pixels (B, S, S, 3) -> the caption of each photo and its log p"""
        grid = self.encoder(pixels).grid
        mask = torch.ones(grid.shape[:2], dtype=torch.bool, device=grid.device)
        return most_likely(self.model.captioner, self.model.tokenizer, grid, mask, beam=beam, max_words=MAX_WORDS)


def load(name: str | Path = DEFAULT, *, device: str = "auto") -> PhotoCaptioner:
    """The embedded default, another embedded captioner, or a model or run folder."""
    chosen = numerics.choose_device(device)
    model = models.load(name, chosen)
    return PhotoCaptioner(model, models.encoder_of(model, chosen), chosen)
