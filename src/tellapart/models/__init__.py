"""Model folders: a captioner or a retriever with all that is needed to use it.

config.json         which network with which settings, and the encoder that its features must come from
vocabulary.json     its words
model.safetensors   its weights, packed or not (a run folder has best.safetensors and last.safetensors instead)
README.md           the model card, where there is one
parts/              tuned encoders and taggers that it needs (`models.parts`)
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import nn

from capscore import files
from capscore.errors import UserError
from tellapart import hub, paths
from tellapart.album import EMBEDDED
from tellapart.captioners import CAPTIONERS, Captioner
from tellapart.captioners.ensemble import Ensemble
from tellapart.captioners.lora import add_lora, lora_parameters, merge_lora
from tellapart.captioners.vision_language import Generates
from tellapart.data import tokenizers
from tellapart.data.streams import REGIONS
from tellapart.data.tokenizers import Tokenizer, spellings
from tellapart.encoders import PhotoEncoder
from tellapart.models import networks, vision_language
from tellapart.models.networks import KINDS, Entry, Kind
from tellapart.models.networks import build as build
from tellapart.models.networks import build_captioner as build_captioner
from tellapart.models.networks import check_settings as check_settings
from tellapart.models.networks import is_size as is_size
from tellapart.models.networks import refuse_sizes as refuse_sizes
from tellapart.models.networks import stream_sizes as stream_sizes
from tellapart.models.networks import streams_of as streams_of
from tellapart.models.parts import encoder_from as encoder_from
from tellapart.models.weights import WEIGHTS as WEIGHTS
from tellapart.models.weights import load_weights as load_weights
from tellapart.models.weights import own_weights as own_weights
from tellapart.models.weights import put_weights as put_weights
from tellapart.models.weights import read_tensors as read_tensors
from tellapart.models.weights import refuse_others, shapes_in, weights_file
from tellapart.models.weights import save_weights as save_weights
from tellapart.models.weights import weights_sha256 as weights_sha256
from tellapart.recipe import LoraConfig

_FORMAT = 1
_MOST_TEXT = 1 << 24  # bytes of config.json
# of a model on the hub
PARTS = ("config.json", "vocabulary.json", "tokenizer.json", "README.md", "*.safetensors", "parts/*")

Inputs = dict[str, dict[str, Any]]  # the streams that a model takes, by name, and the identity of what each comes from


@dataclass
class Model:
    captioner: Captioner
    tokenizer: Tokenizer
    inputs: Inputs  # what it takes
    sha256: str  # of the weights
    folders: tuple[Path, ...] = ()  # its own, which may carry what makes its inputs
    encoder: PhotoEncoder | None = None  # of its regions, where that comes with the model


def describe(
    folder: Path,
    name: str,
    network: nn.Module,
    tokenizer: Tokenizer | None,
    inputs: Mapping[str, dict[str, Any]],
    kind: Kind = "captioner",
    base: Mapping[str, Any] | None = None,
) -> None:
    """Write all of a model folder but the weights.

    base  the model that it learned over (`describe_base`)
    """
    # A single stream is written as all models had it once, so that earlier versions read it, too.
    alone = set(inputs) <= {REGIONS}
    streams = {"encoder": inputs.get(REGIONS, {})} if alone else {"inputs": dict(inputs)}
    settings = asdict(network.config) if hasattr(network, "config") else {}  # type: ignore[call-overload]
    config = {"format": _FORMAT, kind: name, "settings": settings, **streams, **({"base": dict(base)} if base else {})}
    files.replace(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode())
    if tokenizer is not None:
        tokenizer.save(folder)


def rebuild(folder: Path, table: Mapping[str, Entry], kind: Kind, config: Config) -> tuple[nn.Module, str]:
    """The network of a model folder with its weights, and the hash of their file.

    What config.json says of its size is believed when the weights are of that size: nothing is allocated before.
    """
    try:
        shape = networks.outline_network(table, kind, config.name, config.settings)
    except UserError as error:
        raise UserError(f"{folder / 'config.json'}: {error}") from None
    file = weights_file(folder)
    refuse_others(file, shape, shapes_in(file))
    network = networks.make_network(table, config.name, config.settings)
    sha256 = load_weights(folder, network)
    networks.load_base(network, folder)
    return network, sha256


def find(name: str | Path) -> Path:
    """The folder that a name stands for: an embedded captioner, a model or run folder, or a hub id (then fetched)."""
    folder = EMBEDDED.get(str(name), Path(name))
    if not files.is_folder(folder) and hub.could_be(str(name)):
        return hub.fetch(str(name), PARTS)
    if not files.is_folder(folder):
        raise UserError(f"there is no model {str(name)!r}: neither a folder nor one of {', '.join(EMBEDDED)}.")
    return folder


@dataclass
class Config:
    """The contents of config.json."""

    name: str  # of the network, in its table
    settings: dict[str, Any]
    inputs: Inputs
    base: dict[str, Any] = field(default_factory=dict)  # the model that it learned over


def read_config(folder: Path, kind: Kind) -> Config:
    if not os.path.lexists(folder / "config.json"):
        raise UserError(f"{folder} is not a model or run folder: it has no config.json.")
    file = files.inside(folder, "config.json")
    data = files.read_bytes(file, most=_MOST_TEXT)
    try:
        config = json.loads(data)
        if config["format"] != _FORMAT:
            raise ValueError
        (stated,) = [name for name in KINDS if name in config]
        read = Config(str(config[stated]), dict(config["settings"]), _inputs(config), dict(config.get("base", {})))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{file} is damaged, or of a version that this one cannot read.") from None
    if stated != kind:
        raise UserError(f"{folder} holds a {stated} ({read.name}), not a {kind}.")
    return read


def _inputs(config: dict[str, Any]) -> Inputs:
    if "inputs" in config:
        return {str(name): dict(identity) for name, identity in config["inputs"].items()}
    encoder = dict(config["encoder"])
    return {REGIONS: encoder} if encoder else {}


def load(name: str | Path, device: torch.device, *, prompt: str | None = None, dtype: str | None = None) -> Model:
    """A captioner; or several as one, if they are named as A+B.

    prompt, dtype  of a vision-language model: what it is asked, and its number type
    """
    names = members(str(name))
    if len(names) > 1 and not all(names):
        raise UserError(f"{str(name)!r}: there must be a model on both sides of a plus.")
    loaded = [_load_one(member, device, prompt, dtype) for member in names]
    return loaded[0] if len(loaded) == 1 else _ensemble(names, loaded)


def members(name: str) -> list[str]:
    """The models that A+B names.  What is a model as a whole is that: a folder's name may have a plus in it."""
    parts = name.split("+")
    for length in range(len(parts), 0, -1):
        whole, others = "+".join(parts[:length]), parts[length:]
        if whole in EMBEDDED or files.is_folder(Path(whole)) or length == 1:
            break
    return [whole, *(members("+".join(others)) if others else [])]


