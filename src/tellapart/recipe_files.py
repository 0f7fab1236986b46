"""Recipes as files: found by path or by name, read from YAML, each over its base, checked by type, and printed again.

    base: album/plain_xe          # another recipe; what this file says has the last word
    optim: {lr: 1.0e-4}

A file with a grid is as many recipes as its axes have combinations, each with its labels as its name:

    runs: runs/mine                                # the folder of their runs, one in each
    grid:
      captioner: {up_down: {captioner: up_down}, transformer: {captioner: transformer}}
      objective:
        xe: {}
        scst: {base: album/plain_scst, init_from: "{runs}/{captioner}_xe"}
    cells: {transformer_scst: {epochs: 3}}         # what one of them says besides; null: there is no such recipe

A recipe is data that may have been downloaded.  So a base is a file beside or below the recipe, a recipe of the same
`recipes` folder, or one that ships with the package, and nothing else: no absolute path, no "..", no link that leads
out of these folders.  YAML is read within limits, names no classes, and nothing is imported, called or opened for any
value.
"""

from __future__ import annotations

import difflib
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import lru_cache, reduce
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints

import yaml

from capscore import files
from capscore.errors import UserError
from tellapart.recipe import UNIONS, Config, Range, Recipe, visited

SHIPPED = Path(__file__).parent / "recipes"
SUFFIXES = (".yaml", ".yml")
WHOLE = ("objective.rewards.weights", "objective.rewards.dataset_weights")  # other terms are another whole, not more
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # of a stage or cell; no dot, which names set aside have
MOST_BYTES = 1 << 20
MOST_VALUES = 100_000  # of a file, after aliases are replaced by what they stand for
DEEPEST = 20
MOST_CELLS = 200  # of a grid
_MOST_CELL_VALUES = 1_000_000  # of all cells of a grid together
_EITHER = ("encoder", "inputs")  # two ways to say one thing
_MOST_BASES = 100
_FOLDER = "recipes"  # recipes in a folder of this name find each other by name
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


# Finding


@dataclass(frozen=True)
class Place:
    """The place of a recipe: a file, or a cell of the grid in a file."""

    path: Path
    cell: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.cell}" if self.cell else str(self.path)


@dataclass(frozen=True)
class RecipeFile:
    """A recipe as its file and its bases have it."""

    place: Place
    content: dict[str, Any]  # base and own values, merged
    values: dict[str, Any]  # the values of its file alone
    stages: list[Any] | None = None  # as written; none: one run, or a grid
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)  # of a grid: the content of each
    runs: str = ""  # of a grid: the folder of its runs, by which one cell starts from another


def shipped() -> dict[str, Place]:
    """The recipes of the package by name, such as tiny/photos_xe."""
    places: dict[str, Place] = {}
    for path in sorted(path for path in SHIPPED.rglob("*") if path.suffix in SUFFIXES):
        name = path.relative_to(SHIPPED).with_suffix("").as_posix()
        places[name] = Place(path)
        if grid := _grid_in(path):
            places |= {f"{name.rpartition('/')[0]}/{cell}": Place(path, cell) for cell in grid.cells}
    return dict(sorted(places.items()))


def about(place: Place) -> str:
    """The comment at the head of a recipe's file, or what the axes of its grid say of a cell."""
    if place.cell and (grid := _grid_in(place.path)):
        return grid.abouts[place.cell]
    lines = _text(place.path).splitlines()
    return "\n".join(line.removeprefix("#") for line in itertools.takewhile(lambda line: line.startswith("#"), lines))


def find(name: str) -> Place:
    """The place of a recipe: a path, or the name of one that ships with the package (tiny/photos_xe)."""
    path = Path(name)
    if os.path.lexists(path) and not files.is_folder(path):
        return Place(path)
    if place := _cell_of(path.parent, path.name):
        return place
    for shipped_name in (name, name.removeprefix(f"{_FOLDER}/")):
        if place := _beneath(SHIPPED, shipped_name):
            return place
    if files.is_folder(path):
        raise UserError(f"{name}: this is a folder, not a recipe.")
    close = _close(name)
    if name.lower().endswith(SUFFIXES):
        raise UserError(f"{name}: there is no such file{f'; there is a recipe {close}' if close else ''}.")
    hint = f"did you mean {close}?" if close else "`tellapart models` lists them."
    raise UserError(f"there is no recipe {short(name)!r}; {hint}")


