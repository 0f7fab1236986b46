"""The encoder that a model learned from, found again from what config.json says of it."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import torch

from tellapart import files, paths
from tellapart.encoders import PhotoEncoder, pretrained
from tellapart.encoders.classifiers import is_weights
from tellapart.encoders.loading import load as load_encoder
from tellapart.errors import UserError
from tellapart.recipe import EncoderConfig


def load(config: EncoderConfig, device: torch.device) -> PhotoEncoder:
    """An encoder by its name; the folder of a clip tagger's run is one, too."""
    from tellapart.models.clip_words import ClipWords, is_run

    return ClipWords(config, Path(config.name), device) if is_run(config.name) else load_encoder(config, device)


def encoder_from(identity: dict[str, Any], device: torch.device) -> PhotoEncoder:
    """The encoder that config.json names; refuses if its weights here, or its ways of looking, are others."""
    if identity.get("from") == "elsewhere":
        name = identity.get("name")
        raise UserError(f"the model learned from {name}, features that were made elsewhere, and cannot look at photos.")
    identity = dict(identity)
    try:
        sha256 = str(identity.pop("weights_sha256"))
        looking = {key: identity.pop(key) for key in ("fit", "mean", "std") if key in identity}
        config = EncoderConfig(**identity)
        if list(map(type, astuple(config))) != list(map(type, astuple(EncoderConfig()))):
            raise TypeError
    except (KeyError, TypeError):
        raise UserError("the model's config.json does not say which encoder it was trained with.") from None
    encoder = _encoder_here(config, sha256, device)
    if encoder.weights_sha256 != sha256:
        raise UserError(
            f"the model was trained on features of {encoder.config.name} with weights {sha256[:8]}, "
            f"but the weights installed here are {encoder.weights_sha256[:8]}."
        )
    here = json.loads(json.dumps(encoder.identity))
    if changed := [key for key, value in looking.items() if value != here.get(key)]:
        raise UserError(
            f"the model was trained on photos that {config.name} saw otherwise: {changed[0]} was {looking[changed[0]]} "
            f"and is {here.get(changed[0])} now."
        )
    return encoder


def _encoder_here(config: EncoderConfig, sha256: str, device: torch.device) -> PhotoEncoder:
    """The encoder of a name or hub id; or, where it is a folder, the one of those that the user names.

    A model that somebody sent must not decide what is read from this machine.
    """
    own = Path(config.name)
    if not own.is_absolute() and not files.is_folder(own) and not is_weights(config.name):
        return load_encoder(config, device)
    encoders = []
    for folder in paths.encoders():
        if _is_encoder(folder):
            encoders.append(load(replace(config, name=str(folder)), device))
            if encoders[-1].weights_sha256 == sha256:
                return encoders[-1]
    if encoders:
        return encoders[0]
    raise UserError(
        f"the model was trained on features of a network in the folder {config.name}, with weights {sha256[:8]}; a "
        "model does not decide what is read from outside of its own folder.  If you trust that network, name its "
        "folder: TELLAPART_ENCODERS=FOLDER."
    )


def _is_encoder(path: Path) -> bool:
    from tellapart.models.clip_words import is_run

    return (pretrained.could_be(str(path)) and files.is_folder(path)) or is_weights(str(path)) or is_run(str(path))
