"""Photos as regions: the boxes of a detector with features of an encoder's own map, after the cells of its grid.

B photos, R regions, D feature size.  The cells come first, so that a photo in which nothing is found has regions too:
with `grid: 1` the whole photo is the one region that is always there.  Then the boxes, most confident first.

What is in a box is pooled from the map by RoI-align (He et al., 2017, section 3): the box is cut into 7 x 7 bins, a bin
is the mean of 2 x 2 points between the cells of the map, and the region the mean, or the largest, of its bins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from capscore.errors import UserError
from tellapart.data.examples import Example
from tellapart.data.media import clips
from tellapart.detectors.detections import detect
from tellapart.detectors.detector import MOST, Detector, Source
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.encoder import Features, pool
from tellapart.errors import BadPhoto
from tellapart.features.boxes import grid_boxes
from tellapart.features.extracted import EncodedBatch, encode_batches
from tellapart.recipe import Pooling

BINS, POINTS = 7, 2  # of a box's side, and of a bin's


@dataclass(frozen=True)
class PhotoWithBoxes:
    """pixels  (S, S, 3) as the encoder takes them
    boxes   (R, 4) of all regions: the cells, then what was detected
    """

    pixels: NDArray[np.uint8]
    sha256: str
    boxes: Tensor


class DetectedRegions:
    """An encoder whose regions are the cells of its grid and the boxes of a detector."""

    def __init__(self, encoder: PhotoEncoder, detector: Detector):
        self.encoder, self.detector, self.config = encoder, detector, encoder.config
        if not 1 <= self.config.detected <= MOST:
            raise UserError(f"encoder: detected must be from 1 to {MOST}, not {self.config.detected}.")
        if not hasattr(encoder, "feature_map"):
            raise UserError(f"encoder: {self.config.name} does not show its feature map, which boxes are pooled from.")
        self.fit, self.weights_sha256 = encoder.fit, encoder.weights_sha256
        self.feature_size, self.pooled_size = encoder.feature_size, encoder.pooled_size
        self._cells = grid_boxes(*self.config.grids)

    @property
    def regions(self) -> int:
        """The most that a photo can have."""
        return self.config.cells + self.config.detected

    @property
    def identity(self) -> dict[str, Any]:
        return self.encoder.identity | {"detector": self.detector.identity}

    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        """As the encoder alone: for those who want pooled features."""
        return self.encoder(pixels)

    def read(self, source: Source) -> PhotoWithBoxes:
        """Raises BadPhoto, also where the detector fails."""
        ready = self.detector.read(source)
        try:
            found = self.detector(ready)
        except BadPhoto as error:  # a detector does not know what the photo is called
            name = getattr(source, "filename", "image") if isinstance(source, Image.Image) else source
            raise BadPhoto(name, error.reason) from None
        return self._with_boxes(source, torch.from_numpy(found.boxes))

    def _with_boxes(self, source: Source, detected: Tensor) -> PhotoWithBoxes:
        size, fit = self.config.image_size, self.fit
        photo = clips.read(source, size, fit)
        return PhotoWithBoxes(
            photo.pixels, photo.sha256, torch.cat([self._cells, detected[: self.config.detected].float()])
        )

    @torch.inference_mode()
    def features(self, batch: Sequence[PhotoWithBoxes]) -> tuple[list[Tensor], Tensor]:
        """(R, D) of each photo, and all their pooled features (B, D)"""
        feature_map: Tensor = self.encoder.feature_map(np.stack([photo.pixels for photo in batch]))  # type: ignore[attr-defined]
        cells, pooled, _ = pool(feature_map, self.config)
        count = len(self._cells)
        found = [
            torch.cat([own, region_features(one, photo.boxes[count:], self.config.pooling)])
            for own, one, photo in zip(cells, feature_map, batch, strict=True)
        ]
        return found, pooled

    def encode_items(self, examples: Sequence[Example]) -> Iterator[EncodedBatch]:
        """Rows for a `FeatureStore`; what the detector found before is read from the cache."""
        found = detect(self.detector, list(dict.fromkeys(str(example.file) for example in examples)))
        boxes = {file: own[mask] for file, own, mask in zip(found.files, found.boxes, found.mask, strict=True)}

        def read(file: Path) -> PhotoWithBoxes:
            if str(file) in found.failed:
                raise BadPhoto(file, found.failed[str(file)])
            return self._with_boxes(file, boxes[str(file)])

        return encode_batches(read, self._rows, examples)

    def _rows(self, batch: Sequence[PhotoWithBoxes]) -> list[Tensor]:
        found, pooled = self.features(batch)
        counts = torch.tensor([[len(photo.boxes)] for photo in batch])
        padded = partial(_padded, most=self.regions)
        return [padded(found), pooled, padded([photo.boxes for photo in batch]), counts]


def _padded(rows: Sequence[Tensor], most: int) -> Tensor:
    """(B, most, D)"""
    return pad_sequence([*rows, rows[0].new_zeros(most, rows[0].shape[1])], batch_first=True)[:-1]


def region_features(feature_map: Tensor, boxes: Tensor, pooling: Pooling) -> Tensor:
    """feature_map (D, H, W), boxes (N, 4) as fractions of its sides -> (N, D)"""
    bins = roi_align(feature_map, boxes.to(feature_map.device)).flatten(2)
    return bins.amax(2) if pooling == "max" else bins.mean(2)


def roi_align(feature_map: Tensor, boxes: Tensor, bins: int = BINS, points: int = POINTS) -> Tensor:
    """feature_map (D, H, W), boxes (N, 4) as fractions of its sides -> (N, D, bins, bins)

    A value of the map stands in the middle of its cell.  Between two cells points are mixed from both, and beyond the
    middle of the outermost ones they are as these.  Points lie in rows and columns, so that a bin is the product of how
    much of each row and of each column of the map is in it.
    """
    left, top, right, bottom = boxes.unbind(1)
    rows = _shares(top, bottom, feature_map.shape[1], bins, points)
    columns = _shares(left, right, feature_map.shape[2], bins, points)
    return torch.einsum("nyh,dhw,nxw->ndyx", rows, feature_map, columns)


def _shares(start: Tensor, end: Tensor, cells: int, bins: int, points: int) -> Tensor:
    """(N, bins, cells): of a side of a box (N,), how much of each cell of the map is in each bin"""
    along = (torch.arange(bins * points, device=start.device) + 0.5) / (bins * points)
    place = (start[:, None] + (end - start)[:, None] * along) * cells - 0.5  # of the points, in cells
    distance = (place.clamp(0, cells - 1)[..., None] - torch.arange(cells, device=start.device)).abs()
    return (1 - distance).clamp(min=0).view(-1, bins, points, cells).mean(2)
