"""Code of the user's own: captioners, rewards, measures, readers and encoders that add themselves to a `Table`.

Named on the command line (`--plugin FILE_OR_MODULE`, on every command) or by an installed package as an entry point of
the group `tellapart.plugins`.  Never by a recipe or a model folder, which are data and run nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module, util
from importlib.metadata import entry_points
from pathlib import Path

from capscore.errors import UserError
from capscore.measures import importing_now

OPTION, GROUP = "--plugin", "tellapart.plugins"
loaded: list[str] = []  # what `--plugin` named, for processes that are started from here


def defined(module: str, name: str) -> object:
    """An object that a module defines; one sentence where it does not."""
    try:
        imported = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UserError(f"{place(module)}: there is no such module.") from None
    if not hasattr(imported, name):
        raise UserError(f"{place(module)}: defines no {name}.")
    return getattr(imported, name)


def place(module: str) -> str:
    """A module in messages: the file of a plugin, else its name."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).name if file and not module.startswith(("capscore.", "tellapart.")) else module


def maker(function: Callable[..., object]) -> str:
    """The plugin that a function is from, for messages; nothing for one of ours."""
    module = getattr(getattr(function, "func", function), "__module__", "") or ""
    return "" if module.startswith(("capscore.", "tellapart.")) else place(module)


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
        with importing_now(entry.name):
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
            with importing_now(name):
                import_module(name)
            return
        file = Path(name).resolve()
        module = f"tellapart_plugin_{file.stem}"
        if module in sys.modules and getattr(sys.modules[module], "__file__", None) == str(file):
            return
        spec = util.spec_from_file_location(module, file)
        if spec is None or spec.loader is None or not file.is_file():
            raise UserError(f"{OPTION} {name}: there is no such file.")
        sys.modules[module] = plugin = util.module_from_spec(spec)
        with importing_now(name):
            spec.loader.exec_module(plugin)
    except Exception as error:  # it is the user's own code, and may fail in any way
        sys.modules.pop(f"tellapart_plugin_{Path(name).stem}", None)
        if isinstance(error, UserError):
            raise
        raise UserError(f"{OPTION} {name} cannot be imported: {type(error).__name__}: {error}.") from None