def _base(place: Place, name: object, field: str) -> Place:
    """The place of the recipe that another one names as its base."""
    if not isinstance(name, str) or not name:
        kind = "nothing" if name == "" else files.type_of(name)
        raise UserError(f"{place}: {field} must be the name of another recipe, not {kind}.")
    if not _stays(name):
        raise UserError(
            f"{place}: {field}: {short(name)!r} is not followed; it must be a file beside or below the recipe, or the "
            "name of a recipe."
        )
    above = [folder for folder in place.path.absolute().parents if folder.name == _FOLDER]
    for root in (place.path.parent, *above[:1], SHIPPED):
        if base := _beneath(root, name):
            return base
    close = _close(name)
    hint = f"; did you mean {close}?" if close else "."
    raise UserError(f"{place}: {field}: there is no recipe {short(name)!r}{hint}")


def _stays(name: str) -> bool:
    """True if a name, from wherever it is looked up, cannot lead out of there."""
    path = PurePosixPath(name)
    return name.isprintable() and not (
        path.is_absolute() or ".." in path.parts or name.startswith("~") or "\\" in name or ":" in name
    )


def _beneath(root: Path, name: str) -> Place | None:
    """The recipe of that name in a folder, with or without its ending, if it is there."""
    if not _stays(name):
        return None
    endings = ("",) if name.lower().endswith(SUFFIXES) else SUFFIXES
    for path in (root / f"{name}{ending}" for ending in endings):
        if os.path.lexists(path) and not files.is_folder(path):
            return Place(files.inside(root, str(path.relative_to(root))))
    return _cell_of((root / name).parent, Path(name).name)


def _cell_of(folder: Path, cell: str) -> Place | None:
    """The cell of that name in the grids of a folder's files."""
    if not LABEL.fullmatch(cell) or not files.is_folder(folder):
        return None
    paths: list[Path] = []
    with suppress(OSError):  # a folder that cannot be read
        paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    for path in paths:
        with suppress(UserError):  # a link that leads out of the folder
            if (grid := _grid_in(files.inside(folder, path.name))) and cell in grid.cells:
                return Place(path, cell)
    return None


def _grid_in(path: Path) -> Grid | None:
    """The grid of a file, if it has one and is sound."""
    with suppress(UserError):
        return _grid(_text(path), path)
    return None


def _close(name: str) -> str | None:
    """A recipe that may have been meant: one of a similar name, in any folder."""
    names = list(shipped())
    bare = name.removeprefix(f"{_FOLDER}/").removesuffix(".yaml").removesuffix(".yml")
    if close := difflib.get_close_matches(bare, names, n=1, cutoff=0.75):
        return close[0]
    stems = {PurePosixPath(name).name: name for name in reversed(names)}
    return next((stems[stem] for stem in difflib.get_close_matches(PurePosixPath(bare).name, stems, n=1)), None)


# Reading, and merging with bases


def read(name: str) -> RecipeFile:
    """A recipe and all that it is based on."""
    place = find(name)
    grid = None if place.cell else _grid(_text(place.path), place.path)
    if grid is None:
        return _read(place)
    cells = {cell: _read(Place(place.path, cell)).content for cell in grid.cells}
    return RecipeFile(place, {}, {}, cells=cells, runs=grid.runs)


def _read(place: Place) -> RecipeFile:
    values = _own(place)
    base, stages = values.pop("base", None), values.pop("stages", None)
    _check(values, place)
    if stages == []:
        raise UserError(f"{place}: stages is empty; a chain needs at least one.")
    if stages is not None and not isinstance(stages, list):
        raise UserError(f"{place}: stages must be a list of stages, not {files.type_of(stages)}.")
    return RecipeFile(place, values if base is None else merged(based(place, base, "base"), values), values, stages)