def _ensemble(names: list[str], loaded: list[Model]) -> Model:
    first, inputs = loaded[0], Inputs()
    if any(model.encoder is not None for model in loaded):
        raise UserError(f"{'+'.join(names)}: vision-language models cannot be averaged with others.")
    words = [spellings(model.tokenizer) for model in loaded]
    for name, model, vocabulary in zip(names, loaded, words, strict=True):
        for place, (word, other) in enumerate(zip_longest(words[0], vocabulary)):
            if word != other:
                first_word, second = ("absent" if text is None else repr(text) for text in (word, other))
                raise UserError(
                    f"{names[0]} and {name} have different vocabularies: word {place} is {first_word} in the first "
                    f"and {second} in the second."
                )
        # One may take a stream that the other does not need; what both take must be the same.
        if any(inputs.setdefault(stream, identity) != identity for stream, identity in model.inputs.items()):
            raise UserError(
                f"{names[0]} and {name} learned from features of different encoders; models of an ensemble must "
                "share theirs."
            )
    sha256 = hashlib.sha256(" ".join(model.sha256 for model in loaded).encode()).hexdigest()
    folders = tuple(folder for model in loaded for folder in model.folders)
    return Model(Ensemble([model.captioner for model in loaded]), first.tokenizer, inputs, sha256, folders)


def _load_one(name: str, device: torch.device, prompt: str | None = None, dtype: str | None = None) -> Model:
    folder = find(name)
    if vision_language.is_one(folder):
        return vision_language.load(name, device, prompt, dtype or "auto")
    if prompt is not None or dtype is not None:
        option = "prompt" if prompt is not None else "dtype"
        raise UserError(f"{name}: --{option} is for vision-language models and servers; this is neither.")
    config = read_config(folder, "captioner")
    if config.base:
        return _load_over_base(folder, config.base, device)
    tokenizer = load_tokenizer(folder, config.settings)
    captioner, sha256 = rebuild(folder, CAPTIONERS, "captioner", config)
    captioner = for_inference(captioner.to(device))
    return Model(captioner, tokenizer, config.inputs, sha256, (folder,))  # type: ignore[arg-type]


