"""From plain values (of a YAML file or the command line) to the dataclasses of a recipe, each checked against its type.

Nothing is imported, called or opened here for any value.
"""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from capscore import files
from capscore.errors import UserError
from tellapart import plain_yaml
from tellapart.recipe_ranges import Range

Config = TypeVar("Config")  # a dataclass

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def filled(default: Config, given: object, *, name: str = "", strict: bool = True) -> Config:
    """The dataclass with the values that are given in place of its own.

    name    which part of a recipe the dataclass is; "": the whole
    strict  refuses fields that it does not have; otherwise they are those of another version and passed over
    """
    if not isinstance(given, dict):
        raise _wrong(name or "a recipe", "an object", given)
    hints, values = get_type_hints(type(default)), {}
    for key, value in given.items():
        if key in hints:
            values[key] = _typed(hints[key], value, _under(name, key), getattr(default, key), strict)
        elif strict:
            raise _unknown(_under(name, key), (_under(name, known) for known in hints))
    return replace(default, **values)  # type: ignore[type-var]


def changed(config: Config, option: str, text: str) -> Config:
    """The dataclass after `--option text` on the command line: one field, one value of an object, or a whole part."""

    def parsed(hint: Any) -> Any:
        words = hint is str or get_origin(hint) is Literal
        return text if words else plain_yaml.parse(text, f"--{option}")

    return _set(config, type(config), option.split("."), parsed, option)  # type: ignore[no-any-return]


def with_value(config: Config, option: str, value: object) -> Config:
    """The same with a plain value in the place of a text."""
    return _set(config, type(config), option.split("."), lambda _: value, option)  # type: ignore[no-any-return]


def _set(value: Any, hint: Any, names: list[str], given: Callable[[Any], Any], option: str) -> Any:
    """given   the new value for a field of a type"""
    if not names:
        return _typed(hint, given(hint), option, value, strict=True)
    first, *rest = names
    if is_dataclass(value):
        hints = get_type_hints(type(value))
        if first not in hints:
            prefix = option.removesuffix(".".join(names))
            raise _unknown(option, (prefix + known for known in hints))
        return replace(value, **{first: _set(getattr(value, first), hints[first], rest, given, option)})  # type: ignore[type-var]
    if get_origin(hint) is dict:
        inside = get_args(hint)[1]
        before = value.get(first, inside() if is_dataclass(inside) else {})  # type: ignore[operator]
        return {**value, first: _set(before, inside, rest, given, option)}
    raise _unknown(option, [option.removesuffix("." + ".".join(names))])


def _typed(hint: Any, value: Any, name: str, default: Any, strict: bool) -> Any:
    """The value, if it is of the type; whole numbers also where any number may be."""
    origin, inside = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        begin = hint() if default is None else default  # type: ignore[operator]
        return filled(begin, value, name=name, strict=strict)
    if origin is dict and isinstance(value, dict):
        return {key: _typed(inside[1], part, _under(name, key), None, strict) for key, part in value.items()}
    if origin is list and isinstance(value, list):
        return [_typed(inside[0], part, name, None, strict) for part in value]
    if origin is tuple and isinstance(value, list) and len(value) == len(inside):
        return tuple(_typed(one, part, name, None, strict) for one, part in zip(inside, value, strict=True))
    if origin is Literal and value in inside:
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is hint or (origin is types.UnionType and type(value) in inside):
        return value
    raise _wrong(name, kind(hint), value)


def kind(hint: Any) -> str:
    """A type in the words of a user."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        *others, last = map(str, inside)
        return f"{', '.join(others)} or {last}"
    if origin is types.UnionType:
        return "a number, true or false"
    if origin is tuple:
        return f"a list of {len(inside)} numbers"
    return "a list" if origin is list else _KINDS.get(hint, "an object")


def check_ranges(config: Any, hint: Any = None, name: str = "") -> None:
    """Refuse a number outside the range that its field has in `recipe.py`, in any object or list."""
    if is_dataclass(config):
        for key, inner in get_type_hints(type(config), include_extras=True).items():
            check_ranges(getattr(config, key), inner, _under(name, key))
    elif get_origin(hint) is Annotated:
        for bounds in (one for one in hint.__metadata__ if isinstance(one, Range)):
            if not bounds.least <= config <= bounds.most:  # also where it is not a number
                limit = f"at least {bounds.least}" if config < bounds.least else f"at most {bounds.most}"
                raise UserError(f"{name} must be {'a number' if math.isnan(config) else limit}, not {config}.")
    elif isinstance(config, dict):
        for key, value in config.items():
            check_ranges(value, get_args(hint)[1], _under(name, key))
    elif isinstance(config, list | tuple):
        for value in config:
            check_ranges(value, get_args(hint)[0], name)


class Field(NamedTuple):
    """What the help says of a field."""

    name: str
    meaning: str
    kind: str
    default: Any


def listed(config: Any, prefix: str = "") -> Iterator[Field]:
    """All fields of a recipe, with what the docstrings of its dataclasses say of them."""
    hints = get_type_hints(type(config))
    meanings = dict(re.findall(r"^ {8}(\w+): (.+(?:\n {9,}.+)*)", type(config).__doc__ or "", re.MULTILINE))
    for field in fields(config):
        name, value = _under(prefix, field.name), getattr(config, field.name)
        if is_dataclass(value):
            yield from listed(value, name)
        else:
            meaning = " ".join(meanings.get(field.name, "").split())
            yield Field(name, meaning, kind(hints[field.name]), value)


def _under(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _wrong(name: str, wanted: str, value: object) -> UserError:
    if isinstance(value, str):
        shown = repr(value if len(value) <= 40 else value[:40] + "…")
    else:
        shown = str(value) if type(value) in (bool, int, float) else files.type_of(value)
    return UserError(f"{short(name)} must be {wanted}, not {shown}.")


def _unknown(name: str, known: Iterable[str]) -> UserError:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return UserError(f"{short(name)}: a recipe has no such field" + (f"; did you mean {close[0]}?" if close else "."))


def short(name: str) -> str:
    """Names come from users, too: no control characters, and not all of a long one."""
    name = name if len(name) <= 80 else name[:80] + "…"
    return name if name.isprintable() else repr(name)
