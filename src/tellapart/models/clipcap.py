"""Checkpoints of the authors' ClipCap program: read into a model folder of ours, and written back.

Theirs is a pickled state dict of GPT-2 and one of the two mappers, without sizes, tokenizer or encoder: sizes follow
from the tensors, the rest must be given.  Their captions end with a full stop.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capscore import files
from capscore.errors import UserError
from tellapart.captioners import CAPTIONERS
from tellapart.data import tokenizers
from tellapart.data.streams import REGIONS
from tellapart.models import build, describe, own_weights, put_weights, save_weights

_HEAD = 64  # width of a head in GPT-2 of every size
_MAPPER_HEADS = 8  # in their program
_TABLES = re.compile(r"\.attn\.(masked_)?bias$")  # of which words see which, in older versions of transformers
_NAMES = [  # theirs, ours
    ("gpt.", "language_model."),
    ("clip_project.model.0.", "mapper.inner."),
    ("clip_project.model.2.", "mapper.outer."),
    ("clip_project.linear.", "mapper.linear."),
    ("clip_project.prefix_const", "mapper.prefix"),
    ("clip_project.transformer.layers.", "mapper.layers."),
]


def read(file: Path, tokenizer: Path, encoder: dict[str, Any], out: Path, heads: int = 0) -> nn.Module:
    """Make a model folder of a checkpoint.

    tokenizer  folder of GPT-2, for its tokenizer.json and config.json
    encoder    identity of what its photos are seen with: CLIP's projected vector
    heads      of GPT-2; 0: as all sizes that were published have them
    """
    weights = _ours(file, _load(file))
    words = tokenizers.of_language_model(tokenizer, end=".")
    settings = _settings(file, weights, heads)
    if len(words) != settings["vocab_size"]:
        raise UserError(
            f"{file}: the model has {settings['vocab_size']} tokens, the tokenizer of {tokenizer} {len(words)}."
        )
    network = build(CAPTIONERS, "captioner", "clipcap", settings)
    put_weights(file, network, weights)
    out.mkdir(parents=True, exist_ok=True)
    describe(out, "clipcap", network, words, {REGIONS: encoder})
    save_weights(out / "model.safetensors", network)
    return network.eval()


def write(file: Path, network: nn.Module) -> None:
    """A captioner of ours as the authors' program reads it."""
    weights = {_renamed(name, ours=1, theirs=0): tensor for name, tensor in own_weights(network).items()}
    weights["gpt.lm_head.weight"] = weights["gpt.transformer.wte.weight"]
    torch.save(weights, file)


def _load(file: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(files.regular(file), weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError):
        raise UserError(f"{file} is not a checkpoint of weights alone, or is damaged.") from None
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise UserError(f"{file} is not a checkpoint of ClipCap.")
    return found


def _ours(file: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    known = tuple(theirs for theirs, _ in _NAMES)
    kept = {name: tensor.float() for name, tensor in weights.items() if not _TABLES.search(name)}
    kept.pop("gpt.lm_head.weight", None)  # the same as wte
    if other := next((name for name in kept if not name.startswith(known)), None):
        raise UserError(f"{file} is not a checkpoint of ClipCap: it has {other[:60]!r}.")
    return {_renamed(name, ours=0, theirs=1): tensor for name, tensor in kept.items()}


def _renamed(name: str, ours: int, theirs: int) -> str:
    """From the column `ours` of the table of names to the other."""
    for pair in _NAMES:
        if name.startswith(pair[ours]):
            rest = name.removeprefix(pair[ours])
            if pair[0].endswith("layers."):
                place, _, own = rest.partition(".")
                if theirs == 1:
                    own = own.removeprefix("attn.").removeprefix("mlp.")
                elif not own.startswith("norm"):
                    own = ("mlp." if own.startswith("fc") else "attn.") + own
                rest = f"{place}.{own}"
            return pair[theirs] + rest
    return name


def _settings(file: Path, weights: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
    try:
        words, width = weights["language_model.transformer.wte.weight"].shape
        sizes = {"n_embd": width, "n_layer": _count(weights, "language_model.transformer.h.")}
        sizes |= {"n_positions": len(weights["language_model.transformer.wpe.weight"])}
        sizes |= {"n_head": heads or max(1, width // _HEAD), "vocab_size": words}
        if "mapper.prefix" in weights:
            rows, feature_size = weights["mapper.linear.weight"].shape
            mapper: dict[str, Any] = {"mapper": "transformer", "prefix": len(weights["mapper.prefix"])}
            mapper |= {"image_tokens": rows // width, "mapper_layers": _count(weights, "mapper.layers.")}
            mapper |= {"mapper_heads": _MAPPER_HEADS}
        else:
            feature_size = weights["mapper.inner.weight"].shape[1]
            mapper = {"mapper": "mlp", "prefix": len(weights["mapper.outer.weight"]) // width}
    except (KeyError, ValueError, IndexError):
        raise UserError(f"{file} is not a checkpoint of ClipCap: it lacks GPT-2 or a mapper.") from None
    architecture = {"model_type": "gpt2", **sizes}
    return {"vocab_size": words, "feature_size": feature_size, "architecture": architecture, **mapper}


def _count(weights: Mapping[str, Tensor], start: str) -> int:
    return len({name.removeprefix(start).partition(".")[0] for name in weights if name.startswith(start)})
