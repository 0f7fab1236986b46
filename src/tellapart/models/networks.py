"""Networks from their names and settings: which settings there are, what they may be, and how large a network gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from capscore import files
from capscore.errors import UserError
from tellapart import hub
from tellapart.captioners import CAPTIONERS
from tellapart.data.streams import REGIONS, STREAMS

Kind = Literal["captioner", "retriever", "network"]  # the third: neither of the two, such as a tagger
KINDS: tuple[Kind, ...] = get_args(Kind)


class Entry(Protocol):
    """A line of a table of networks."""

    def load(self) -> tuple[Callable[..., Any], type]:
        """The network's class and the dataclass of its settings."""


MOST_LAYERS, MOST_SIZE, MOST_WORDS = 1000, 1 << 16, 10_000_000  # of a setting
MOST_WEIGHTS = 1 << 31  # of a network
# settings that follow from the data or from a language model, not from a recipe
SIZES = ("vocab_size", "feature_size", "sentence_size", "architecture", "base_sha256")


def build(table: Mapping[str, Entry], kind: Kind, name: str, settings: Mapping[str, Any]) -> nn.Module:
    """A network with fresh weights; settings that it does not know are named, sizes that it does not need left out."""
    outline_network(table, kind, name, settings)
    return make_network(table, name, settings)


class _Undrawn(TorchFunctionMode):
    """First weights are not drawn: an outline has no values, and drawing them would load a compiler, for a second."""

    _DRAWS = ("normal_", "uniform_", "trunc_normal_", "xavier_uniform_", "kaiming_uniform_")

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self._DRAWS:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def outline_network(table: Mapping[str, Entry], kind: Kind, name: str, settings: Mapping[str, Any]) -> nn.Module:
    """The network without its weights, which takes no memory, however large it would be."""
    check_settings(table, kind, name, settings)
    with torch.device("meta"), _Undrawn():
        network = make_network(table, name, settings)
    count = sum(weight.numel() for weight in network.parameters())
    if count > MOST_WEIGHTS:
        raise UserError(f"model: {name} would have {count} weights with these settings; {MOST_WEIGHTS} is the most.")
    return network


def make_network(table: Mapping[str, Entry], name: str, settings: Mapping[str, Any]) -> nn.Module:
    make, config = table[name].load()
    names = {f.name for f in fields(config)}
    try:
        return make(config(**{key: value for key, value in settings.items() if key in names}))  # type: ignore[no-any-return]
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise UserError(f"model: {name} cannot be built with these settings ({hub.reason(error)}).") from None


def check_settings(table: Mapping[str, Entry], kind: Kind, name: str, settings: Mapping[str, Any]) -> None:
    """Refuses settings that there are not, and values out of range: whole numbers are sizes, others are shares."""
    if name not in table:
        raise UserError(f"there is no {kind} {name!r}; there are {', '.join(table)}.")
    _, config = table[name].load()
    allowed, types = {f.name: f for f in fields(config)}, get_type_hints(config)
    if unknown := sorted(settings_of(settings) - set(allowed)):
        choices = ", ".join(sorted(settings_of(allowed)))
        raise UserError(f"model.{unknown[0]}: {name} has no such setting; it has {choices}.")
    for key in settings.keys() & allowed.keys():
        value, wanted, limits = settings[key], types[key], allowed[key].metadata
        if wanted is bool:
            fits, what = isinstance(value, bool), "true or false"
        elif (plain := get_origin(wanted) or wanted) in (str, dict):
            texts = limits.get("choices", ())
            fits, what = isinstance(value, plain) and (not texts or value in texts), " or ".join(texts) or "a text"
        else:
            least: float = limits.get("least", 0 if wanted is float or key.endswith("layers") else 1)
            most: float = 1 if wanted is float else MOST_LAYERS if key.endswith("layers") else MOST_SIZE
            most = MOST_WORDS if is_size(key) else most
            number = isinstance(value, int | float if wanted is float else int) and not isinstance(value, bool)
            fits = number and least <= value <= most
            what = f"{'a number' if wanted is float else 'a whole number'} from {least} to {most}"
        if not fits:
            shown = repr(value)[:40] if isinstance(value, int | float | str) else files.type_of(value)
            raise UserError(f"model.{key} must be {what}, not {shown}.")


def build_captioner(
    name: str, settings: dict[str, Any], *, vocab_size: int, feature_sizes: Mapping[str, int]
) -> nn.Module:
    """feature_sizes  of each stream that it is given, which must be those that it takes"""
    refuse_sizes(settings)
    if name in CAPTIONERS:
        require_streams(name, feature_sizes)
    settings = settings | {"vocab_size": vocab_size, **stream_sizes(feature_sizes)}
    check_settings(CAPTIONERS, "captioner", name, settings)
    make, _ = CAPTIONERS[name].load()
    if hasattr(make, "complete"):
        settings = make.complete(settings)
    network = build(CAPTIONERS, "captioner", name, settings)
    load_base(network)
    return network


def load_base(network: nn.Module, folder: Path | None = None) -> None:
    """The weights of a pretrained base that checkpoints do not have; folder: of the model, if it comes from one"""
    if (load := getattr(network, "load_base", None)) is not None:
        load(folder)


def stream_sizes(feature_sizes: Mapping[str, int]) -> dict[str, int]:
    """The settings that say how many numbers a row of each stream has."""
    return {"feature_size" if name == REGIONS else f"{name}_size": size for name, size in feature_sizes.items()}


def streams_of(captioner: str) -> tuple[str, ...]:
    """The streams that a captioner takes."""
    make, _ = CAPTIONERS[captioner].load()
    return tuple(getattr(make, "streams", (REGIONS,)))


def require_streams(captioner: str, streams: Iterable[str]) -> None:
    wanted, streams = streams_of(captioner), list(streams)
    if strange := next((name for name in streams if name not in wanted), None):
        raise UserError(f"inputs.{strange}: {captioner} takes no such stream; it takes {', '.join(wanted)}.")
    make, _ = CAPTIONERS[captioner].load()
    lacking = next((name for name in wanted if name not in streams), None)
    if lacking and not getattr(make, "optional_streams", False):
        raise UserError(f"inputs: {captioner} takes a stream {lacking!r} too, which the recipe does not give it.")


def settings_of(names: Iterable[str]) -> set[str]:
    """Those that are set, without those that follow from the data."""
    return {name for name in names if not is_size(name)}


def is_size(setting: str) -> bool:
    """True of a setting that follows from something else, and not from a recipe."""
    return setting in SIZES or setting in {f"{name}_size" for name in STREAMS}


def refuse_sizes(settings: dict[str, Any]) -> None:
    if size := next(filter(is_size, settings), None):
        raise UserError(f"model.{size}: follows from the data and cannot be set.")
