"""Model folders: a captioner or a retriever with all that is needed to use it.

config.json         which network with which settings, and the encoder that its features must come from
vocabulary.json     its words
model.safetensors   its weights, packed or not (a run folder has best.safetensors and last.safetensors instead; an
                    exported one, encode.onnx and step.onnx)
README.md           the model card, where there is one
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from tellapart import files, hub, paths
from tellapart.album import EMBEDDED
from tellapart.captioners import CAPTIONERS, Captioner
from tellapart.captioners.ensemble import Ensemble
from tellapart.data import tokenizers
from tellapart.data.streams import REGIONS, STREAMS
from tellapart.data.tokenizers import Tokenizer, spellings
from tellapart.encoders import PhotoEncoder, pretrained
from tellapart.encoders.loading import load as load_encoder
from tellapart.errors import UserError
from tellapart.models.onnx import captioner as exported
from tellapart.models.packing import SCALE, unpacked
from tellapart.recipe import EncoderConfig

Kind = Literal["captioner", "retriever", "network"]  # the third: neither of the two, such as a tagger
KINDS: tuple[Kind, ...] = get_args(Kind)
Part = TypeVar("Part")
_FORMAT = 1
_MOST_TEXT = 1 << 24  # bytes of config.json
WEIGHTS = ("model.safetensors", "best.safetensors", "last.safetensors")  # the first that a folder has is used
PARTS = ("config.json", "vocabulary.json", "README.md", "*.safetensors", "*.onnx")  # of a model on the hub


Inputs = dict[str, dict[str, Any]]  # the streams that a model takes, by name, and the identity of what each comes from


@dataclass
class Model:
    captioner: Captioner
    tokenizer: Tokenizer
    inputs: Inputs  # what it takes
    sha256: str  # of the weights


class Entry(Protocol):
    """A line of a table of networks."""

    def load(self) -> tuple[Callable[..., Any], type]:
        """The network's class and the dataclass of its settings."""


MOST_LAYERS, MOST_SIZE, MOST_WORDS = 1000, 1 << 16, 10_000_000  # of a setting
MOST_WEIGHTS = 1 << 31  # of a network
SIZES = ("vocab_size", "feature_size", "sentence_size")  # settings that follow from the data, not from a recipe


def build(table: Mapping[str, Entry], kind: Kind, name: str, settings: Mapping[str, Any]) -> nn.Module:
    """A network with fresh weights; settings that it does not know are named, sizes that it does not need left out."""
    _outline(table, kind, name, settings)
    return _made(table, name, settings)


def _outline(table: Mapping[str, Entry], kind: Kind, name: str, settings: Mapping[str, Any]) -> nn.Module:
    """The network without its weights, which takes no memory, however large it would be."""
    check_settings(table, kind, name, settings)
    with torch.device("meta"):
        outline = _made(table, name, settings)
    count = sum(weight.numel() for weight in outline.parameters())
    if count > MOST_WEIGHTS:
        raise UserError(f"model: {name} would have {count} weights with these settings; {MOST_WEIGHTS} is the most.")
    return outline


def _made(table: Mapping[str, Entry], name: str, settings: Mapping[str, Any]) -> nn.Module:
    make, config = table[name].load()
    known = {f.name for f in fields(config)}
    try:
        made: nn.Module = make(config(**{key: value for key, value in settings.items() if key in known}))
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise UserError(f"model: {name} cannot be built with these settings ({hub.reason(error)}).") from None
    return made


def check_settings(table: Mapping[str, Entry], kind: Kind, name: str, settings: Mapping[str, Any]) -> None:
    """What may be set, and to what: whole numbers are sizes and counts, others are shares."""
    if name not in table:
        raise UserError(f"there is no {kind} {name!r}; there are {', '.join(table)}.")
    _, config = table[name].load()
    known, types = {f.name: f for f in fields(config)}, get_type_hints(config)
    if unknown := sorted(settings_of(settings) - set(known)):
        there = ", ".join(sorted(settings_of(known)))
        raise UserError(f"model.{unknown[0]}: {name} has no such setting; it has {there}.")
    for key in settings.keys() & known.keys():
        value, wanted = settings[key], types[key]
        if wanted is bool:
            if not isinstance(value, bool):
                raise UserError(f"model.{key} must be true or false, not {_shown(value)}.")
            continue
        least: float = known[key].metadata.get("least", 0 if wanted is float or key.endswith("layers") else 1)
        most: float = 1 if wanted is float else MOST_LAYERS if key.endswith("layers") else MOST_SIZE
        if is_size(key):
            most = MOST_WORDS
        number = isinstance(value, int | float if wanted is float else int) and not isinstance(value, bool)
        if not number or not least <= value <= most:
            what = "a number" if wanted is float else "a whole number"
            raise UserError(f"model.{key} must be {what} from {least} to {most}, not {_shown(value)}.")


