"""A run of a clip tagger as an encoder: the probabilities of its words, as one row."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from tellapart import models
from tellapart.data.streams import REGIONS, Stream
from tellapart.data.tokenizers import WordTokenizer
from tellapart.encoders import PhotoEncoder
from tellapart.encoders.encoder import Features
from tellapart.features.extracted import read_item
from tellapart.recipe import EncoderConfig
from tellapart.taggers import TAGGERS

CLIP_TAGGER = "clip_tagger"


class ClipWords:
    """Sees clips as the encoder of its run does."""

    regions = 1

    def __init__(self, config: EncoderConfig, folder: Path, device: torch.device):
        described = models.read_config(folder, "network")
        self.base: PhotoEncoder = models.encoder_from(described.inputs[REGIONS], device)
        network, sha256 = models.rebuild(folder, TAGGERS, "network", described)
        self._network, self._device = network.eval().requires_grad_(False).to(device), device
        self.words = tuple(WordTokenizer.load(folder).words[len(WordTokenizer.specials) :])
        self.config, self.fit = replace(self.base.config, name=config.name), self.base.fit
        self.weights_sha256 = hashlib.sha256(f"{sha256} {self.base.weights_sha256}".encode()).hexdigest()
        self.feature_size = self.pooled_size = len(self.words)

    @property
    def identity(self) -> dict[str, Any]:
        return self.config.identity | {"weights_sha256": self.weights_sha256}

    def read(self, source: Any) -> Any:
        return read_item(self.base, source)

    @torch.inference_mode()
    def __call__(self, pixels: NDArray[np.uint8] | Tensor) -> Features:
        grid = self.base(pixels).grid.to(self._device).float()
        mask = torch.ones(grid.shape[:2], dtype=torch.bool, device=self._device)
        probability: Tensor = self._network.probabilities(Stream(grid, mask))  # type: ignore[operator]
        return Features(probability[:, None], probability)


def is_run(name: str) -> bool:
    """True of the folder of such a run."""
    folder = Path(name)
    if not files.is_folder(folder) or not files.is_file(folder / "config.json"):
        return False
    try:
        described = files.read_json(folder / "config.json")
    except UserError:
        return False
    return isinstance(described, dict) and described.get("network") == CLIP_TAGGER
