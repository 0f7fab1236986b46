"""The encoder that a model learned from, found again from what config.json says of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from capscore import files
from capscore.errors import UserError
from tellapart import paths
from tellapart.encoders import ENCODERS, PhotoEncoder, pretrained
from tellapart.encoders.classifiers import is_weights
from tellapart.encoders.loading import load as load_encoder
from tellapart.recipe import EncoderConfig

_alive = WeakValueDictionary[str, PhotoEncoder]()  # while some model sees by them


def encoder_from(identity: dict[str, Any], device: torch.device, folders: Iterable[Path] = ()) -> PhotoEncoder:
    """The encoder that config.json names; refuses if its weights here, or its preprocessing, differ.

    It is frozen, and large: models that see by the same one share it.

    folders  of the model, which may carry a tuned encoder
    """
    from tellapart.models import parts

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
    part = parts.find(folders, sha256, config.name) if tuned and config.name not in ENCODERS else None
    if (alive := _alive.get(key)) is not None:
        return alive
    encoder = parts.tuned_encoder(part, config, device) if part else _encoder_here(config, sha256, device)
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
    from tellapart.models import parts

    named = Path(config.name)
    if not named.is_absolute() and not files.is_folder(named) and not is_weights(config.name):
        return load_encoder(config, device)
    encoders, refusals = list[PhotoEncoder](), list[UserError]()
    for folder in paths.encoders():
        is_folder = pretrained.could_be(str(folder)) and files.is_folder(folder)
        if is_folder or is_weights(str(folder)) or parts.network_of(folder) == parts.CLIP_TAGGER:
            try:
                encoders.append(parts.load_encoder(replace(config, name=str(folder)), device))
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
