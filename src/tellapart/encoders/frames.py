"""Frames of a clip through any encoder of photos: N frames evenly in time, one after the other as rows.

With a grid of one cell a row is a frame, with more it is a cell of a frame.  So every captioner takes clips.  A photo
is a clip whose frames are all the same; to captioners, which see a set of rows, it is one frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tellapart.data.media import clips
from tellapart.data.media.photos import Fit, Photo, fitted
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.encoder import Features
from tellapart.recipe import EncoderConfig

_BATCH = 16  # frames through the encoder at once; more is no faster on a CPU


def read_squares(source: clips.Source, segments: int, offsets: Sequence[int], size: int, fit: Fit) -> Photo:
    """Of each segment its middle frame and others around it.  (segments, offsets, S, S, 3)

    offsets  by how many frames they come after it; outside of the clip, its first or last frame
    """
    with clips.open_clip(source) as clip:
        last = len(clip) - 1
        numbers = [min(max(key + offset, 0), last) for key in clip.evenly(segments) for offset in offsets]
        sha256 = clips.sha256(source)
        squares = {
            number: fitted(Image.fromarray(frame), sha256, size, fit).pixels
            for number, frame in clip.each(sorted(set(numbers)))
        }
    pixels = np.stack([squares[number] for number in numbers])
    return Photo(pixels.reshape(segments, len(offsets), *pixels.shape[1:]), sha256)


class FrameEncoder:
    """An encoder of photos that sees several frames of a clip; the pooled features are the mean of the frames'.

    around  each frame stands between those so many before and after it; 0: alone
    """

    def __init__(self, encoder: PhotoEncoder, frames: int, around: int = 0):
        self.of_photos, self.part = encoder, getattr(encoder, "part", None)
        self.frames, self.offsets = frames, (-around, 0, around) if around else (0,)
        self.config = replace(encoder.config, frames=frames, around=around)
        self.fit, self.weights_sha256 = encoder.fit, encoder.weights_sha256
        self.regions, self.feature_size, self.pooled_size = (
            frames * len(self.offsets) * encoder.regions,
            encoder.feature_size,
            encoder.pooled_size,
        )

    @property
    def identity(self) -> dict[str, Any]:
        around = {"around": self.config.around} if self.config.around else {}
        return self.of_photos.identity | {"frames": self.frames} | around

    def read(self, source: clips.Source) -> Photo:
        """(N, S, S, 3)"""
        photo = read_squares(source, self.frames, self.offsets, self.config.image_size, self.fit)
        return Photo(photo.pixels.reshape(-1, *photo.pixels.shape[2:]), photo.sha256)

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """pixels (B, N, S, S, 3) in 0..255"""
        every = np.asarray(pixels)
        batch, frames = every.shape[:2]
        flat = every.reshape(batch * frames, *every.shape[2:])
        # A frame like the one before, as in a photo, need not be seen twice.
        new = np.array([n % frames == 0 or not np.array_equal(flat[n], flat[n - 1]) for n in range(len(flat))])
        parts = [self.of_photos(flat[some]) for some in np.array_split(np.flatnonzero(new), -(-new.sum() // _BATCH))]
        rows = torch.from_numpy(np.cumsum(new) - 1)
        grid, pooled = torch.cat([part.grid for part in parts]), torch.cat([part.pooled for part in parts])
        rows = rows.to(grid.device)
        return Features(grid[rows].reshape(batch, self.regions, -1), pooled[rows].reshape(batch, frames, -1).mean(1))


def of_photos(encoder: PhotoEncoder) -> PhotoEncoder:
    """The encoder of single photos behind one of clips; else itself."""
    return encoder.of_photos if isinstance(encoder, FrameEncoder) else encoder


def with_frames(config: EncoderConfig, load: Callable[[EncoderConfig], PhotoEncoder]) -> PhotoEncoder:
    """An encoder of photos, with as many frames of clips as the settings ask for.

    load  settings -> the encoder; one that reads clips itself is given the frames, and knows which it needs
    """
    if not config.frames:
        return load(config)
    encoder = load(replace(config, frames=0, around=0))
    return load(config) if hasattr(encoder, "read") else FrameEncoder(encoder, config.frames, config.around)