def _shown(value: object) -> str:
    return repr(value)[:40] if isinstance(value, int | float | str) else files.type_of(value)


def build_captioner(
    name: str, settings: dict[str, Any], *, vocab_size: int, feature_sizes: Mapping[str, int]
) -> nn.Module:
    """feature_sizes  of each stream that it is given, which must be those that it takes"""
    refuse_sizes(settings)
    if name in CAPTIONERS:
        require_streams(name, feature_sizes)
    sizes = {"vocab_size": vocab_size, **stream_sizes(feature_sizes)}
    return build(CAPTIONERS, "captioner", name, settings | sizes)


def stream_sizes(feature_sizes: Mapping[str, int]) -> dict[str, int]:
    """The settings that say how many numbers a row of each stream has."""
    return {"feature_size" if name == REGIONS else f"{name}_size": size for name, size in feature_sizes.items()}


def streams_of(captioner: str) -> tuple[str, ...]:
    """The streams that a captioner takes."""
    make, _ = CAPTIONERS[captioner].load()
    return tuple(getattr(make, "streams", (REGIONS,)))


def require_streams(captioner: str, given: Iterable[str]) -> None:
    wanted, given = streams_of(captioner), list(given)
    for name in given:
        if name not in wanted:
            raise UserError(f"inputs.{name}: {captioner} takes no such stream; it takes {', '.join(wanted)}.")
    for name in wanted:
        if name not in given:
            raise UserError(f"inputs: {captioner} takes a stream {name!r} too, which the recipe does not give it.")


def settings_of(names: Iterable[str]) -> set[str]:
    """Those that are set, without those that follow from the data."""
    return {name for name in names if not is_size(name)}


def is_size(setting: str) -> bool:
    """Whether a setting follows from the data, and not from a recipe."""
    return setting in SIZES or setting in {f"{name}_size" for name in STREAMS}


def refuse_sizes(settings: dict[str, Any]) -> None:
    for size in settings:
        if is_size(size):
            raise UserError(f"model.{size}: follows from the data and cannot be set.")


def describe(
    folder: Path,
    name: str,
    network: nn.Module,
    tokenizer: Tokenizer | None,
    inputs: Mapping[str, dict[str, Any]],
    kind: Kind = "captioner",
) -> None:
    """Write all of a model folder but the weights."""
    # A single stream is written as all models had it once, so that earlier versions read it, too.
    alone = set(inputs) <= {REGIONS}
    seen = {"encoder": inputs.get(REGIONS, {})} if alone else {"inputs": dict(inputs)}
    config = {"format": _FORMAT, kind: name, "settings": asdict(network.config), **seen}  # type: ignore[call-overload]
    files.replace(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode())
    if tokenizer is not None:
        tokenizer.save(folder)


