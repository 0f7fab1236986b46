"""Rewards of texts and photos as they come, without a pool: `tellapart.rewards.reward("similarity")(texts, images)`.

N captions, P different photos of a call, E embedding size, S pixels a side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capscore.errors import UserError
from tellapart import numerics
from tellapart.features.extracted import read_item
from tellapart.models.retrievers import load
from tellapart.parallel import batched
from tellapart.retrievers import DEFAULT
from tellapart.retrievers.retriever import Retriever
from tellapart.rewards.log_probability import accuracy, log_probability

_BATCH = 32  # photos through the encoder at once
_CHANNELS = (1, 3, 4)  # grey, RGB, RGB with transparency

# (N, P) of each caption to each photo, (N,) which is its own, the retriever's scale -> (N,)
Formula = Callable[[Tensor, Tensor, float], Tensor]


def _similarity(similarity: Tensor, own: Tensor, scale: float) -> Tensor:
    return similarity.gather(1, own[:, None]).squeeze(1)


TERMS: dict[str, Formula] = {
    "similarity": _similarity,
    "log_probability": log_probability,
    "accuracy": lambda similarity, own, scale: accuracy(similarity, own),
}


class PhotoReward:
    """A number for each text, by its photo.

    term       similarity; log_probability or accuracy of the photo among the different ones of the call (DiscriTune)
    retriever  that sees photos: word, judge, a run folder, a CLIP by folder or hub id
    scale      of log_probability before the softmax (default: the retriever's own)

    It is loaded at the first call, on the device that is the process's then, and can be pickled before and after.
    """

    def __init__(self, term: str, retriever: str | Path = DEFAULT, *, scale: float = 0.0, device: str = "auto"):
        if term not in TERMS:
            raise UserError(
                f"there is no reward {term!r} of texts and photos alone; there are {', '.join(TERMS)}.  The others "
                "need more of the photos, which a pool has: `tellapart pool`, then tellapart.CaptionReward."
            )
        self.term, self.name, self.scale, self.device = term, str(retriever), scale, device
        self.__name__ = term  # what trainers call it in their logs

    @cached_property
    def retriever(self) -> Retriever:
        loaded = load(self.name, device=numerics.device_of_process(self.device))
        if loaded.encoder is None:
            raise UserError(f"{loaded.name} knows photos by their references; {self.term} needs one that sees photos.")
        return loaded

    def __call__(self, texts: Sequence[str], images: Sequence[Any]) -> list[float]:
        """images  of each text its photo: a file, a picture of Pillow, an array or a tensor (values in 0..255 as bytes,
        or in 0..1).  Equal ones are one photo
        """
        if isinstance(texts, str) or isinstance(images, str | os.PathLike | Image.Image):
            raise UserError(f"{self.term}: texts and images must be two lists of the same length.")
        if len(texts) != len(images):
            raise UserError(f"{self.term}: there are {len(texts)} texts and {len(images)} images.")
        if not len(texts):
            return []
        with torch.inference_mode(), torch.autocast(self.retriever.device.type, enabled=False):
            photos, own = self._embedded(images)
            if self.term != "similarity" and len(photos) == 1:
                raise UserError(
                    f"{self.term} compares a photo with the others of the batch, and all texts are of one photo."
                )
            similarity = self.retriever.embed_captions(list(texts)).float() @ photos.T
            scores = TERMS[self.term](similarity, own, self.scale or self.retriever.scale)
        return scores.tolist()

    def _embedded(self, images: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """(P, E) the different photos, and (N,) which of them each image is."""
        encoder = self.retriever.encoder
        assert encoder is not None
        read: dict[object, NDArray[np.uint8]] = {}  # each file or object once
        places: dict[bytes, int] = {}
        different, own = list[NDArray[np.uint8]](), list[int]()
        for image in images:
            key = os.fspath(image) if isinstance(image, str | os.PathLike) else id(image)
            if key not in read:
                read[key] = read_item(encoder, _picture(image)).pixels
            pixels = read[key]
            place = places.setdefault(pixels.tobytes(), len(places))
            if place == len(different):
                different.append(pixels)
            own.append(place)
        parts = [self.retriever.embed_pixels(np.stack(part)).float() for part in batched(different, _BATCH)]
        return torch.cat(parts), torch.tensor(own, device=parts[0].device)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "retriever"}


def _picture(image: Any) -> str | Image.Image:
    """A file's name or a picture of Pillow, of anything that is one photo."""
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, str | os.PathLike):
        return os.fspath(image)
    if isinstance(image, Sequence) and len(image) == 1:  # as data sets with a column of several have it
        return _picture(image[0])
    values = np.asarray(image.detach().cpu() if isinstance(image, Tensor) else image)
    if values.ndim == 3 and values.shape[0] in _CHANNELS and values.shape[2] not in _CHANNELS:
        values = values.transpose(1, 2, 0)  # channels first, as in torch
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in _CHANNELS) or not values.size:
        raise UserError(f"an image must be a file, a picture, or (H, W, 3) or (3, H, W), not {_kind(image, values)}.")
    if values.dtype.kind == "f" and values.min() >= 0 and values.max() <= 1:
        values = (values * 255).round().astype(np.uint8)
    if values.dtype != np.uint8:
        raise UserError(
            "an image must have bytes, or numbers from 0 to 1; one that was normalised for a network is not a photo."
        )
    return Image.fromarray(np.ascontiguousarray(values if values.ndim == 2 or values.shape[2] > 1 else values[..., 0]))


def _kind(image: object, values: NDArray[Any]) -> str:
    return f"{values.shape}" if values.ndim else f"a {type(image).__name__}"
