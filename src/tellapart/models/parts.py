"""Parts of a model folder from other runs: tuned encoders and taggers, whose weights come with no package.

parts/HASH   a model folder of its own, named by the beginning of the hash of its weights

A downloaded model reads nothing outside its own folder, so these are in it.  Their weights are in half
precision, as those of bundled encoders are, and so they are used wherever they come from: a run and its copies see
the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from tellapart import models, paths
from tellapart.data.streams import REGIONS, Stream
from tellapart.data.tokenizers import WordTokenizer
from tellapart.encoders import PhotoEncoder, loading, pretrained
from tellapart.encoders.encoder import Encoder, Features, Part, Tuned, with_frames
from tellapart.features.extracted import read_item
from tellapart.recipe import EncoderConfig
from tellapart.taggers import TAGGERS
from tellapart.taggers.tagger import SPECIALS, Tagger

FOLDER = "parts"
CLIP_TAGGER = "clip_tagger"
_DIGITS = 16  # of a hash, in the name of a part


@dataclass(frozen=True)
class TaggerRun:
    """The run of a tagger."""

    folder: Path
    config: models.Config
    network: Tagger  # its weights rounded to half precision

    @property
    def words(self) -> tuple[str, ...]:
        """(W,)"""
        tokenizer = models.load_tokenizer(self.folder, self.config.settings)
        if not isinstance(tokenizer, WordTokenizer):
            raise UserError(f"{self.folder}: the vocabulary of a tagger is one of words.")
        return tuple(tokenizer.words[SPECIALS:])

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.half() for name, tensor in self.network.state_dict().items()}

    @property
    def sha256(self) -> str:
        return pretrained.sha256(self.weights)

    @property
    def base(self) -> str:
        """The encoder that it learned from, or began with."""
        return str(self.config.inputs.get("regions", {}).get("name", ""))


def network_of(folder: Path) -> str:
    """The network, such as a tagger, whose run folder this is; nothing for others."""
    try:
        described = files.read_json(folder / "config.json") if files.is_file(folder / "config.json") else {}
    except UserError:
        return ""
    return str(described.get("network", ""))


def is_tagger(folder: Path) -> bool:
    return network_of(folder) == "tagger"


def read_tagger(folder: Path) -> TaggerRun:
    config = models.read_config(folder, "network")
    network, _ = models.rebuild(folder, TAGGERS, "network", config)
    assert isinstance(network, Tagger)
    return TaggerRun(folder, config, network.half().float().eval().requires_grad_(False))


def load_encoder(config: EncoderConfig, device: torch.device) -> PhotoEncoder:
    """One of the table, a backbone of transformers, one that was tuned, or a clip tagger: by the folder of its run."""
    folder = Path(config.name)
    if network_of(folder) == CLIP_TAGGER:
        return ClipWords(config, folder, device)
    return tuned_encoder(folder, config, device) if is_tagger(folder) else loading.load(config, device)


def tuned_encoder(folder: Path, config: EncoderConfig, device: torch.device) -> PhotoEncoder:
    run = read_tagger(folder)
    if run.network.encoder is None:
        raise UserError(f"{folder} is a tagger of features; only one that was trained with tuned_blocks is an encoder.")
    weights = {
        name.removeprefix("encoder."): tensor for name, tensor in run.weights.items() if name.startswith("encoder.")
    }
    name = files.real(folder).name if config.name == str(folder) else config.name
    tuned = Tuned(run.base, weights, folder)
    return with_frames(replace(config, name=name), lambda settings: Encoder(settings, device, tuned))


def carry(parts: Iterable[Part], out: Path) -> None:
    """Copy parts into a model folder, and what they carry themselves."""
    for part in parts:
        run, into = read_tagger(part.folder), out / FOLDER / part.sha256[:_DIGITS]
        if files.is_file(into / "model.safetensors"):
            continue
        into.mkdir(parents=True, exist_ok=True)
        for name in ("config.json", "vocabulary.json"):
            files.replace(into / name, files.read_bytes(files.inside(part.folder, name)))
        models.save_weights(into / "model.safetensors", run.network, torch.float16)
        carry(parts_in(part.folder), into)


def parts_in(folder: Path) -> Iterator[Part]:
    """Those that a model folder carries; that their weights are the right ones is seen when they are used."""
    for inner in sorted((folder / FOLDER).glob("*/config.json")):
        yield Part(inner.parent, inner.parent.name)


def find(folders: Iterable[Path], sha256: str, name: str) -> Path:
    """The part with these weights: in a model's own folder, or one that the user names."""
    for folder in folders:
        if files.is_file((inner := folder / FOLDER / sha256[:_DIGITS]) / "config.json"):
            files.inside(folder, str(Path(FOLDER, sha256[:_DIGITS], "config.json")))  # no link that leads out of it
            return inner
    for folder in paths.encoders():
        if is_tagger(folder) and sha256 in _hashes(folder):
            return folder
    raise UserError(
        f"the model needs {name} with weights {sha256[:8]}, which its folder does not have ({FOLDER}/"
        f"{sha256[:_DIGITS]}); name the folder of that run: TELLAPART_ENCODERS=FOLDER."
    )


def _hashes(folder: Path) -> set[str]:
    run = read_tagger(folder)
    tuned = {} if run.network.encoder is None else run.network.encoder.state_dict()
    return {run.sha256, pretrained.sha256({name: tensor.half() for name, tensor in tuned.items()})}


class ClipWords:
    """A run of a clip tagger as an encoder: the probabilities of its words, as one row."""

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
