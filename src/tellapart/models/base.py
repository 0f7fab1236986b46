"""Captioners that learned over another model, their base: run folders have what was trained, and name the rest.

So are vision-language models trained, whose vision tower stays as it is, and any captioner by LoRA.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from capscore import files
from capscore.errors import UserError
from tellapart import models, paths
from tellapart.captioners.lora import add_lora
from tellapart.captioners.vision_language import Generates
from tellapart.models import vision_language
from tellapart.recipe import LoraConfig

VISION_LANGUAGE = "vision_language"  # the captioner of a recipe that starts from a model of transformers


def make_trainable(captioner: nn.Module, lora: LoraConfig) -> None:
    """Freeze what is not to be trained: all but the side that writes, or but LoRA beside its layers."""
    captioner.requires_grad_(False)
    language: nn.Module = getattr(captioner, "language", captioner)
    if lora.rank:
        add_lora(language, lora.rank, lora.alpha)
    else:
        language.requires_grad_(True)
    if not isinstance(getattr(type(captioner), "frozen_names", None), property):
        frozen = frozenset(name for name, weight in captioner.named_parameters() if not weight.requires_grad)
        captioner.frozen_names = frozen  # type: ignore[assignment]


def start(name: str, device: torch.device) -> models.Model:
    """The model that a run is to train over, in fp32: bf16 is too coarse for small steps, and so only computed in."""
    model = models.load(name, device, dtype="fp32" if vision_language.is_one(models.find(name)) else None)
    if isinstance(model.captioner, Generates):
        raise UserError(f"{name}: this model can only be asked by transformers' generate, and cannot be trained.")
    return model


def described(name: str, model: models.Model, lora: LoraConfig) -> dict[str, Any]:
    """What config.json of a run says of the base."""
    folder = Path(name)
    where = str(folder.absolute()) if files.is_folder(folder) else name
    return {"name": where, "sha256": model.sha256, "lora": asdict(lora)}


def load(folder: Path, settings: dict[str, Any], device: torch.device) -> models.Model:
    """The model of a run folder."""
    try:
        name, sha256, lora = str(settings["name"]), str(settings["sha256"]), LoraConfig(**settings["lora"])
    except (KeyError, TypeError):
        raise UserError(f"{folder / 'config.json'} is damaged: its base has no name, sha256 or lora.") from None
    model = start(_allowed(name, folder), device)
    if model.sha256 != sha256:
        raise UserError(f"{folder} was trained over {name} with weights {sha256[:8]}; now they are {model.sha256[:8]}.")
    captioner: Any = model.captioner
    make_trainable(captioner, lora)
    own = models.load_weights(folder, captioner)
    models.merge(captioner)
    captioner.requires_grad_(False)
    return replace(model, sha256=own)


def _allowed(name: str, folder: Path) -> str:
    """A downloaded model must not decide what is read from this machine: a base lies beside it, is an embedded
    one or on the hub, or the user names it."""
    path = Path(name)
    local = path.is_absolute() or ".." in path.parts or path.exists()  # otherwise an embedded one, or a hub id
    if not local or path.parent == folder.absolute().parent or path in paths.encoders():
        return name
    raise UserError(
        f"{folder} was trained over the model {name}; a model does not decide what is read from outside of its own "
        f"folder.  If you trust that model, name it: TELLAPART_ENCODERS={name}."
    )
