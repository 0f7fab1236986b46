"""Code of the user's own: captioners, rewards, measures, readers and encoders that add themselves to a `Table`.

Named on the command line (`--plugin FILE_OR_MODULE`, on every command) or by an installed package as an entry point of
the group `tellapart.plugins`.  Never by a recipe or a model folder, which are data and run nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from importlib import import_module, util
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from tellapart.errors import UserError

OPTION, GROUP = "--plugin", "tellapart.plugins"
loaded: list[str] = []  # what `--plugin` named, for processes that are started from here
_importing: list[str] = []  # the plugin that is being imported

Line = TypeVar("Line")


class Table(MutableMapping[str, Line]):
    """Lines by name, to which plugins add theirs.  A name that another has is refused: recipes may mean that one.

    what   one of its lines is, for messages
    kinds  of its lines
    """

    def __init__(self, what: str, lines: Mapping[str, Line], *kinds: type):
        self.what, self._lines, self._kinds = what, dict(lines), kinds
        self.added: dict[str, str] = {}  # lines that are not ours: name -> the plugin

    def __getitem__(self, name: str) -> Line:
        return self._lines[name]

    def __setitem__(self, name: str, line: Line) -> None:
        plugin = _importing[-1] if _importing else ""
        where = f"{plugin}: " if plugin else ""
        if name in self and self.added.get(name) != plugin:
            raise UserError(f"{where}there is a {self.what} {name!r} already; give yours another name.")
        if self._kinds and not isinstance(line, self._kinds):
            wanted = " or ".join(kind.__name__ for kind in self._kinds)
            raise UserError(f"{where}the {self.what} {name!r} must be a {wanted}, not a {type(line).__name__}.")
        self._lines[name], self.added[name] = line, plugin

    def __delitem__(self, name: str) -> None:
        del self._lines[name]
        self.added.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def named(self, name: str) -> str:
        """A line in messages, with the plugin that it is from."""
        plugin = self.added.get(name)
        return f"{plugin}: the {self.what} {name!r}" if plugin else f"the {self.what} {name!r}"


def defined(module: str, name: str) -> object:
    """What a module defines; one sentence where it does not."""
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UserError(f"{place(module)}: there is no such module.") from None
    if not hasattr(found, name):
        raise UserError(f"{place(module)}: defines no {name}.")
    return getattr(found, name)


def place(module: str) -> str:
    """A module in messages: the file of a plugin, else its name."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).name if file and not module.startswith("tellapart.") else module


def maker(function: Callable[..., object]) -> str:
    """The plugin that a function is from, for messages; nothing for one of ours."""
    module = getattr(getattr(function, "func", function), "__module__", "") or ""
    return "" if module.startswith("tellapart.") else place(module)


@contextmanager
def _importing_now(name: str) -> Iterator[None]:
    _importing.append(Path(name).name)
    try:
        yield
    finally:
        _importing.pop()


def take(arguments: Sequence[str]) -> list[str]:
    """Loads what `--plugin` names, and what installed packages bring; returns the other arguments."""
    names, others, rest = list[str](), list[str](), iter(arguments)
    for argument in rest:
        if argument == "--":
            others += [argument, *rest]
        elif argument == OPTION:
            name = next(rest, "")
            if not name:
                raise UserError(f"{OPTION} names a Python file or module.")
            names.append(name)
        elif argument.startswith(f"{OPTION}="):
            names.append(argument.removeprefix(f"{OPTION}="))
        else:
            others.append(argument)
    for entry in entry_points(group=GROUP):
        with _importing_now(entry.name):
            entry.load()
    for name in names:
        load(name)
        loaded.append(str(Path(name).resolve()) if name.endswith(".py") else name)
    return others


def load(name: str) -> None:
    """Import a Python file, or a module by its name; one that was imported before is left as it is.

    Example:
        >>> tellapart.plugins.load("my_rewards.py")
    """
    try:
        if not name.endswith(".py"):
            with _importing_now(name):
                import_module(name)
            return
        file = Path(name).resolve()
        module = f"tellapart_plugin_{file.stem}"
        if module in sys.modules and getattr(sys.modules[module], "__file__", None) == str(file):
            return
        spec = util.spec_from_file_location(module, file)
        if spec is None or spec.loader is None or not file.is_file():
            raise UserError(f"{OPTION} {name}: there is no such file.")
        sys.modules[module] = made = util.module_from_spec(spec)
        with _importing_now(name):
            spec.loader.exec_module(made)
    except UserError:
        sys.modules.pop(f"tellapart_plugin_{Path(name).stem}", None)
        raise
    except Exception as error:  # it is the user's own code, and may fail in any way
        sys.modules.pop(f"tellapart_plugin_{Path(name).stem}", None)
        raise UserError(f"{OPTION} {name} cannot be imported: {type(error).__name__}: {error}.") from None