def own_weights(network: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint has of a network, in the network's own number types.

    Without the weights of a frozen base, which the network names in `frozen_names`; and where two names share a
    tensor, as input and output words often do, under the first name alone.
    """
    frozen = set(getattr(network, "frozen_names", ()))
    names = {name for name, _ in network.named_parameters()} | {name for name, _ in network.named_buffers()}
    return {name: tensor for name, tensor in network.state_dict().items() if name in names and name not in frozen}


def save_weights(file: Path, network: nn.Module, dtype: torch.dtype | None = None) -> None:
    """dtype  of the file, if not the network's own"""
    weights = {name: tensor.detach().to(dtype=dtype).contiguous() for name, tensor in own_weights(network).items()}
    files.replace(file, save_tensors(weights))


def rebuild(folder: Path, table: Mapping[str, Entry], kind: Kind, config: Config) -> tuple[nn.Module, str]:
    """The network of a model folder with its weights, and the hash of their file.

    What config.json says of its size is believed when the weights are of that size: nothing is allocated before.
    """
    try:
        outline = _outline(table, kind, config.name, config.settings)
    except UserError as error:
        raise UserError(f"{folder / 'config.json'}: {error}") from None
    file = _weights_file(folder)
    refuse_others(file, outline, _shapes(file))
    network = _made(table, config.name, config.settings)
    return network, load_weights(folder, network)


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
    """What config.json says."""

    name: str  # of the network, in its table
    settings: dict[str, Any]
    inputs: Inputs


def read_config(folder: Path, kind: Kind) -> Config:
    if not os.path.lexists(folder / "config.json"):
        raise UserError(f"{folder} is not a model or run folder: it has no config.json.")
    file = files.inside(folder, "config.json")
    data = files.read_bytes(file, most=_MOST_TEXT)
    try:
        config = json.loads(data)
        if config["format"] != _FORMAT:
            raise ValueError
        (found,) = [known for known in KINDS if known in config]
        read = Config(str(config[found]), dict(config["settings"]), _inputs(config))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{file} is damaged, or of a version that this one cannot read.") from None
    if found != kind:
        raise UserError(f"{folder} holds a {found} ({read.name}), not a {kind}.")
    return read


def _inputs(config: dict[str, Any]) -> Inputs:
    if "inputs" in config:
        return {str(name): dict(identity) for name, identity in config["inputs"].items()}
    encoder = dict(config["encoder"])
    return {REGIONS: encoder} if encoder else {}


def load(name: str | Path, device: torch.device) -> Model:
    """A captioner; or several as one, if they are named as A+B."""
    names = members(str(name))
    if len(names) > 1 and not all(names):
        raise UserError(f"{str(name)!r}: there must be a model on both sides of a plus.")
    loaded = [_load_one(one, device) for one in names]
    return loaded[0] if len(loaded) == 1 else _ensemble(names, loaded)


def members(name: str) -> list[str]:
    """The models that A+B names.  What is a model as a whole is that: a folder's name may have a plus in it."""
    parts = name.split("+")
    lengths = range(len(parts), 0, -1)
    length = next((length for length in lengths if _is_there("+".join(parts[:length]))), 1)
    others = parts[length:]
    return ["+".join(parts[:length]), *(members("+".join(others)) if others else [])]


def _is_there(name: str) -> bool:
    return name in EMBEDDED or files.is_folder(Path(name))


def _ensemble(names: list[str], loaded: list[Model]) -> Model:
    first, inputs = loaded[0], Inputs()
    words = [spellings(model.tokenizer) for model in loaded]
    for name, model, own in zip(names, loaded, words, strict=True):
        for place, (one, other) in enumerate(zip_longest(words[0], own)):
            if one != other:
                raise UserError(
                    f"{names[0]} and {name} have different vocabularies: word {place} is {_quoted(one)} in the first "
                    f"and {_quoted(other)} in the second."
                )
        # One may take a stream that the other does not need; what both take must be the same.
        if any(inputs.setdefault(stream, identity) != identity for stream, identity in model.inputs.items()):
            raise UserError(
                f"{names[0]} and {name} learned from features of different encoders; models that speak together must "
                "share theirs."
            )
    sha256 = hashlib.sha256(" ".join(model.sha256 for model in loaded).encode()).hexdigest()
    return Model(Ensemble([model.captioner for model in loaded]), first.tokenizer, inputs, sha256)


def _quoted(word: str | None) -> str:
    return "absent" if word is None else repr(word)


def _load_one(name: str, device: torch.device) -> Model:
    folder = find(name)
    config = read_config(folder, "captioner")
    tokenizer = load_tokenizer(folder, config.settings)
    if exported.is_exported(folder):
        runs, sha256 = exported.load(folder, config.settings)
        return Model(runs, tokenizer, config.inputs, sha256)
    captioner, sha256 = rebuild(folder, CAPTIONERS, "captioner", config)
    captioner = for_inference(captioner.to(device))
    return Model(captioner, tokenizer, config.inputs, sha256)  # type: ignore[arg-type]


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
    for weight in captioner.parameters():
        weight.requires_grad_(False)
        if weight.ndim == 2 and weight.device.type == "cpu":
            weight.data = weight.data.T.contiguous().T
    return captioner.eval()


def start_from(name: str | Path, captioner: nn.Module, inputs: Inputs) -> None:
    """Give a new captioner the weights of another that learned from the same inputs."""
    folder = find(name)
    theirs = read_config(folder, "captioner").inputs
    if theirs.keys() != inputs.keys():
        raise UserError(
            f"init_from: {folder} takes the streams {', '.join(theirs)}, and this run gives {', '.join(inputs)}."
        )
    for stream, encoder in inputs.items():
        if (other := theirs[stream]) == encoder:
            continue
        field = next(key for key in sorted(encoder.keys() | other.keys()) if encoder.get(key) != other.get(key))
        raise UserError(
            f"init_from: {folder} learned from features of another encoder: {field} is {other.get(field)} there "
            f"and {encoder.get(field)} here."
        )
    load_weights(folder, captioner)


def load_weights(folder: Path, captioner: nn.Module) -> str:
    """The best weights that a folder has, into a captioner of the same shape; returns the hash of their file."""
    file = _weights_file(folder)
    tensors, _ = read_tensors(file)
    put_weights(file, captioner, unpacked(_of_model(file, tensors)))
    return hashlib.sha256(files.read_bytes(file)).hexdigest()


def _weights_file(folder: Path) -> Path:
    for name in WEIGHTS:
        if os.path.lexists(folder / name):
            return files.inside(folder, name)
    raise UserError(f"{folder} has no weights: none of {', '.join(WEIGHTS)}.")


def _of_model(file: Path, parts: dict[str, Part]) -> dict[str, Part]:
    """Without the state of the training, which a run's last checkpoint has beside the weights."""
    if file.name != "last.safetensors":
        return parts
    return {key.removeprefix("model/"): part for key, part in parts.items() if key.startswith("model/")}


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Of the weights in a file, of which the header alone is read."""
    try:
        with safe_open(file, "pt") as opened:
            shapes = {key: tuple(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError):
        raise UserError(f"{file} is not a safetensors file, or is damaged.") from None
    shapes = _of_model(file, shapes)
    packed = {key for key in shapes if key.endswith(SCALE) and key.removesuffix(SCALE) in shapes}
    return {key: shape for key, shape in shapes.items() if key not in packed}


def put_weights(file: Path, captioner: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Refuses the weights of another model, and says where they differ."""
    refuse_others(file, captioner, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    captioner.load_state_dict(tensors, strict=False)  # names that are left out share a tensor, or are of a frozen base


def refuse_others(file: Path, captioner: nn.Module, found: Mapping[str, tuple[int, ...]]) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in own_weights(captioner).items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"{file} is a checkpoint of another model: {name} is {found.get(name, 'absent')} there "
                f"and {wanted.get(name, 'absent')} here."
            )


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    data = files.read_bytes(file)
    try:
        tensors = load_tensors(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return tensors, header.get("__metadata__", {})
    except (SafetensorError, ValueError):
        raise UserError(f"{file} is not a safetensors file, or is damaged.") from None


def encoder_of(model: Model, device: torch.device) -> PhotoEncoder:
    """The encoder of a model's regions."""
    return encoder_from(model.inputs.get(REGIONS, {}), device)


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
    if not Path(config.name).is_absolute() and not files.is_folder(Path(config.name)):
        return load_encoder(config, device)
    encoders = []
    for folder in paths.encoders():
        if pretrained.could_be(str(folder)) and files.is_folder(folder):
            encoders.append(load_encoder(replace(config, name=str(folder)), device))
            if encoders[-1].weights_sha256 == sha256:
                return encoders[-1]
    if encoders:
        return encoders[0]
    raise UserError(
        f"the model was trained on features of a network in the folder {config.name}, with weights {sha256[:8]}; a "
        "model does not decide what is read from outside of its own folder.  If you trust that network, name its "
        "folder: TELLAPART_ENCODERS=FOLDER."
    )
