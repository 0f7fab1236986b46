"""Encoders that a model learned from, and the parts of its folder from other runs: tuned encoders and taggers, whose
weights come with no package.

parts/HASH   a model folder of its own, named by the beginning of the hash of its weights

A downloaded model reads nothing outside its own folder, so these are in it.  Their weights are in half
precision, as those of bundled encoders are, and so they are used wherever they come from: a run and its copies see
the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from tellapart import models, paths
from tellapart.data.streams import REGIONS, Stream
from tellapart.data.tokenizers import WordTokenizer
from tellapart.encoders import ENCODERS, PhotoEncoder, loading, pretrained
from tellapart.encoders.classifiers import is_weights
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
    for folder in filter(is_tagger, paths.encoders()):
        run = read_tagger(folder)
        tuned = {} if run.network.encoder is None else run.network.encoder.state_dict()
        if sha256 in (run.sha256, pretrained.sha256({name: tensor.half() for name, tensor in tuned.items()})):
            return folder
    raise UserError(
        f"the model needs {name} with weights {sha256[:8]}, which its folder does not have ({FOLDER}/"
        f"{sha256[:_DIGITS]}); name the folder of that run: TELLAPART_ENCODERS=FOLDER."
    )


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


_alive = WeakValueDictionary[str, PhotoEncoder]()  # while some model sees by them


def encoder_from(identity: dict[str, Any], device: torch.device, folders: Iterable[Path] = ()) -> PhotoEncoder:
    """The encoder that config.json names; refuses if its weights here, or its preprocessing, differ.

    It is frozen, and large: models that see by the same one share it.

    folders  of the model, which may carry a tuned encoder
    """
    if identity.get("from") == "elsewhere":
        name = identity.get("name")
        raise UserError(f"the model was trained on imported features ({name}) and cannot encode photos.")
    key = json.dumps([identity, str(device), *map(str, paths.encoders())], sort_keys=True)
    identity = dict(identity)
    try:
        sha256 = str(identity.pop("weights_sha256"))
        preprocessing = {key: identity.pop(key) for key in ("fit", "mean", "std") if key in identity}
        tuned = identity.pop("tuned", "")
        config = EncoderConfig(**identity)
        if list(map(type, astuple(config))) != list(map(type, astuple(EncoderConfig()))):
            raise TypeError
    except (KeyError, TypeError):
        raise UserError("the model's config.json does not say which encoder it was trained with.") from None
    part = find(folders, sha256, config.name) if tuned and config.name not in ENCODERS else None
    if (alive := _alive.get(key)) is not None:
        return alive
    encoder = tuned_encoder(part, config, device) if part else _encoder_here(config, sha256, device)
    if encoder.weights_sha256 != sha256:
        raise UserError(
            f"the model was trained on features of {encoder.config.name} with weights {sha256[:8]}, "
            f"but the weights installed here are {encoder.weights_sha256[:8]}."
        )
    current = json.loads(json.dumps(encoder.identity))
    if changed := [key for key, value in preprocessing.items() if value != current.get(key)]:
        raise UserError(
            f"the model was trained with other preprocessing of {config.name}: {changed[0]} was "
            f"{preprocessing[changed[0]]} and is {current.get(changed[0])} now."
        )
    _alive[key] = encoder
    return encoder


def _encoder_here(config: EncoderConfig, sha256: str, device: torch.device) -> PhotoEncoder:
    """The encoder of a name or hub id; or, where it is a folder, the one of those that the user names.

    A downloaded model must not decide what is read from this machine.
    """
    named = Path(config.name)
    if not named.is_absolute() and not files.is_folder(named) and not is_weights(config.name):
        return loading.load(config, device)
    encoders, refusals = list[PhotoEncoder](), list[UserError]()
    for folder in paths.encoders():
        is_folder = pretrained.could_be(str(folder)) and files.is_folder(folder)
        if is_folder or is_weights(str(folder)) or network_of(folder) == CLIP_TAGGER:
            try:
                encoders.append(load_encoder(replace(config, name=str(folder)), device))
            except UserError as refusal:  # it may be that of another model: its photos have another size, say
                refusals.append(refusal)
                continue
            if encoders[-1].weights_sha256 == sha256:
                return encoders[-1]
    if encoders:
        return encoders[0]
    if refusals:
        raise refusals[0]
    raise UserError(
        f"the model was trained on features of a network in the folder {config.name}, with weights {sha256[:8]}; a "
        "model does not decide what is read from outside of its own folder.  If you trust that network, name its "
        "folder: TELLAPART_ENCODERS=FOLDER."
    )
