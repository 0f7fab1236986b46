"""Alt texts beside an image in a page's front matter, such as `image: a.jpg` and `image_alt:`, in YAML or TOML.

A parser says what a front matter means, so that a change can be checked by parsing again.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import yaml

from tellapart.data.media.photos import PHOTO_SUFFIXES

_FRONT = re.compile(r"\A\ufeff?(---|\+\+\+)[ \t]*\r?\n(.*?)^\1[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_MOST = 1 << 18  # characters
_ALT_KEY = re.compile(r"(.*?)[_-]?alt(?:[_-]?text)?", re.IGNORECASE)
_LINE = re.compile(r"""^[ \t]*[\w.-]+[ \t]*=[ \t]*("[^"\n]*"|'[^'\n]*')(?!["'])([^\r\n]*)""", re.MULTILINE)

Path = tuple[object, ...]


@dataclass(frozen=True)
class Entry:
    path: Path  # of keys and numbers
    source: str
    alt: str | None
    start: int  # of the value in the page's text ...
    end: int
    fixed: str = ""  # why it cannot be changed


@dataclass(frozen=True)
class FrontMatter:
    end: int  # where the page itself begins
    values: list[tuple[Path, object]]  # every scalar and what it means
    entries: list[Entry]
    problem: str = ""
    language: str = ""


def read(text: str) -> FrontMatter:
    """The front matter of a page; one that is not there ends at 0."""
    front = _FRONT.match(text)
    if front is None:
        return _json(text)
    start, body = front.start(2), front[2]
    kind, parse = ("YAML", _yaml) if front[1] == "---" else ("TOML", _toml)
    try:
        if len(body) > _MOST:
            raise ValueError("it is too long")
        values, spans = parse(body)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        return FrontMatter(front.end(), [((), body)], [], f"the front matter is not read as {kind} ({reason})")
    entries = []
    for path, source, alt in _alts(values):
        first, last, fixed = spans.get(path, (0, 0, "its alt text is written in a way that is not edited"))
        entries.append(Entry(path, source, alt, start + first, start + last, fixed))
    languages = (str(value) for path, value in values if path in (("lang",), ("language",), ("locale",)) and value)
    return FrontMatter(front.end(), values, entries, language=next(languages, ""))


def _json(text: str) -> FrontMatter:
    """A front matter in JSON is kept as it is."""
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return FrontMatter(0, [], [])
    start = text.index("{")
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return FrontMatter(0, [], [])
    return FrontMatter(end, [((), text[:end])], [], "the front matter is JSON, which is left as it is")


def _alts(values: list[tuple[Path, object]]) -> Iterator[tuple[Path, str, str | None]]:
    """The alt keys that stand beside one image: path, the image and the text."""
    siblings: dict[Path, dict[str, object]] = {}
    for path, value in values:
        if path:
            siblings.setdefault(path[:-1], {})[str(path[-1]).lower()] = value
    for path, value in values:
        if not path or not isinstance(path[-1], str) or not (key := _ALT_KEY.fullmatch(path[-1])):
            continue
        texts = {name: text for name, text in siblings[path[:-1]].items() if isinstance(text, str)}
        photos = {name: text for name, text in texts.items() if PurePath(text).suffix.lower() in PHOTO_SUFFIXES}
        near = {name: text for name, text in photos.items() if not _ALT_KEY.fullmatch(name)}
        images = [name for name in near if name.startswith(key[1].lower())] if key[1] else list(near)
        if len(images) == 1 and (value is None or isinstance(value, str)):
            yield path, near[images[0]], value


def _yaml(text: str) -> tuple[list[tuple[Path, object]], dict[Path, tuple[int, int, str]]]:
    """Every scalar with its path, and where it stands, with the reason if it cannot be changed there."""
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
    finally:
        loader.dispose()
    values: list[tuple[Path, object]] = []
    spans: dict[Path, tuple[int, int, str]] = {}
    has_anchors = any(isinstance(token, yaml.AnchorToken | yaml.AliasToken) for token in yaml.scan(text))
    waiting: list[tuple[Any, Path]] = [] if root is None else [(root, ())]
    visited: set[int] = set()
    while waiting:
        node, path = waiting.pop()
        if id(node) in visited:
            values.append((path, ("alias", True)))
            continue
        visited.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            kind = node.tag.rpartition(":")[2]
            values.append((path, None if kind == "null" else node.value if kind == "str" else (kind, node.value)))
            spans[path] = (node.start_mark.index, node.end_mark.index, _fixed(text, node, has_anchors))
        elif isinstance(node, yaml.SequenceNode):
            values.append((path, ("list", len(node.value), node.tag)))
            waiting += [(child, (*path, number)) for number, child in reversed(list(enumerate(node.value)))]
        else:
            values.append((path, ("object", len(node.value), node.tag)))
            for key, child in reversed(node.value):
                name = key.value if isinstance(key, yaml.ScalarNode) else str(key.start_mark.index)
                waiting.append((child, (*path, name)))
    return values, spans


def _fixed(text: str, node: Any, has_anchors: bool) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    rest = text[end:].partition("\n")[0].strip()
    if has_anchors:
        return "the front matter has anchors"
    if node.style in ("|", ">") or "\n" in text[start:end]:
        return "its alt text is written on several lines"
    if rest.startswith("#"):
        return "a comment stands beside its alt text"
    if node.style is None and text[start:end].startswith("!"):
        return "its alt text has a tag"
    return ""


def _toml(text: str) -> tuple[list[tuple[Path, object]], dict[Path, tuple[int, int, str]]]:
    values = _flat(tomllib.loads(text))
    places = list(_LINE.finditer(text))
    marks = {f"tellapart0mark{number}x": place for number, place in enumerate(places)}
    marked, done = list[str](), 0
    for mark, place in marks.items():
        marked += [text[done : place.start(1)], f'"{mark}"']
        done = place.end(1)
    spans: dict[Path, tuple[int, int, str]] = {}
    try:
        for path, value in _flat(tomllib.loads("".join([*marked, text[done:]]))):
            if isinstance(value, str) and (here := marks.get(value)):
                comment = "a comment stands beside its alt text" if here[2].strip().startswith("#") else ""
                spans[path] = (*here.span(1), comment)
    except ValueError:
        spans = {}  # a line within a text of several lines
    return values, spans


def _flat(value: object) -> list[tuple[Path, object]]:
    values: list[tuple[Path, object]] = []
    waiting: list[tuple[object, Path]] = [(value, ())]
    while waiting:
        part, path = waiting.pop()
        if isinstance(part, dict):
            values.append((path, ("object", len(part))))
            waiting += [(child, (*path, name)) for name, child in reversed(part.items())]
        elif isinstance(part, list):
            values.append((path, ("list", len(part))))
            waiting += [(child, (*path, number)) for number, child in reversed(list(enumerate(part)))]
        else:
            values.append((path, part if isinstance(part, str) else repr(part)))
    return values