def load_tokenizer(folder: Path, settings: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a model folder; refuses one of another model."""
    tokenizer = tokenizers.load(folder)
    if len(tokenizer) != settings.get("vocab_size"):
        raise UserError(
            f"{folder}: vocabulary.json has {len(tokenizer)} tokens, the model {settings.get('vocab_size')}."
        )
    return tokenizer


def for_inference(captioner: nn.Module) -> nn.Module:
    """The same captioner, quicker on a CPU at one word at a time, when the few rows of a beam meet large matrices.

    Laid out by columns, a matrix is multiplied with few rows in about half the time (measured: 4,000 words, 3 rows).
    """
    merge(captioner)
    for weight in captioner.parameters():
        weight.requires_grad_(False)
        if weight.ndim == 2 and weight.device.type == "cpu":
            weight.data = weight.data.T.contiguous().T
    return captioner.eval()


def merge(captioner: nn.Module) -> None:
    """Add LoRA to the weights that it stands beside: they are the captioner's own then, and saved with it."""
    if next(lora_parameters(captioner), None) is None:
        return
    merge_lora(captioner)
    if "frozen_names" in vars(captioner):
        captioner.frozen_names = frozenset()  # type: ignore[assignment]
    config: Any = getattr(captioner, "config", None)
    if hasattr(config, "lora_rank"):
        captioner.config = replace(config, lora_rank=0, frozen=False)


def start_from(name: str | Path, captioner: nn.Module, inputs: Inputs) -> None:
    """Give a new captioner the weights of another that learned from the same inputs."""
    folder = find(name)
    other_config = read_config(folder, "captioner")
    theirs = other_config.inputs
    if theirs.keys() != inputs.keys():
        raise UserError(
            f"init_from: {folder} takes the streams {', '.join(theirs)}, and this run gives {', '.join(inputs)}."
        )
    for stream, encoder in inputs.items():
        other = theirs[stream]
        # With more frames there are more rows of the same kind, so a captioner of photos can be fine-tuned on clips.
        fields = sorted((encoder.keys() | other.keys()) - {"frames"})
        if (field := next((key for key in fields if encoder.get(key) != other.get(key)), None)) is None:
            continue
        raise UserError(
            f"init_from: {folder} learned from features of another encoder: {field} is {other.get(field)} there "
            f"and {encoder.get(field)} here."
        )
    base, ours = other_config.settings.get("base_sha256"), getattr(captioner.config, "base_sha256", None)
    if getattr(captioner, "frozen_names", ()) and base != ours:
        raise UserError(
            f"init_from: {folder} was trained over another language model: {str(base)[:8]}, not {str(ours)[:8]}."
        )
    load_weights(folder, captioner)


def encoder_of(model: Model, device: torch.device) -> PhotoEncoder:
    """The encoder of a model's regions."""
    if model.encoder is not None:
        return model.encoder
    return encoder_from(model.inputs.get(REGIONS, {}), device, model.folders)


# Captioners that learned over another model, their base: run folders have what was trained, and name the rest.  So are
# vision-language models trained, whose vision tower stays as it is, and any captioner by LoRA.

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


def load_trainable(name: str, device: torch.device) -> Model:
    """The model that a run is to train over, in fp32: bf16 is too coarse for small steps, and so only computed in."""
    model = load(name, device, dtype="fp32" if vision_language.is_one(find(name)) else None)
    if isinstance(model.captioner, Generates):
        raise UserError(f"{name}: this model can only be asked by transformers' generate, and cannot be trained.")
    return model


def describe_base(name: str, model: Model, lora: LoraConfig) -> dict[str, Any]:
    """The entry of the base in config.json of a run."""
    folder = Path(name)
    where = str(folder.absolute()) if files.is_folder(folder) else name
    return {"name": where, "sha256": model.sha256, "lora": asdict(lora)}


def _load_over_base(folder: Path, settings: dict[str, Any], device: torch.device) -> Model:
    """The model of a run folder."""
    try:
        name, sha256, lora = str(settings["name"]), str(settings["sha256"]), LoraConfig(**settings["lora"])
    except (KeyError, TypeError):
        raise UserError(f"{folder / 'config.json'} is damaged: its base has no name, sha256 or lora.") from None
    model = load_trainable(_allowed(name, folder), device)
    if model.sha256 != sha256:
        raise UserError(f"{folder} was trained over {name} with weights {sha256[:8]}; now they are {model.sha256[:8]}.")
    captioner: Any = model.captioner
    make_trainable(captioner, lora)
    weights_hash = load_weights(folder, captioner)
    merge(captioner)
    captioner.requires_grad_(False)
    return replace(model, sha256=weights_hash)


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
