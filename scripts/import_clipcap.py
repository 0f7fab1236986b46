"""A checkpoint of the authors' ClipCap program as a model folder.

python scripts/import_clipcap.py coco_weights.pt --gpt2 GPT2_FOLDER --clip CLIP_FOLDER --out models/clipcap
tellapart caption holiday/ --model models/clipcap

Theirs is a pickled state dict of GPT-2 and one of the two mappers, without sizes, tokenizer or encoder: sizes follow
from the tensors, the rest must be given.  Their captions end with a full stop.
"""

from __future__ import annotations

import argparse
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capscore import files
from capscore.errors import UserError
from tellapart.captioners import CAPTIONERS, language_models
from tellapart.data import tokenizers
from tellapart.data.streams import REGIONS
from tellapart.encoders.loading import load
from tellapart.models import build, describe, put_weights, save_weights
from tellapart.recipe import EncoderConfig

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


def _load(file: Path) -> dict[str, Tensor]:
    try:
        weights = torch.load(files.regular(file), weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError):
        raise UserError(f"{file} is not a checkpoint of weights alone, or is damaged.") from None
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise UserError(f"{file} is not a checkpoint of ClipCap.")
    return weights


def _ours(file: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefixes = tuple(theirs for theirs, _ in _NAMES)
    kept = {name: tensor.float() for name, tensor in weights.items() if not _TABLES.search(name)}
    kept.pop("gpt.lm_head.weight", None)  # the same as wte
    if other := next((name for name in kept if not name.startswith(prefixes)), None):
        raise UserError(f"{file} is not a checkpoint of ClipCap: it has {other[:60]!r}.")
    return {_renamed(name): tensor for name, tensor in kept.items()}


def _renamed(name: str) -> str:
    for theirs, ours in _NAMES:
        if name.startswith(theirs):
            rest = name.removeprefix(theirs)
            if ours == "mapper.layers.":
                number, _, inner = rest.partition(".")
                rest = f"{number}.{inner.removeprefix('attn.').removeprefix('mlp.')}"
            return ours + rest
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a .pt file of the authors' program, with either mapper")
    parser.add_argument("--gpt2", default="openai-community/gpt2", help="folder or hub id, for the tokenizer")
    parser.add_argument("--clip", default="openai/clip-vit-base-patch32", help="folder or hub id")
    parser.add_argument("--out", type=Path, required=True)
    request = parser.parse_args()
    encoder = load(EncoderConfig(request.clip, 224, 1, "projected"), torch.device("cpu"))
    read(request.checkpoint, language_models.find(request.gpt2), encoder.identity, request.out)