def based(place: Place, name: object, field: str) -> dict[str, Any]:
    """The content of a recipe that another one names, over its own bases: `base`, or the `recipe` of a stage."""
    chain, contents = [place], list[dict[str, Any]]()
    while name is not None:
        last = chain[-1]
        base = _base(last, name, field)
        if any(base.cell == other.cell and files.real(base.path) == files.real(other.path) for other in chain):
            around = ", ".join(map(str, [*chain, base]))
            raise UserError(f"{last}: {field} leads back to where it came from ({around}).")
        if len(chain) > _MOST_BASES:
            raise UserError(f"{place}: {field} has more than {_MOST_BASES} bases, one upon the other.")
        values = _own(base)
        if "stages" in values:
            raise UserError(f"{last}: {field}: {base} has stages of its own; only a single run can be built upon.")
        name, field = values.pop("base", None), "base"
        _check(values, base)
        chain.append(base)
        contents.append(values)
    return reduce(merged, reversed(contents))


def merged(under: dict[str, Any], over: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Both together, part by part; where both say something, the second has the last word.

    The terms of a reward are one value.  So are a network's settings where the second names another network.  `inputs`
    replaces the `encoder` of a base, and `encoder` its `inputs`.
    """
    result = dict(under)
    other_network = not prefix and _network(under, over) != _network(under)
    for name, value in over.items():
        path = f"{prefix}{name}"
        apart = path in WHOLE or (path == "model" and other_network)
        if isinstance(value, dict) and isinstance(under.get(name), dict) and not apart:
            value = merged(under[name], value, f"{path}.")
        result[name] = value
    if not prefix:
        if "model" not in over and other_network:
            result.pop("model", None)
        for name, other in (_EITHER, _EITHER[::-1]):
            if name in over and other not in over:
                result.pop(other, None)
    return result


def _network(*contents: dict[str, Any]) -> object:
    """The name of what is trained, the last content having the last word."""
    objectives = [content["objective"] for content in contents if isinstance(content.get("objective"), dict)]
    if [objective["name"] for objective in objectives if "name" in objective][-1:] == ["tagging"]:
        return "tagger"
    content = {name: value for content in contents for name, value in content.items()}
    return content.get("retriever") or content.get("captioner", Recipe.captioner)


def _own(place: Place) -> dict[str, Any]:
    """The values that a recipe itself says, with its base and stages."""
    grid = _grid(_text(place.path), place.path)
    if grid is not None and not place.cell:
        raise UserError(f"{place} has a grid of recipes; name one of them.")
    return dict(grid.cells[place.cell]) if grid else _content(_text(place.path), place.path)


def _text(path: Path) -> str:
    return files.read_text(path, most=MOST_BYTES)


def _content(text: str, path: Path) -> dict[str, Any]:
    content = parse_yaml(text, str(path))
    if content is None:
        raise UserError(f"{path}: the recipe is empty.")
    if not isinstance(content, dict):
        raise UserError(f"{path}: a recipe is a YAML file of `key: value`; this one is not.")
    return content


def _check(values: dict[str, Any], place: Place) -> None:
    """Refuses a wrong value in the name of the file that has it."""
    try:
        filled(Recipe(), values)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


class Grid(NamedTuple):
    """The recipes of a file with a grid, by name."""

    cells: dict[str, dict[str, Any]]
    abouts: dict[str, str]  # each in a line
    runs: str


@lru_cache(maxsize=32)  # each of its cells asks for it
def _grid(text: str, path: Path) -> Grid | None:
    """The grid of a file; none if the text has none.

    A cell is what its labels say, axis by axis, and then `cells`; what stands beside the grid is below that, unless
    the base of a cell is another one, which has it already.
    """
    if "grid" not in text or "grid" not in (content := _content(text, path)):
        return None
    axes = _labelled(content.pop("grid"), path, "grid")
    axes = {axis: _labelled(labels, path, f"grid.{axis}") for axis, labels in axes.items()}
    exceptions = content.pop("cells", {})
    exceptions = _labelled(exceptions, path, "cells") if exceptions else {}
    runs = content.pop("runs", "")
    if not isinstance(runs, str) or "stages" in content:
        raise UserError(f"{path}: a file with a grid has no stages, and runs is the name of a folder.")
    number = math.prod(map(len, axes.values()))
    if number > MOST_CELLS or number * _count([content, axes, exceptions]) > _MOST_CELL_VALUES:
        raise UserError(f"{path}: the grid has more than {MOST_CELLS} cells, or {_MOST_CELL_VALUES} values in all.")
    combinations = {"_".join(labels): labels for labels in itertools.product(*axes.values())}
    if unknown := exceptions.keys() - combinations.keys():
        raise UserError(f"{path}: cells: the grid has no {short(min(unknown))}.")
    cells, abouts = dict[str, dict[str, Any]](), dict[str, str]()
    for name, labels in combinations.items():
        layers = [axes[axis][label] for axis, label in zip(axes, labels, strict=True)]
        layers.append(exceptions.get(name, {}))
        if layers[-1] is None:
            continue
        cell, sentences, texts = dict[str, Any](), [], dict(zip(axes, labels, strict=True)) | {"runs": runs}
        for layer in layers:
            if not isinstance(layer, dict) or "stages" in layer:
                raise UserError(f"{path}: {name}: a cell is an object of values for a single run.")
            sentences.append(str(layer.get("about", "")))
            cell = merged(cell, {key: value for key, value in layer.items() if key != "about"})
        cell = _with_labels(cell, texts)
        if cell.get("base") not in combinations:
            cell = merged(_with_labels(content, texts), cell)
        cells[name], abouts[name] = cell, ": ".join(filter(None, sentences))
    return Grid(cells, abouts, runs)


def _count(value: Any) -> int:
    """The number of values; a long string, which labels may make longer, counts as several."""
    if isinstance(value, str):
        return 1 + len(value) // 8
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, parts))


def _labelled(values: object, path: Path, name: str) -> dict[str, Any]:
    if not isinstance(values, dict) or not values or not all(map(LABEL.fullmatch, values)):
        raise UserError(f"{path}: {name} must be an object of labels: letters, digits, _ and - can, 64 at most.")
    return dict(values)


def _with_labels(value: Any, labels: Mapping[str, str]) -> Any:
    """The values with the label of an axis in the place of {AXIS}."""
    if isinstance(value, dict):
        return {key: _with_labels(part, labels) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_labels(part, labels) for part in value]
    if isinstance(value, str):
        for axis, label in labels.items():
            value = value.replace(f"{{{axis}}}", label)
    return value


# YAML as recipes need it, from anyone

_TAG = "tag:yaml.org,2002:"
_NUMBER = re.compile(
    r"(?:[-+]?(?:[0-9]{1,300}\.[0-9]{0,300}|\.[0-9]{1,300}|[0-9]{1,300}(?=[eE]))(?:[eE][-+]?[0-9]{1,4})?"
    r"|[-+]?\.(?:inf|Inf|INF|nan|NaN|NAN))$"
)
_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SAFE_LOADER):  # type: ignore[misc]
    """Objects, lists, strings, numbers, booleans and null, as YAML 1.2 has them: `off` is a word and 1e-3 a number."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # none of YAML 1.1


_Loader.add_implicit_resolver(_TAG + "null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(_TAG + "bool", re.compile(r"(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver(_TAG + "int", re.compile(r"[-+]?[0-9]{1,19}$"), list("-+0123456789"))  # or it is a word
_Loader.add_implicit_resolver(_TAG + "float", _NUMBER, list("-+.0123456789"))
_Loader.add_implicit_resolver(_TAG + "merge", re.compile(r"<<$"), ["<"])
_Loader.add_constructor(_TAG + "int", lambda loader, node: int(node.value))  # 010 is ten
_Loader.add_constructor(_TAG + "float", lambda loader, node: float(re.sub(r"\.(?=[iInN])", "", node.value)))


class _Dumper(yaml.SafeDumper):
    """Puts words into quotes that look like numbers here, but not to the library (1e-3)."""


_Dumper.add_implicit_resolver(_TAG + "float", _NUMBER, list("-+.0123456789"))


def read_yaml(path: Path) -> Any:
    """The content of a YAML file, plain or gzipped."""
    return parse_yaml(files.read_text(path, most=MOST_BYTES), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """The content of a YAML text; the sentence that refuses it begins with `where` it comes from."""
    try:
        _check_yaml(text, where)
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{where}: this is not YAML ({' '.join(str(error).split())[:200]}).") from None


def dump_yaml(value: Any) -> str:
    """Values as YAML, keys in their order."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False))


@dataclass
class _Node:
    """An object or list whose end is not reached."""

    anchor: str | None
    values_before: int
    names: set[str] | None  # of the values of an object; none: it is a list
    height: int = 1
    is_named: bool = False  # the next event is the value of a name


def _check_yaml(text: str, where: str) -> None:
    """Goes through the parser's events, which take no memory, before any value is made.

    A tag could name a class to be made, deep nesting overrun the stack, and aliases of aliases fill the memory: so
    every alias counts with all that it stands for.
    """
    anchors: dict[str, tuple[int, int]] = {}  # how many values, how deeply nested, are in what has the anchor
    around: list[_Node] = []
    resolver = _Loader("")
    count = documents = 0

    def refuse(reason: str) -> None:
        raise UserError(f"{where}: line {event.start_mark.line + 1}: {reason}.")

    for event in yaml.parse(text, Loader=_Loader):
        anchor = getattr(event, "anchor", None)
        begins, ends = isinstance(event, yaml.CollectionStartEvent), isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                refuse("there is more than one YAML document in it")
        if not isinstance(event, yaml.NodeEvent) and not ends:
            continue
        if getattr(event, "tag", None) is not None:
            refuse(f"the tag {event.tag[:60]!r} is not read; values are plain")
        size, height = 1, 1
        if isinstance(event, yaml.AliasEvent):
            if anchor not in anchors:
                refuse(f"the alias *{str(anchor)[:40]} stands for nothing, or for what contains it")
            size, height = anchors[str(anchor)]
        if ends:
            node = around.pop()
            anchor, size, height = node.anchor, count - node.values_before, node.height
        else:
            count += size
            if count > MOST_VALUES:
                refuse(f"it has more than {MOST_VALUES} values, with those that its aliases stand for")
            if len(around) + height > DEEPEST:
                refuse(f"the YAML is nested more than {DEEPEST} deep")
            if around and (names := around[-1].names) is not None and not around[-1].is_named:
                is_word = isinstance(event, yaml.ScalarEvent)
                tag = resolver.resolve(yaml.ScalarNode, event.value, event.implicit) if is_word else ""
                if tag not in (_TAG + "str", _TAG + "merge"):
                    refuse("the names of values must be words")
                if event.value in names and tag != _TAG + "merge":
                    refuse(f"it names {event.value[:60]} twice")
                names.add(event.value)
                around[-1].is_named = True
            elif around:
                around[-1].is_named = False
        if around:
            around[-1].height = max(around[-1].height, height + 1)
        if begins:
            around.append(_Node(anchor, count - 1, set() if isinstance(event, yaml.MappingStartEvent) else None))
        elif anchor is not None:
            anchors[anchor] = size, height


# Values by type: from those of a file or the command line to the dataclasses of a recipe


def filled(default: Config, values: object, *, name: str = "", strict: bool = True) -> Config:
    """The dataclass with these values in place of its own, each checked against its type.

    name    which part of a recipe the dataclass is; "": the whole
    strict  refuses fields that it does not have; otherwise they are those of another version and passed over
    """
    if not isinstance(values, dict):
        raise _wrong(name or "a recipe", "an object", values)
    hints, typed = get_type_hints(type(default)), {}
    for key, value in values.items():
        if key in hints:
            typed[key] = _typed(hints[key], value, _under(name, key), getattr(default, key), strict)
        elif strict:
            raise _unknown(_under(name, key), (_under(name, other) for other in hints))
    return replace(default, **typed)  # type: ignore[type-var]


def changed(config: Config, option: str, text: str) -> Config:
    """The dataclass after `--option text` on the command line: one field, one value of an object, or a whole part."""

    def parsed(hint: Any) -> Any:
        return text if hint is str or get_origin(hint) is Literal else parse_yaml(text, f"--{option}")

    return _set(config, type(config), option.split("."), parsed, option)  # type: ignore[no-any-return]


def with_value(config: Config, option: str, value: object) -> Config:
    """The dataclass with a plain value in the place of a field's."""
    return _set(config, type(config), option.split("."), lambda _: value, option)  # type: ignore[no-any-return]


def _set(value: Any, hint: Any, names: list[str], new: Callable[[Any], Any], option: str) -> Any:
    """new   gives the value of a field of a type"""
    if not names:
        return _typed(hint, new(hint), option, value, strict=True)
    first, *rest = names
    if is_dataclass(value):
        hints = get_type_hints(type(value))
        if first not in hints:
            prefix = option.removesuffix(".".join(names))
            raise _unknown(option, (prefix + other for other in hints))
        return replace(value, **{first: _set(getattr(value, first), hints[first], rest, new, option)})  # type: ignore[type-var]
    if get_origin(hint) is dict:
        inside = get_args(hint)[1]
        now = value.get(first, inside() if is_dataclass(inside) else {})  # type: ignore[operator]
        return {**value, first: _set(now, inside, rest, new, option)}
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
        return tuple(_typed(part_hint, part, name, None, strict) for part_hint, part in zip(inside, value, strict=True))
    if origin is Literal and value in inside:
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is hint or (origin in UNIONS and type(value) in inside):
        return value
    raise _wrong(name, kind(hint), value)


def check_ranges(config: Any) -> None:
    """Refuses a number outside the range that its field has in `recipe.py`, in any object or list."""

    def check(name: str, value: Any, bounds: object) -> Any:
        if isinstance(bounds, Range) and not bounds.least <= value <= bounds.most:  # also where it is not a number
            limit = f"at least {bounds.least}" if value < bounds.least else f"at most {bounds.most}"
            raise UserError(f"{name} must be {'a number' if math.isnan(value) else limit}, not {value}.")
        return value

    visited(config, check)


def kind(hint: Any) -> str:
    """A type in the words of a user."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        *others, last = map(str, inside)
        return f"{', '.join(others)} or {last}"
    if origin in UNIONS:
        return "a number, true or false"
    if origin is tuple:
        return f"a list of {len(inside)} numbers"
    return "a list" if origin is list else _KINDS.get(hint, "an object")


def _under(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _wrong(name: str, wanted: str, value: object) -> UserError:
    if isinstance(value, str):
        shown = repr(value if len(value) <= 40 else value[:40] + "…")
    else:
        shown = str(value) if type(value) in (bool, int, float) else files.type_of(value)
    return UserError(f"{short(name)} must be {wanted}, not {shown}.")


def _unknown(name: str, names: Iterable[str]) -> UserError:
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.75)
    return UserError(f"{short(name)}: a recipe has no such field" + (f"; did you mean {close[0]}?" if close else "."))


def short(name: str) -> str:
    """A name as it can be printed: names come from users, too, with control characters or of any length."""
    name = name if len(name) <= 80 else name[:80] + "…"
    return name if name.isprintable() else repr(name)


# Printing


def plain(recipe: Recipe) -> dict[str, object]:
    """The recipe as YAML can hold it."""
    values: dict[str, object] = as_yaml(asdict(recipe))
    return values


def as_yaml(value: Any) -> Any:
    """Values as YAML would have them: paths are texts, tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): as_yaml(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_yaml(part) for part in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def flat(value: object, prefix: str = "") -> dict[str, object]:
    """Plain values by the dotted names of their fields."""
    if not isinstance(value, dict) or prefix in WHOLE:
        return {prefix: value}
    return {k: v for key, part in value.items() for k, v in flat(part, _under(prefix, key)).items()}


class Field(NamedTuple):
    """A field as the help describes it."""

    name: str
    meaning: str
    kind: str
    default: Any


def listed(config: Any, prefix: str = "") -> Iterator[Field]:
    """All fields of a recipe, with what the docstrings of its dataclasses say of them."""
    hints = get_type_hints(type(config))
    meanings = dict(re.findall(r"^ {8}(\w+): (.+(?:\n {9,}.+)*)", type(config).__doc__ or "", re.MULTILINE))
    for part in fields(config):
        name, value = _under(prefix, part.name), getattr(config, part.name)
        if is_dataclass(value):
            yield from listed(value, name)
        else:
            yield Field(name, " ".join(meanings.get(part.name, "").split()), kind(hints[part.name]), value)
