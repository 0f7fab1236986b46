"""Networks in the form of transformers, from a folder or the Hugging Face hub: what loading them has in common.

Weights are read from safetensors only, and no code that comes with a model is run.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from capscore.system import package as package_folder
from tellapart import hub
from tellapart.hub import reason

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation of its colours
_LAYERS = re.compile("layers|n_layer|depth|expert|stage|block")
_MOST_LAYERS, _MOST_SIZE = 1000, 10_000_000
_MOST_MISSING = 1 << 30  # bytes: a tower that is not used, for instance
_PARTS = ("*.json", "*.jinja", "*.txt", "*.model", "model*.safetensors")  # on the hub; never programs or pickles


def could_be(name: str) -> bool:
    """True of a folder in the form of transformers, and of what may be the name of a model on the hub."""
    folder = Path(name)
    if not files.is_folder(folder):
        return hub.could_be(name)
    try:
        return "model_type" in files.read_json(folder / "config.json")
    except UserError:
        return False


def find(source: str, install: str) -> Path:
    """The folder of a model that is given as a folder or as a hub id; fetched if need be.

    install  the command that brings what such models need
    """
    if package_folder("transformers") is None:
        raise UserError(f"{source}: it is loaded with transformers, which is not installed; `{install}` brings it.")
    quiet()
    folder = Path(source) if files.is_folder(Path(source)) else hub.fetch(source, _PARTS)
    _check(folder)
    return folder


def _check(folder: Path) -> None:
    """All that transformers opens is in the folder, and what config.json asks for is not absurd."""
    for file in folder.iterdir():
        if not files.is_folder(file):
            files.inside(folder, file.name)
    if (folder / "adapter_config.json").exists():
        raise UserError(f"{folder}: adapter_config.json names another model, which is not read.")
    for name in sorted(file.name for file in folder.glob("*.json")):
        if name.endswith("config.json"):
            _check_values(folder, name, files.read_json(folder / name), name == "config.json")
    if (index := folder / "model.safetensors.index.json").exists():
        parts = files.read_json(index).get("weight_map")
        for part in set(map(str, parts.values())) if isinstance(parts, dict) else ():
            files.inside(folder, part)


def check_architecture(values: dict[str, Any]) -> None:
    """The same for a config in another folder, such as a model folder of ours."""
    _check_values(Path(), "config.json", values, True)


def _check_values(folder: Path, name: str, values: Any, sizes: bool) -> None:
    """sizes  whether numbers are sizes and counts of a network"""
    if not isinstance(values, dict):
        return
    for key, value in values.items():
        _check_values(folder, name, value, sizes)
        where = f"{folder / name}: {key}"
        if isinstance(value, str) and key.endswith("_file") and files.is_file(folder / value):
            files.inside(folder, value)
        elif key == "use_pretrained_backbone" and value:
            raise UserError(f"{where}: another network is named, which is not read.")
        elif key.endswith("attn_implementation") and "/" in str(value):
            raise UserError(f"{where}: {str(value)[:60]!r} is a program, which is not run.")
        elif sizes:
            counts = value if isinstance(value, list) else [value]
            numbers = [number for number in counts if isinstance(number, int)]
            most = _MOST_LAYERS if _LAYERS.search(key) else _MOST_SIZE
            if len(counts) > _MOST_LAYERS or max(numbers, default=0) > most:
                raise UserError(f"{where} is too large; {most} is the most.")


def quiet() -> None:
    """No reports or bars of transformers; a download shows its own bar on a terminal."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from huggingface_hub.utils import enable_progress_bars
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    hub_logging.set_verbosity_error()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if sys.stderr.isatty() and "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
        enable_progress_bars()


def read_network(
    source: str, folder: Path, model: str, title: str, dtype: torch.dtype = torch.float32
) -> tuple[Any, list[str]]:
    """A network with the weights that the folder has, and the names of those that it lacks.

    model  the class in transformers
    title  what to call the network when it cannot be loaded
    """
    import transformers

    where, lacks_weights = str(folder), not any(folder.glob("*.safetensors"))
    if lacks_weights:
        if files.is_folder(Path(source)):
            others = "; others are not read, because they can carry programs" if any(folder.glob("*.bin")) else ""
            raise UserError(f"{source} has no weights in the safetensors format{others}.")
        where = source  # of older models the hub keeps a copy in that format, which transformers finds
    else:
        _refuse_oversized(source, folder, model, title)
    try:
        network, report = getattr(transformers, model).from_pretrained(
            where, use_safetensors=True, trust_remote_code=False, dtype=dtype, output_loading_info=True
        )
    except Exception as error:  # a damaged file or config fails in as many ways as there are fields
        if lacks_weights:
            raise UserError(
                f"{source}: model.safetensors was wanted, and neither this machine nor the Hugging Face hub gave it; "
                "a local folder with the files of the model can be given instead."
            ) from None
        raise UserError(f"{source}: the {title} cannot be loaded ({reason(error)}).") from None
    return network, sorted(report["missing_keys"])


def _refuse_oversized(source: str, folder: Path, model: str, title: str) -> None:
    """transformers allocates what config.json says before it looks for the weights.  Some may be missing; not most."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        kind = getattr(transformers, model)
        with torch.device("meta"):  # which takes no memory
            outline = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
        needed = 4 * sum(weight.numel() for weight in outline.parameters())
    except Exception as error:
        raise UserError(f"{source}: the {title} cannot be loaded ({reason(error)}).") from None
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if needed > 8 * stored + _MOST_MISSING:  # weights may be there in half precision or in bytes
        raise UserError(
            f"{source}: config.json describes a {title} of {needed >> 20} MB, and the weights have {stored >> 20} MB."
        )


def refuse_incomplete(source: str, missing: list[str]) -> None:
    """transformers would go on with random numbers."""
    if missing:
        raise UserError(f"{source}: the weights are not complete: {missing[0]} is not there ({len(missing)} in all).")


def sha256(weights: Mapping[str, Tensor]) -> str:
    """Of the tensors, not of files: a model may lie in one or in several."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        array: Any = tensor.cpu().contiguous().numpy()
        digest.update(memoryview(array).cast("B") if tensor.numel() else b"")
    return digest.hexdigest()


def processor(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The folder's file of preprocessing and its settings; empty where there is none."""
    if (file := folder / "preprocessor_config.json").exists():
        return file, files.read_json(file)
    if (file := folder / "processor_config.json").exists():
        return file, files.read_json(file).get("image_processor") or {}
    return file, {}


def resampling(settings: dict[str, Any]) -> Image.Resampling:
    return Image.Resampling(settings.get("resample", Image.Resampling.BICUBIC))


def colours(
    settings: dict[str, Any], mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[list[float], list[float]]:
    """The mean and deviation of red, green and blue; those given, where the folder does not say."""
    stated = (settings.get("image_mean", mean), settings.get("image_std", std))
    means, deviations = ([float(red), float(green), float(blue)] for red, green, blue in stated)
    if not min(deviations) > 0:
        raise ValueError("image_std must be above 0")
    return means, deviations


def not_ready(file: Path, error: Exception) -> UserError:
    return UserError(f"{file}: photos cannot be made ready as this file says ({reason(error)}).")


def normalised(pixels: NDArray[np.uint8] | Tensor, mean: list[float], std: list[float], device: torch.device) -> Tensor:
    """pixels (B, S, S, 3) in 0..255 as networks take them, (B, 3, S, S)"""
    images = torch.as_tensor(pixels).to(device).permute(0, 3, 1, 2).float() / 255
    middle, spread = (torch.tensor(values, device=device)[:, None, None] for values in (mean, std))
    return (images - middle) / spread
