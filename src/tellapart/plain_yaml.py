"""YAML as recipes need it, from anyone: objects, lists, strings, numbers, booleans and null, within limits.

A downloaded file can name a class to be made (a tag), or grow on the way into memory (aliases of aliases).
So values are made here from the parser's events: tags are refused, every alias is counted with all that it stands for,
and what is nested too deeply is refused before it is nested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from capscore import files
from capscore.errors import UserError

MOST_BYTES = 1 << 20
MOST_VALUES = 100_000  # after aliases are replaced by what they stand for
DEEPEST = 20
_MERGE = "<<"
_NULL, _BOOLEAN = ("", "~", "null", "Null", "NULL"), {"true": True, "True": True, "false": False, "False": False}
_WHOLE = re.compile(r"[-+]?[0-9]{1,19}")
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,300}\.[0-9]{0,300}|\.[0-9]{1,300}|[0-9]{1,300}(?=[eE]))(?:[eE][-+]?[0-9]{1,4})?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF|nan|NaN|NAN)")
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # only its events are used


class _Value(NamedTuple):
    value: Any
    size: int  # values in it, itself among them
    height: int  # of what is nested in it; 1: nothing


def read(path: Path) -> Any:
    """What a YAML file holds, plain or gzipped."""
    return parse(files.read_text(path, most=MOST_BYTES), str(path))


def parse(text: str, where: str) -> Any:
    """What a text holds; `where` it comes from begins the sentence that refuses it."""

    def refuse(reason: str) -> UserError:
        return UserError(f"{where}: {reason}.")

    try:
        return _Reader(yaml.parse(text, Loader=_PARSER), refuse).document()
    except yaml.YAMLError as error:
        raise refuse(f"this is not YAML ({' '.join(str(error).split())[:200]})") from None
    except RecursionError:
        raise refuse("the YAML is nested too deeply to be read") from None


class _Dumper(yaml.SafeDumper):
    """Puts words into quotes that look like numbers here, but not to the library (1e-3)."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_NUMBER.pattern + "$"), list("-+.0123456789"))


def dump(value: Any) -> str:
    """The same as YAML, keys in their order."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False))


class _Reader:
    """Values from events."""

    def __init__(self, events: Iterator[Any], refuse: Callable[[str], UserError]):
        self._events, self._refuse = events, refuse
        self._anchors: dict[str, _Value] = {}
        self._count = 0

    def document(self) -> Any:
        next(self._events)  # the stream begins
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        read = self._value(next(self._events), depth=1)
        next(self._events)  # the document ends
        if not isinstance(next(self._events), yaml.StreamEndEvent):
            raise self._refuse("there is more than one YAML document in it")
        return read.value

    def _value(self, event: Any, depth: int) -> _Value:
        if isinstance(event, yaml.AliasEvent):
            anchor = str(event.anchor)
            if anchor not in self._anchors:
                raise self._refuse(f"the alias *{anchor[:40]} stands for nothing, or for what contains it")
            self._check_depth(depth + self._anchors[anchor].height - 1)
            return self._counted(self._anchors[anchor])
        if event.tag is not None:
            raise self._refuse(f"the tag {event.tag[:60]!r} is not read; values are plain")
        self._check_depth(depth)
        self._counted(_Value(None, 1, 1))
        if isinstance(event, yaml.ScalarEvent):
            made = _Value(_scalar(event.value) if event.implicit[0] else event.value, 1, 1)
        elif isinstance(event, yaml.SequenceStartEvent):
            made = self._list(depth)
        else:
            made = self._object(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = made
        return made

    def _check_depth(self, depth: int) -> None:
        if depth > DEEPEST:
            raise self._refuse(f"the YAML is nested more than {DEEPEST} deep")

    def _counted(self, read: _Value) -> _Value:
        self._count += read.size
        if self._count > MOST_VALUES:
            raise self._refuse(f"it has more than {MOST_VALUES} values, with those that its aliases stand for")
        return read

    def _list(self, depth: int) -> _Value:
        parts = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            parts.append(self._value(event, depth + 1))
        height = 1 + max((part.height for part in parts), default=0)
        return _Value([part.value for part in parts], 1 + sum(part.size for part in parts), height)

    def _object(self, depth: int) -> _Value:
        own: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        count = height = 1
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._value(event, depth + 1)
            value = self._value(next(self._events), depth + 1)
            count, height = count + key.size + value.size, max(height, 1 + value.height)
            if not isinstance(key.value, str):
                raise self._refuse("the names of values must be words")
            if key.value == _MERGE:
                several = value.value if isinstance(value.value, list) else [value.value]
                if not all(isinstance(part, dict) for part in several):
                    raise self._refuse(f"{_MERGE} takes an object, or a list of objects")
                merged += several
            elif key.value in own:
                raise self._refuse(f"it names {key.value[:60]} twice")
            else:
                own[key.value] = value.value
        for part in merged:
            own |= {name: value for name, value in part.items() if name not in own}
        return _Value(own, count, height)


def _scalar(text: str) -> Any:
    """A plain word as what it looks like.  Numbers with more digits than a number can have stay words."""
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    if special := _SPECIAL.fullmatch(text):
        return float(special[1] + special[2])
    return text
